"""Packing the weight of a microkernel: its filters as panels, in the order in which they are multiplied."""

from __future__ import annotations

from dataclasses import replace

from dispatch_profiler.configurations.forms.builder import Builder
from dispatch_profiler.configurations.forms.steps import Barrier, Labeled, Step
from dispatch_profiler.operations import Operation


def pack_into_panels(operation: Operation, block: int) -> tuple[Step, ...]:
    """The steps that pack the filters of a convolution, or the columns of a product, into panels of `block` each.

    256 x 3 x 3 x 64 (fhwc) -> 8 x 3 x 3 x 64 x 32
    """
    weight, convolution = operation.operands[1], operation.convolution
    if convolution is not None:
        axes, terms = tuple(convolution.filter_layout), tuple("hwc")
    else:
        assert operation.product is not None
        axes, terms = tuple("fk" if operation.product.rhs_layout == "n" else "kf"), tuple("k")
    filters = dict(zip(axes, weight.shape, strict=True))["f"]
    builder = Builder()
    divided = builder.split(Labeled(weight, axes), "f", {"p": filters // block, "f": block})
    panels = builder.arrange("panels", divided, ("p", *terms, "f")).tensor
    return (*builder.steps, Barrier(replace(panels, name="packed"), panels, packs=True))

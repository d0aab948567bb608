"""Packing the weight of a form: the steps that read nothing but the weight, ahead of a barrier of their own.

A model's weights are constants, so that steps that read only weights can be executed once, when the weights are loaded:

    filters = permuted(rhs)                  filters = permuted(rhs)
    columns = windows(lhs)            ->     packed = barrier(filters)     <- done once up to here
    product = kernel(columns, filters)       columns = windows(lhs)
                                             product = kernel(columns, packed)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from dispatch_profiler.configurations.forms.builder import (
    Barrier,
    Builder,
    Crop,
    Labeled,
    Reduction,
    Reshape,
    Step,
)
from dispatch_profiler.operations import Operation, Tensor

#: Steps that move no elements.
_NAMING = (Barrier, Crop, Reshape)


def packing_rejects(form: str, operation: Operation, reduction: Reduction) -> str | None:
    """Why the weight of `operation` cannot be packed for `form`, which has these steps; None if it can."""
    product, convolution = operation.product, operation.convolution
    if product is not None and product.is_batched:
        return f"packed: {operation.kind} has no weight: each product of the batch has a right operand of its own"
    if convolution is not None and convolution.mode == "weight_backward":
        return "packed: weight_backward has no weight, because it computes the weight's gradient"
    if not _preparing(operation, reduction):
        return f"packed: the form {form} reads the weight as it is stored, so that nothing can be packed"
    return None


def with_packed_weight(operation: Operation, reduction: Reduction) -> Reduction:
    """The same steps, with the steps that read only the weight first, and a barrier for each of their results."""
    preparing = _preparing(operation, reduction)
    computing = [step for step in reduction.steps if step not in preparing]
    read = {source for step in computing for source in step.sources}
    packed = [step.result for step in preparing if step.result in read]
    names = {tensor: replace(tensor, name=f"unpacked_{tensor.name}") for tensor in packed}
    renamed = [_renamed(step, names) for step in preparing]
    barriers = [Barrier(tensor, names[tensor], packs=True) for tensor in packed]
    return replace(reduction, steps=(*renamed, *barriers, *computing))


def _preparing(operation: Operation, reduction: Reduction) -> list[Step]:
    """The steps that read, also through other steps, nothing but the weight, up to the last ones that move elements.

    Later steps only name parts of the results, such as the blocks of a filter: the parts stay one tensor.
    """
    known, preparing = {operation.operands[1]}, list[Step]()
    for step in reduction.steps:
        if known.issuperset(step.sources):
            known.add(step.result)
            preparing.append(step)
    moved = set[Tensor]()
    for step in reversed(preparing):
        if not isinstance(step, _NAMING) or step.result in moved:
            moved.update(step.sources)
    return [step for step in preparing if not isinstance(step, _NAMING) or step.result in moved]


def _renamed(step: Step, names: Mapping[Tensor, Tensor]) -> Step:
    """The step with other names for its tensors."""

    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return names.get(value, value)
        return tuple(map(of, value)) if _has_tensors(value) else value

    return replace(step, **{each.name: of(getattr(step, each.name)) for each in fields(step)})


def _has_tensors(value: object) -> bool:
    return isinstance(value, tuple) and any(isinstance(each, Tensor) for each in value)


def pack_into_panels(
    operation: Operation, block: int, last_block: int, together: int = 1, *, unsigned: bool = False
) -> tuple[Step, ...]:
    """The steps that pack the filters of a convolution, or the columns of a product, into panels of `block` each.

    256 x 3 x 3 x 64 (fhwc) -> 8 x 3 x 3 x 64 x 32. The panels of each group of filters follow each other; its last panel
    has `last_block` filters, and zeros where filters are missing. If it is narrower than others, the panels of a group
    are an axis: 80 x 64 (fc) -> 5120, with 64 x 48 and then 64 x 32 elements. A depthwise convolution is one group. So many
    channels are `together` that those of a filter follow each other: two, 64 x 48 -> 32 x 48 x 2. With `unsigned`, 128 is
    added to each element of i8.
    """
    weight, convolution = operation.operands[1], operation.convolution and operation.convolution.as_forward
    groups = 1
    if convolution is not None:
        axes = tuple(convolution.filter_layout)
        terms = (*(axis for axis in axes if axis not in "fc"), "c")
        groups = 1 if convolution.variant == "depthwise" else convolution.groups
    else:
        assert operation.product is not None
        axes, terms = tuple("fk" if operation.product.rhs_layout == "n" else "kf"), tuple("k")
    filters = dict(zip(axes, weight.shape, strict=True))["f"] // groups
    wide = (-(-filters // block) - 1) * block
    builder = Builder()
    outer = {"g": groups} if groups > 1 else {}
    grouped = builder.split(Labeled(weight, axes), "f", {**outer, "f": filters})
    if unsigned:
        grouped = builder.unsigned(grouped)
    padded = builder.pad(grouped, {"f": (0, wide + last_block - filters)})
    order = (*outer, "p", *terms, "f")
    if together > 1:
        channels = padded.extents[terms[-1]]
        padded = builder.split(padded, terms[-1], {terms[-1]: channels // together, "q": together})
        order = (*order, "q")
    if last_block == block or wide == 0:
        packed = _panels(builder, padded, last_block, order)
    else:
        parts = [(0, wide, block), (wide, last_block, last_block)]
        panels = [
            builder.merge(
                _panels(builder, builder.part(padded, "f", start, extent), width, order),
                {**{axis: (axis,) for axis in outer}, "e": order[len(outer) :]},
            )
            for start, extent, width in parts
        ]
        starts = [{}, {"e": panels[0].extents["e"]}]
        elements = sum(each.extents["e"] for each in panels)
        packed = builder.interleave(panels, starts, {**outer, "e": elements}, {}, weight.type)
    return (*builder.steps, Barrier(replace(packed.tensor, name="packed"), packed.tensor, packs=True))


def _panels(builder: Builder, filters: Labeled, block: int, order: tuple[str, ...]) -> Labeled:
    """The filters in panels ("p") of `block` each, with axes in this order."""
    divided = builder.split(filters, "f", {"p": filters.extents["f"] // block, "f": block})
    return builder.arrange("panels", divided, order)

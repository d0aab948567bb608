"""Products with weights of 4-bit numbers, as torch stores them for CPUs: `_weight_int4pack_mm_for_cpu`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dispatch_profiler.boo.fusion.nodes import Node, NotFusible, aten, check_alike, shape, value
from dispatch_profiler.boo.fusion.roots._base import Begun, RootFamily, RootTraits, read, without_steps
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.operations import Int4Matmul
from dispatch_profiler.operations.contraction.int4_matmul import MIDDLE, PANEL, packed

_PRODUCT: Any = aten._weight_int4pack_mm_for_cpu.default
_convert: Any = aten._convert_weight_to_int4pack_for_cpu.default
#: Terms of the matrix by which the order of a weight is found out.
_TERMS = 32


def _product(node: Node) -> Begun:
    """A product of rows with a weight that torch has packed. Raises NotFusible."""
    rows, weight, group, scales = node.args
    type_ = check_alike(rows, scales)
    (m, k), (groups, n, _) = shape(rows), shape(scales)
    if value(weight).dtype != torch.uint8 or shape(weight) != (n, k // 2) or groups * group != k:
        raise NotFusible("its weight is no matrix of 4-bit numbers")
    if not packs_as_expected():
        raise NotFusible("torch packs weights of 4-bit numbers in another order on this CPU")
    operands = (read("rows", rows), read("bytes", weight), read("rows", scales))
    return without_steps(Int4Matmul(m, n, k, group, type_), (node,), operands)


@cache
def packs_as_expected() -> bool:
    """Whether torch packs a weight in the order of `Int4Matmul`: it depends on the CPU, and may depend on torch's version."""
    numbers = np.random.default_rng(0).integers(-MIDDLE, MIDDLE, (_TERMS, 2 * PANEL))
    unset: Any = unset_fake_temporarily
    with unset(), torch.no_grad():  # a graph is being traced
        found = _convert(torch.from_numpy((numbers.T + MIDDLE).astype(np.int32)), 1)
        return bool(found.dtype == torch.uint8) and found.numpy().tobytes() == packed(numbers).tobytes()


class Int4Roots(RootFamily):
    """See `RootFamily`."""

    roots: ClassVar[Mapping[str, RootTraits]] = {"int4_product": RootTraits(is_default=True)}
    operators: Mapping[Any, Callable[[Node], Begun]] = {_PRODUCT: _product}

    def compute(self, spec: RegionSpec, operands: Sequence[Tensor]) -> list[Tensor]:
        """See `RootFamily.compute`."""
        product = spec.operation.int4_product
        assert product is not None
        rows, weight, scales = operands
        found = _PRODUCT(
            rows.reshape(product.m, product.k),
            weight.reshape(product.n, product.k // 2),
            product.group,
            scales,
        )
        return [found]


FAMILY = Int4Roots()

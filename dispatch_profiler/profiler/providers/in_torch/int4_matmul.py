"""Products with weights of 4-bit numbers in torch, by `_weight_int4pack_mm_for_cpu`, which allocates its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatch_profiler.operations import Int4Geometry, Operation
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers.in_torch._base import (
    Computation,
    Tensor,
    TorchFamily,
    TorchFunction,
    single,
)


class TorchInt4Product(TorchFamily):
    """See `TorchFamily`."""

    def method(self, kind: str) -> str:
        """See `TorchFamily.method`."""
        return "weight_int4pack_mm"

    def handles(
        self, api: Any, operation: Operation, device: Any, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """See `TorchFamily.handles`: the weight as unsigned bytes, a row for each column of the result."""
        product = _checked(operation, device)
        lhs, rhs, *rest = tensors
        return (lhs, rhs.view(api.uint8).reshape(product.n, product.k // 2), *rest)

    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """See `TorchFamily.computation`."""
        product = _checked(operation, device)
        multiply = api.ops.aten._weight_int4pack_mm_for_cpu

        def compute(lhs: Tensor, rhs: Tensor, scales: Tensor, *_: Tensor) -> Tensor:
            return multiply(lhs, rhs, product.group, scales)

        return compute

    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """See `TorchFamily.function`."""
        compute = self.computation(api, operation, device)

        def enter(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return self.handles(api, operation, tensors[0].device, tensors)

        return TorchFunction(enter, compute, single)


def _checked(operation: Operation, device: Any) -> Int4Geometry:
    product = operation.int4_product
    assert product is not None
    if device.type != "cpu":
        raise NotSupported("torch stores weights of 4-bit numbers in another order on GPUs")
    return product


FAMILY = TorchInt4Product()

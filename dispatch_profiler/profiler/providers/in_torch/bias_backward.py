"""Sums over all axes but one, in torch."""

from __future__ import annotations

from typing import Any

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.providers.in_torch._base import (
    Computation,
    Tensor,
    TorchFamily,
    TorchFunction,
    single,
)


class TorchBiasBackward(TorchFamily):
    """See `TorchFamily`."""

    def method(self, kind: str) -> str:
        """See `TorchFamily.method`."""
        return "sum"

    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """See `TorchFamily.computation`."""

        def compute(tensor: Tensor, sums: Tensor) -> Tensor:
            return api.sum(tensor, (0, 2), out=sums)

        return compute

    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """See `TorchFamily.function`."""
        return TorchFunction(tuple, lambda gradient: api.sum(gradient, (0, 2)), single)


FAMILY = TorchBiasBackward()

"""Softmax in torch, which rounds the scaled elements to the element type first."""

from __future__ import annotations

from typing import Any

from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.softmax import Softmax
from dispatch_profiler.profiler.providers.in_torch._base import (
    Computation,
    Tensor,
    TorchFamily,
    TorchFunction,
    single,
)


class TorchSoftmax(TorchFamily):
    """See `TorchFamily`."""

    def method(self, kind: str) -> str:
        """See `TorchFamily.method`."""
        return "softmax"

    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """See `TorchFamily.computation`."""
        return lambda x, y: api.softmax(_scaled(operation, x), 1, out=y)

    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """See `TorchFamily.function`."""
        return TorchFunction(tuple, lambda x: api.softmax(_scaled(operation, x), 1), single)


def _scaled(operation: Operation, x: Tensor) -> Tensor:
    assert isinstance(operation, Softmax)
    return x * operation.scale if operation.is_scaled else x


FAMILY = TorchSoftmax()

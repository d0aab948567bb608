"""Launches of operations for tests, whose arguments are the operation's operands as they are."""

from __future__ import annotations

from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.operations import Operation, Tensor


def plain_spec(operation: Operation) -> LaunchSpec:
    """A launch that takes the operands and returns the results, in the operation's shapes and order."""
    return LaunchSpec(operation, _specs(operation.operands), _specs(operation.results))


def _specs(tensors: tuple[Tensor, ...]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(each.name, each.shape, each.type, each.shape, position)
        for position, each in enumerate(tensors)
    )

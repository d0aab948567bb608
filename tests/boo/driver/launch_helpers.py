"""Launches of operations for tests, whose arguments are the operation's operands as they are, computed by torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatch_profiler.boo.driver.torch_functions import load_torch, to_torch, torch_function
from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import Operation, Tensor


def plain_spec(operation: Operation) -> LaunchSpec:
    """A launch that takes the operands and returns the results, in the operation's shapes and order."""
    return LaunchSpec(operation, _specs(operation.operands), _specs(operation.results))


def _specs(tensors: tuple[Tensor, ...]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(each.name, each.shape, each.type, each.shape, position)
        for position, each in enumerate(tensors)
    )


@dataclass(frozen=True)
class PlainSignature:
    """A signature whose launch is `plain_spec`."""

    operation: Operation
    command: str

    @property
    def func_name(self) -> str:
        return self.operation.name

    @property
    def launch(self) -> LaunchSpec:
        return plain_spec(self.operation)

    def get_sample_args(
        self, device: Any = None, seed: Any = None, splat_value: Any = None
    ) -> tuple[Any, ...]:
        rng = np.random.default_rng(seed)
        found = []
        for tensor in self.operation.operands:
            array = (
                rng.uniform(-1.0, 1.0, tensor.shape)
                if splat_value is None
                else np.full(tensor.shape, splat_value)
            )
            typed = array.astype(tensor.type.dtype)
            found.append(
                typed if device is None else to_torch(typed, tensor.type, load_torch().device(device))
            )
        return tuple(found)


class TorchLaunchable:
    """A launchable that computes by torch, and keeps its arguments in `seen`; `scale` makes it wrong."""

    driver = "local-sync"

    def __init__(self, signature: PlainSignature, scale: float = 1.0, error: str = "") -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._function = torch_function(signature.operation, load_torch().device("cpu"))
        self._scale = scale
        self._error = error

    def __call__(self, *arguments: Any) -> Any:
        if self._error:
            raise ToolError(self._error)
        self.seen.append(arguments)
        found = tuple(each * self._scale for each in self._function(arguments))
        return found if len(found) > 1 else found[0]

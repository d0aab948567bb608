"""What torch needs to know of a family of operations."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.families import find_family
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.providers.protocol import NotSupported

Tensor = Any
#: (operands, results) -> the result or a tuple of them, written to `results` where torch supports it.
Computation = Callable[..., Tensor]
#: Our names of element types -> torch's.
TORCH_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "i8": "int8",
    "i32": "int32",
}


def dtype_of(api: Any, type_: str) -> Any:
    """torch's dtype for our name of an element type."""
    return getattr(api, TORCH_NAMES[type_])


@dataclass(frozen=True)
class TorchFunction:
    """An operation as torch computes it eagerly.

    `enter` takes the operation's operands, in its shapes, and returns views in torch's order of axes, as a user of
    torch has them. `function` takes these views. `leave` converts the results of `function` to the operation's results.
    """

    enter: Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
    function: Callable[..., Any]
    leave: Callable[[Any], tuple[Tensor, ...]]

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results for these operands."""
        return self.leave(self.function(*self.enter(tensors)))


class TorchFamily(abc.ABC):
    """How torch computes a family of operations. Raises NotSupported if torch computes something else."""

    @abc.abstractmethod
    def method(self, kind: str) -> str:
        """The function of torch that computes a kind of the family, as tables name it: `conv2d`."""

    def handles(
        self, api: Any, operation: Operation, device: Any, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Operands and results, which `tensors` has in the operation's shapes, as `computation` takes them."""
        return tuple(tensors)

    @abc.abstractmethod
    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """A function of `handles` that computes the operation as defined, for timing."""

    @abc.abstractmethod
    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """The operation as a user of torch computes it."""

    def converts_weights_ahead(self, operation: Operation, device: Any) -> bool:
        """See `Library.converts_weights_ahead`."""
        return False


def torch_family(operation: Operation) -> TorchFamily:
    """How torch computes the family of `operation`. Raises NotSupported."""
    found = find_family(__package__, operation.family, TorchFamily)  # type: ignore[type-abstract]
    if found is None:
        raise NotSupported(f"torch does not support {operation.kind}")
    return found


def single(result: Tensor) -> tuple[Tensor, ...]:
    """`TorchFunction.leave` of an operation with one result, in its shape."""
    return (result,)

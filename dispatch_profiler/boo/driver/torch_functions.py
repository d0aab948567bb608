"""torch's own function for an operation. The only module of `boo/driver` that imports torch, on first use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dispatch_profiler.errors import MissingDependency, ToolError, WorkerOutOfMemory, reason_of
from dispatch_profiler.operations import ElementType, Operation

if TYPE_CHECKING:
    from dispatch_profiler.profiler.providers.in_torch._base import TorchFunction

Tensor = Any


def load_torch() -> Any:
    """The module torch. Raises MissingDependency."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            "torch is not installed", hint="run python -m pip install 'torch>=2.6'"
        ) from error
    return torch


@contextlib.contextmanager
def torch_errors() -> Iterator[None]:
    """Turn errors of torch into ToolError, and a lack of memory into WorkerOutOfMemory.

    torch's errors have no base class but RuntimeError.
    """
    try:
        yield
    except MemoryError as error:
        raise WorkerOutOfMemory(f"out of memory: {reason_of(error)[:300]}") from error
    except RuntimeError as error:
        raise ToolError(f"torch: {reason_of(error)[:300]}") from error


def torch_function(operation: Operation, device: Any) -> TorchFunction:
    """torch's function for `operation` on the torch device `device`.

    Raises NotSupported for an operation that torch does not compute as defined, and MissingDependency.
    """
    from dispatch_profiler.profiler.providers.in_torch._base import torch_family

    return torch_family(operation).function(load_torch(), operation, device)


def to_torch(array: np.ndarray, type_: ElementType, device: Any) -> Tensor:
    """A copy of `array` on a device; elements of types that numpy lacks are copied as bits."""
    torch = load_torch()
    from dispatch_profiler.profiler.providers.torch_library import TYPES

    bits = np.ascontiguousarray(array).view(f"i{type_.bytes}").reshape(array.shape)
    # torch allocates the copy, so its alignment is usual for torch. torch warns about read-only arrays.
    shared = torch.from_numpy(bits if bits.flags.writeable else bits.copy())
    return shared.view(TYPES[type_.name]).to(device, copy=True)


def to_numpy(tensor: Any, type_: ElementType) -> np.ndarray:
    """A torch tensor (copied) or numpy array, as a dense array of elements of `type_` in the same shape."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(tensor.shape)
    torch = load_torch()
    bits = tensor.detach().contiguous().view(getattr(torch, f"int{type_.bits}")).cpu().numpy()
    return np.array(bits.view(type_.dtype)).reshape(tuple(tensor.shape))

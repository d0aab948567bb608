"""torch's own function for an operation. Of `boo/driver`, only this file needs torch, imported when it is used."""

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
    """Turn what torch raises into a ToolError, and a lack of memory into WorkerOutOfMemory.

    torch's errors have no base class other than RuntimeError.
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
    """A copy of `array` on a device; types that numpy lacks are copied as bits."""
    torch = load_torch()
    from dispatch_profiler.profiler.providers.torch_library import TYPES

    bits = np.ascontiguousarray(array).view(f"i{type_.bytes}").reshape(array.shape)
    # torch allocates the copy, so that it is aligned as torch's own tensors are. It warns of arrays that are read-only.
    shared = torch.from_numpy(bits if bits.flags.writeable else bits.copy())
    return shared.view(TYPES[type_.name]).to(device, copy=True)


def to_numpy(tensor: Any, type_: ElementType) -> np.ndarray:
    """A dense copy of a tensor of torch, or of an array, whose elements have the type `type_`."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(tensor.shape)
    torch = load_torch()
    bits = tensor.detach().contiguous().view(getattr(torch, f"int{type_.bits}")).cpu().numpy()
    return np.array(bits.view(type_.dtype)).reshape(tuple(tensor.shape))

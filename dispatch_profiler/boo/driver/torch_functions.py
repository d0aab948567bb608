"""torch's own function for an operation, and the device of commands. The only module of `boo/driver` that imports torch, on
first use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dispatch_profiler.errors import MissingDependency, ToolError, WorkerOutOfMemory, reason_of
from dispatch_profiler.operations import ElementType, Operation

if TYPE_CHECKING:
    from dispatch_profiler.profiler.providers.in_torch._base import TorchFunction

import importlib.util
import re

from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.device_uri import DeviceUri

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


def cpp_compiler(user: str) -> str:
    """The C++ compiler that inductor uses. Raises MissingDependency, which names its `user`, if there is none."""
    load_torch()
    from torch._inductor import exc
    from torch._inductor.cpp_builder import get_cpp_compiler

    errors: Any = exc
    try:
        return str(get_cpp_compiler())
    except errors.InvalidCxxCompiler as error:
        raise MissingDependency(
            f"there is no C++ compiler, which {user} needs",
            hint="install g++ or clang++, or name one in the environment variable CXX",
        ) from error


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
    bits = tensor.detach().contiguous().view(getattr(load_torch(), f"int{type_.bits}")).cpu().numpy()
    return np.array(bits.view(type_.dtype)).reshape(tuple(tensor.shape))


# -- devices ---------------------------------------------------------------------------------------

# The device that commands run on: `cpu`, or a GPU by torch's name.


CPU = "cpu"
_GPU = re.compile(r"cuda(?::|://)?(\d{0,3})", re.ASCII)


def choose_device(device: str | None, gpu: int | None = None) -> str:
    """`cpu` or `cuda:N`, from `--device` and `--gpu-id`. Without either, the first GPU if torch can use it.

    Accepts `cpu`, `cuda`, `cuda:1` and `cuda://1`. Raises UsageError, and MissingDependency for a GPU without torch.
    """
    if device is None:
        has_gpu = gpu is not None or (has_torch() and load_torch().cuda.is_available())
        return gpu_of_torch(gpu) if has_gpu else CPU
    match = _GPU.fullmatch(device)
    if device != CPU and match is None:
        raise UsageError(
            f"--device: {device[:40]!r} is not supported",
            hint="available: cpu, cuda, cuda:0, cuda:1, ...; cpu chooses between local-sync and local-task itself",
        )
    if match is None:
        if gpu is not None:
            raise UsageError(f"--gpu-id={gpu} contradicts --device=cpu", hint="use one of them")
        return CPU
    number = int(match[1]) if match[1] else None
    if None not in (gpu, number) and gpu != number:
        raise UsageError(f"--gpu-id={gpu} contradicts --device={device}", hint="use one of them")
    return gpu_of_torch(gpu if number is None else number)


def gpu_of_torch(number: int | None) -> str:
    """`cuda:N`. Raises UsageError if torch cannot use that GPU, MissingDependency without torch."""
    torch, wanted = load_torch(), number or 0
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted >= count:
        gpus = (
            f"torch {torch.__version__} finds {count} GPUs" if count != 1 else "torch finds one GPU, number 0"
        )
        raise UsageError(f"cuda:{wanted} is not available: {gpus}", hint="use --device=cpu")
    return f"cuda:{wanted}"


def uri_of(device: str) -> DeviceUri:
    """The device for which kernels are compiled: `cuda:1` -> `cuda://1`, `cpu` -> `local-task`."""
    return DeviceUri("local-task") if device == CPU else DeviceUri.parse(device.replace(":", "://"))


def has_torch() -> bool:
    """Whether torch is installed. Does not import it."""
    return importlib.util.find_spec("torch") is not None

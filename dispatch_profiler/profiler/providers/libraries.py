"""Libraries that compute the same operations, for comparison with IREE's dispatches.

To the profiler, a library behaves like a device with a loaded vmfb: it binds calls, which are timed and
verified like any others. To add one, add a file like `numpy_library.py`, a folder like `in_numpy` in `_FAMILIES`, and
a line in `open_library`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.families import find_family
from dispatch_profiler.operations import ContractFunction, operation_kind
from dispatch_profiler.profiler.providers import in_numpy, in_torch
from dispatch_profiler.profiler.providers.in_numpy._base import NumpyFamily
from dispatch_profiler.profiler.providers.in_torch._base import TorchFamily
from dispatch_profiler.profiler.providers.protocol import Library
from dispatch_profiler.runtime import DeviceUri

#: What has a family for each operation that the library computes.
_FAMILIES: Mapping[str, tuple[str, type[NumpyFamily] | type[TorchFamily]]] = {
    "numpy": (in_numpy.__name__, NumpyFamily),
    "torch": (in_torch.__name__, TorchFamily),
}
#: Kind of operation -> the method of torch-prepacked.
_PREPACKED = {"matmul": "matmul", "conv2d": "conv2d", "conv3d": "conv3d"}
LIBRARIES = (*_FAMILIES, "torch-prepacked")
#: Library -> the package that it needs, where that has another name.
PACKAGES: Mapping[str, str] = {"torch-prepacked": "torch"}


def library_method(library: str, kind: str) -> str:
    """The method of `library` that computes operations of `kind`; "" if it does not support them."""
    if library not in _FAMILIES:
        return _PREPACKED.get(kind, "")
    family = find_family(_FAMILIES[library][0], operation_kind(kind).family, _FAMILIES[library][1])
    return family.method(kind) if family else ""


def open_library(name: str, device: str, threads: int) -> Library:
    """Open the library `name` on the device with the URI `device`.

    Raises UsageError if it cannot run there, MissingDependency if it is not installed.
    """
    if name == "numpy":
        if DeviceUri.parse(device).is_gpu:
            raise UsageError(f"numpy runs on the CPU, but the device is {device}")
        from dispatch_profiler.profiler.providers.numpy_library import NumpyLibrary

        return NumpyLibrary()
    from dispatch_profiler.profiler.providers.torch_library import TorchLibrary
    from dispatch_profiler.profiler.providers.torch_prepacked import NAME, TorchPrepacked

    return TorchPrepacked(device, threads) if name == NAME else TorchLibrary(device, threads)


@cache
def open_contraction(device: str) -> ContractFunction | None:
    """A contraction in float64 on the GPU `device`; None for other devices, or where torch cannot use it."""
    if not device or not DeviceUri.parse(device).is_gpu:
        return None
    try:
        from dispatch_profiler.profiler.providers.torch_gpu import GpuContraction

        return GpuContraction(device)
    except (MissingDependency, UsageError):
        return None

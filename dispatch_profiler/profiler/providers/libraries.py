"""Libraries that compute the same operations: what IREE's dispatches are compared with.

A library is to the profiler as a device with a loaded vmfb is: it binds calls, and those are timed and
verified as any other. A new one is a file beside `numpy_library.py`, its methods in `LIBRARY_METHODS` and a
line in `open_library`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import ContractFunction
from dispatch_profiler.profiler.providers._base import Library
from dispatch_profiler.runtime import DeviceUri

#: Library -> kind of operation -> what of the library computes it. What is not named it cannot do.
LIBRARY_METHODS: Mapping[str, Mapping[str, str]] = {
    "numpy": {"matmul": "matmul", "batch_matmul": "matmul", "conv2d": "im2col"},
    "torch": {"matmul": "matmul", "batch_matmul": "matmul", "conv2d": "conv2d"},
}


def open_library(name: str, device: str, threads: int) -> Library:
    """The library called `name`, on the hardware of the device URI `device`.

    Raises UsageError if it does not run there, MissingDependency if it is not installed.
    """
    if name == "numpy":
        if DeviceUri.parse(device).is_gpu:
            raise UsageError(f"numpy runs on the CPU, but the device is {device}")
        from dispatch_profiler.profiler.providers.numpy_library import NumpyLibrary

        return NumpyLibrary()
    from dispatch_profiler.profiler.providers.torch_library import TorchLibrary

    return TorchLibrary(device, threads)


@cache
def open_contraction(device: str) -> ContractFunction | None:
    """What contracts in float64 on the device URI, a GPU; None where torch does not run there."""
    if not device or not DeviceUri.parse(device).is_gpu:
        return None
    try:
        from dispatch_profiler.profiler.providers.torch_gpu import GpuContraction

        return GpuContraction(device)
    except (MissingDependency, UsageError):
        return None

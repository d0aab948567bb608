"""Libraries that compute the same operations, for comparison with IREE's dispatches.

To the profiler, a library behaves like a device with a loaded vmfb: it binds calls, which are timed and
verified like a dispatch. To add one, add a file like `numpy_library.py`, its methods in `LIBRARY_METHODS`,
and a line in `open_library`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import ContractFunction
from dispatch_profiler.profiler.providers._base import Library
from dispatch_profiler.runtime import DeviceUri

_PRODUCTS = {"matmul": "matmul", "batch_matmul": "matmul"}
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_REDUCTIONS = {
    "layer_norm": "layer_norm",
    "layer_norm_input_backward": "layer_norm_backward",
    "layer_norm_weight_backward": "layer_norm_backward",
    "bias_backward": "sum",
}
#: Library -> kind of operation -> the method that computes it. Other kinds are not supported.
LIBRARY_METHODS: Mapping[str, Mapping[str, str]] = {
    "numpy": {**_PRODUCTS, **dict.fromkeys(_CONVOLUTIONS, "im2col"), **_REDUCTIONS},
    "torch": {**_PRODUCTS, **{kind: kind for kind in _CONVOLUTIONS}, **_REDUCTIONS},
    "torch-prepacked": {"matmul": "matmul", "conv2d": "conv2d", "conv3d": "conv3d"},
}
#: Library -> the package that it needs, where that has another name.
PACKAGES: Mapping[str, str] = {"torch-prepacked": "torch"}


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

"""Properties of a GPU from the NVIDIA driver, through libcuda: needs no CUDA toolkit.

It creates no context on the GPU, so a query uses no GPU memory and disturbs no other process.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from functools import cache
from typing import Any

from dispatch_profiler.runtime.device_uri import DeviceUri

# CUdevice_attribute of cuda.h
_CLOCK_KHZ = 13
_MULTIPROCESSORS = 16
_MEMORY_CLOCK_KHZ = 36
_MEMORY_BUS_BITS = 37
_L2_BYTES = 38
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


@dataclass(frozen=True)
class CudaGpu:
    """A GPU as its driver describes it.

    `capability` is the compute capability, (9, 0) for Hopper; `clock_hz` the highest clock of the
    multiprocessors; `bytes_per_second` the theoretical bandwidth of the memory; `cuda` the newest CUDA
    version that the driver supports.
    """

    ordinal: int
    name: str
    uuid: str
    capability: tuple[int, int]
    multiprocessors: int
    clock_hz: float
    l2_bytes: int
    bytes_per_second: float
    cuda: str


@cache
def find_gpu(uri: str) -> CudaGpu | None:
    """The GPU of the device URI `cuda`, `cuda://1` or `cuda://GPU-<uuid>`.

    None if the URI is for another driver or machine, or if the GPU or the NVIDIA driver is missing.
    """
    parsed = DeviceUri.parse(uri)
    library = _library() if parsed.is_cuda and not parsed.is_remote else None
    if library is None:
        return None
    wanted = parsed.path or "0"
    for ordinal in range(gpu_count()):
        gpu = _describe(library, ordinal)
        if wanted in (str(ordinal), gpu.uuid):
            return gpu
    return None


def gpu_count() -> int:
    """Number of NVIDIA GPUs that this process may use; 0 without a driver."""
    library = _library()
    return 0 if library is None else _number(library.cuDeviceGetCount)


def driver_library() -> Any:
    """libcuda, initialized; None if it is missing or fails to start."""
    return _library()


@cache
def _library() -> Any:
    """libcuda, initialized; None if it is missing or fails to start."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        return library if library.cuInit(0) == 0 else None
    except (OSError, AttributeError):
        return None


def _describe(library: Any, ordinal: int) -> CudaGpu:
    device = _number(library.cuDeviceGet, ordinal)

    def attribute(which: int) -> int:
        return _number(library.cuDeviceGetAttribute, which, device)

    name, identity = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceGetUuid(identity, device)
    version = _number(library.cuDriverGetVersion)
    # Two transfers per cycle, over the width of the bus.
    bytes_per_second = 2.0 * 1e3 * attribute(_MEMORY_CLOCK_KHZ) * attribute(_MEMORY_BUS_BITS) / 8
    return CudaGpu(
        ordinal=ordinal,
        name=name.value.decode(errors="replace"),
        uuid=f"GPU-{uuid.UUID(bytes=identity.raw)}",
        capability=(attribute(_CAPABILITY_MAJOR), attribute(_CAPABILITY_MINOR)),
        multiprocessors=attribute(_MULTIPROCESSORS),
        clock_hz=1e3 * attribute(_CLOCK_KHZ),
        l2_bytes=attribute(_L2_BYTES),
        bytes_per_second=bytes_per_second,
        cuda=f"{version // 1000}.{version % 1000 // 10}",
    )


def _number(function: Any, *arguments: int) -> int:
    """The value that a function of libcuda writes to its first argument; 0 if it fails."""
    value = ctypes.c_int(0)
    return value.value if function(ctypes.byref(value), *arguments) == 0 else 0

"""Imports memory of this process as readable and writable buffers of a CPU device.

DLPack is no substitute: kernels may write to its buffers but not discard their contents, so `local-sync` rejects the
fills and copies that some kernels begin or end with. IREE does not check the alignment of imported memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import iree.runtime as rt

from dispatch_profiler.operations import ElementType
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import HAL_TYPES

_MEMORY = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
_USAGE = rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING


def host_views(device: IreeDevice, shape: Sequence[int], type_: ElementType) -> Callable[[int], Any]:
    """A function: address -> buffer view of the dense tensor at this address.

    The address must be a multiple of 64, and the caller keeps the tensor alive.
    """
    at = (ctypes.c_char * (math.prod(shape) * type_.bytes)).from_address
    import_memory, new_view = device.hal.allocator.import_host_allocation, rt.HalBufferView
    extents, element_type, memory, usage = list(shape), HAL_TYPES[type_.name], _MEMORY, _USAGE
    return lambda address: new_view(import_memory(at(address), memory, usage), extents, element_type)

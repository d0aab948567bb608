"""Memory of this process as buffers of a CPU device, for reading and writing.

DLPack passes memory that kernels may write to, but not discard: `local-sync` then rejects the fills and copies that some
kernels begin or end with. IREE does not check the alignment of memory that is passed in this way.
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
    """A function: address -> buffer view of the dense tensor there, which the caller keeps alive.

    The address is a multiple of 64.
    """
    at = (ctypes.c_char * (math.prod(shape) * type_.bytes)).from_address
    import_memory, new_view = device.hal.allocator.import_host_allocation, rt.HalBufferView
    extents, element_type, memory, usage = list(shape), HAL_TYPES[type_.name], _MEMORY, _USAGE
    return lambda address: new_view(import_memory(at(address), memory, usage), extents, element_type)

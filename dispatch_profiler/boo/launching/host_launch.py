"""The fastest way to launch a kernel on the CPU: everything that does not depend on addresses is prepared."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import iree.runtime as rt

from dispatch_profiler.boo.aligned import ALIGNMENT
from dispatch_profiler.boo.interface import LaunchSpec
from dispatch_profiler.boo.launching._base import FastLaunch
from dispatch_profiler.boo.launching.loading import LoadedKernel, launch_error
from dispatch_profiler.operations import ElementType
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import HAL_TYPES, IREE_ERRORS

# -- imported memory -------------------------------------------------------------------------------

# Imports memory of this process as readable and writable buffers of a CPU device.
#
# DLPack is no substitute: kernels may write to its buffers but not discard their contents, so `local-sync` rejects the
# fills and copies that some kernels begin or end with. IREE does not check the alignment of imported memory.


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


# -- launches by address ---------------------------------------------------------------------------

#: Errors of IREE and of array libraries for arrays whose memory cannot be shared.
NOT_SHARED = (*IREE_ERRORS, BufferError, TypeError)
#: (addresses of arguments, then of results) -> whether the kernel was launched: False if an address is unusable. The
#: caller vouches for dense memory of the right size and type at the addresses, which stays allocated.
LaunchAt = Callable[[tuple[int, ...]], bool]
#: Number of argument lists that are kept: the arrays of a loop have the same few addresses again and again.
KEPT_LISTS = 256


@dataclass(frozen=True)
class HostArrays:
    """The functions of an array library that a launch by address needs.

    `addresses_of` maps the arguments to their addresses, and `outs_of` maps `out` to a list of its arrays; both return
    None for arrays that need a copy or an error message. `allocate` has a function for each result that returns a new
    array. `note_write` tells the library that a kernel wrote to a caller's array.
    """

    addresses_of: Callable[[tuple[Any, ...]], list[int] | None]
    allocate: Sequence[Callable[[], Any]]
    outs_of: Callable[[Any], list[Any] | None]
    address_of: Callable[[Any], int]
    note_write: Callable[[Any], None]


def launch_by_address(kernel: LoadedKernel, spec: LaunchSpec, arrays: HostArrays) -> FastLaunch:
    """A fast launch on arrays of a library, by their addresses."""
    addresses_of, allocate, outs_of = arrays.addresses_of, arrays.allocate, arrays.outs_of
    address_of, note_write = arrays.address_of, arrays.note_write
    launch_there, is_single = launch_at(kernel, spec), len(spec.results) == 1

    def launch(arguments: tuple[Any, ...], out: Any) -> Any:
        try:
            addresses = addresses_of(arguments)
            if addresses is None:
                return None
            returned = [new() for new in allocate] if out is None else outs_of(out)
            if returned is None:
                return None
            for array in returned:
                addresses.append(address_of(array))
        except NOT_SHARED:
            return None
        if not launch_there(tuple(addresses)):
            return None
        if out is not None:
            for array in returned:
                note_write(array)
            return out
        return returned[0] if is_single else tuple(returned)

    return launch


def launch_at(kernel: LoadedKernel, spec: LaunchSpec) -> LaunchAt:
    """A launch by addresses. Keeps argument lists for the next calls: they do not own the memory of the arrays."""
    invoke, entry, name, results = kernel.invoke, kernel.entry, kernel.name, len(spec.results)
    lists: dict[tuple[int, ...], Any] = {}
    new_list, order, are_usable = rt.VmVariantList, argument_order(spec), address_check(spec)
    views = [
        host_views(kernel.device, each.kernel_shape, each.type) for each in (*spec.arguments, *spec.results)
    ]

    def add_list(addresses: tuple[int, ...]) -> Any:
        """The kernel's argument list, also added to `lists`; None for unusable addresses."""
        if not are_usable(addresses):
            return None
        passed = new_list(len(order))
        for number in order:
            passed.push_ref(views[number](addresses[number]))
        if len(lists) >= KEPT_LISTS:
            lists.clear()
        lists[addresses] = passed
        return passed

    def launch(addresses: tuple[int, ...]) -> bool:
        passed = lists.get(addresses)
        if passed is None and (passed := add_list(addresses)) is None:
            return False
        try:
            invoke(entry, passed, new_list(results))
        except IREE_ERRORS as error:
            raise launch_error(name, error) from error
        return True

    return launch


def argument_order(spec: LaunchSpec) -> list[int]:
    """Indices into the arguments and results of a launch, in the order of the kernel's arguments."""
    count, tensors = len(spec.arguments), (*spec.arguments, *spec.results)
    return sorted(range(len(tensors)), key=lambda number: (number >= count, tensors[number].position))


def address_check(spec: LaunchSpec) -> Callable[[Sequence[int]], bool]:
    """A check of the addresses of arguments and results.

    It returns True if all addresses are aligned and no result shares memory with an argument or another result.
    """
    sizes = [math.prod(each.shape) * each.type.bytes for each in (*spec.arguments, *spec.results)]
    count = len(spec.arguments)

    def are_usable(addresses: Sequence[int]) -> bool:
        if any(not address or address % ALIGNMENT for address in addresses):
            return False
        spans = [(address, address + size) for address, size in zip(addresses, sizes, strict=True)]
        return not any(
            start < other_end and other < end
            for number, (start, end) in enumerate(spans[count:], start=count)
            for other, other_end in spans[:number]
        )

    return are_usable

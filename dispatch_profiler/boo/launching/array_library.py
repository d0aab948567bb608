"""What launches need of an array library, such as torch, and launches on the memory of its arrays by address."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import iree.runtime as rt

from dispatch_profiler.boo.interface import ALIGNMENT, LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching.loading import LoadedKernel, launch_error
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import ElementType
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import HAL_TYPES, IREE_ERRORS, IreeDevice

# -- the library -----------------------------------------------------------------------------------

# One object for each library and device.


#: (arguments, `out`) -> the launch's returned value; None if the arguments need a check, a copy or an error message.
FastLaunch = Callable[[tuple[Any, ...], Any], Any]


class ArrayLibrary(Protocol):
    """Arrays of one library on one device."""

    @property
    def uri(self) -> DeviceUri:
        """The device of the arrays; `local-task` for the CPU."""

    @property
    def expects_copies(self) -> bool:
        """Whether most arrays of the library have to be copied: copies are logged at INFO, otherwise at WARNING."""

    def check(self, array: Any, spec: TensorSpec, what: str) -> None:
        """Raise UsageError unless `array`, called `what`, is on this device with the type and shape of `spec`."""

    def check_writable(self, array: Any, what: str) -> None:
        """Raise UsageError if `array` cannot be written to."""

    def obstacle(self, array: Any) -> str:
        """Why the device cannot use the memory of a checked array; empty if it can."""

    def span(self, array: Any) -> tuple[int, int]:
        """The first address of a dense array's memory, and the first address after it."""

    def empty(self, spec: TensorSpec) -> Any:
        """An uninitialized array for `spec` whose memory the device can use."""

    def copy(self, source: Any, target: Any) -> None:
        """Copy the elements of `source` to `target`, an array of the same shape and type."""

    def note_write(self, array: Any) -> None:
        """Tell the library that a kernel wrote to a caller's array."""

    def buffer_view(self, device: IreeDevice, array: Any, spec: TensorSpec) -> Any:
        """A buffer view of an array without obstacles, sharing its memory, in the kernel's shape."""

    def before_launch(self) -> None:
        """Wait until the contents of the arrays are complete."""

    def launch(self, program: CudaProgram, arrays: Sequence[Any]) -> None:
        """Launch on the library's current stream, without waiting. `arrays` are in the order of `program`."""

    def fast_launch(self, kernel: LoadedKernel | CudaProgram, spec: LaunchSpec) -> FastLaunch | None:
        """A faster way to launch `kernel` with arrays of this library and device; None if there is no faster way."""


def check_matches(what: str, spec: TensorSpec, got: str, shape: tuple[int, ...], hint: str) -> None:
    """Raise UsageError unless the type and shape of an array are as in `spec`.

    `got` is IREE's name of the type, or the library's if IREE has none. `hint` says how to convert the type.
    """
    if (got, shape) != (spec.type.name, spec.shape):
        raise UsageError(
            f"{what}: expected {spec.type.name} {spec.shape}, but got {got} {shape}",
            hint=hint if got != spec.type.name else "",
        )


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

# The fastest way to launch a kernel on the CPU: everything that does not depend on addresses is prepared.

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

"""The shortest ways to launch a kernel with torch tensors: everything that does not depend on them is prepared.

They return None for tensors that need a copy or an error message: see `TorchTensors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import iree.runtime as rt
import torch

from dispatch_profiler.boo.aligned import ALIGNMENT
from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching._base import FastLaunch
from dispatch_profiler.boo.launching.host_memory import host_views
from dispatch_profiler.boo.launching.loaded import LoadedKernel, launch_error
from dispatch_profiler.boo.launching.torch_types import PLAIN, TYPES, Tensor, note_write, to_dlpack
from dispatch_profiler.runtime.iree_buffers import HAL_TYPES, IREE_ERRORS

#: What torch and IREE raise for a tensor whose memory cannot be shared.
_NOT_SHARED = (*IREE_ERRORS, BufferError, TypeError)
#: Up to this size, a new result imitates a tensor, which is faster than to pass a shape and a type.
_SMALL_BYTES = 2**16
#: Argument lists that are kept: the tensors of a loop have the same few addresses again and again.
_KEPT_LISTS = 256

#: Shape and type of a tensor.
_Expected = tuple[tuple[int, ...], torch.dtype]


def host_launch(kernel: LoadedKernel, spec: LaunchSpec) -> FastLaunch:
    """Launches on the CPU. Argument lists refer to memory by its address, and own none: they are used again."""
    expected, written = expected_of(spec.arguments), expected_of(spec.results)
    allocate = [allocation(each, torch.device("cpu")) for each in spec.results]
    invoke, entry, name, plain = kernel.invoke, kernel.entry, kernel.name, PLAIN
    count, results_count, is_single = len(expected), len(written), len(written) == 1
    lists: dict[tuple[int, ...], Any] = {}
    new_list, add_list = rt.VmVariantList, _list_maker(kernel, spec, lists)

    def launch(arguments: tuple[Any, ...], out: Any) -> Any:
        if len(arguments) != count:
            return None
        addresses = []
        try:
            # As `_match`, but without a call.
            for tensor, (shape, dtype) in zip(arguments, expected, strict=True):
                if (
                    type(tensor) not in plain
                    or tensor.dtype is not dtype
                    or tensor.shape != shape
                    or not tensor.is_cpu
                    or not tensor.is_contiguous()
                    or tensor.is_neg()
                ):
                    return None
                addresses.append(tensor.data_ptr())
            returned = [new() for new in allocate] if out is None else usable_outs(out, written, -1)
            if returned is None:
                return None
            for tensor in returned:
                addresses.append(tensor.data_ptr())
        except _NOT_SHARED:
            return None
        key = tuple(addresses)
        passed = lists.get(key)
        if passed is None and (passed := add_list(key)) is None:
            return None
        try:
            invoke(entry, passed, new_list(results_count))
        except IREE_ERRORS as error:
            raise launch_error(name, error) from error
        if out is not None:
            for tensor in returned:
                note_write(tensor)
            return out
        return returned[0] if is_single else tuple(returned)

    return launch


def gpu_launch(
    kernel: LoadedKernel, spec: LaunchSpec, device: torch.device, wait: Callable[[], None]
) -> FastLaunch:
    """Launches on a GPU through IREE's runtime. `wait` returns when the contents of the tensors are complete."""
    expected, written, index = expected_of(spec.arguments), expected_of(spec.results), device.index
    allocate = [allocation(each, device) for each in spec.results]
    share = [_sharing_on_gpu(kernel, each) for each in (*spec.arguments, *spec.results)]
    order, are_usable, is_single = argument_order(spec), address_check(spec), len(written) == 1

    def launch(arguments: tuple[Any, ...], out: Any) -> Any:
        try:
            if not _match(arguments, expected, index):
                return None
            returned = [new() for new in allocate] if out is None else usable_outs(out, written, index)
            if returned is None:
                return None
            tensors = (*arguments, *returned)
            if not are_usable([tensor.data_ptr() for tensor in tensors]):
                return None
            passed = rt.VmVariantList(len(order))
            for number in order:
                passed.push_ref(share[number](tensors[number]))
        except _NOT_SHARED:
            return None
        wait()
        kernel.run(passed)
        if out is not None:
            for tensor in returned:
                note_write(tensor)
            return out
        return returned[0] if is_single else tuple(returned)

    return launch


def argument_order(spec: LaunchSpec) -> list[int]:
    """Indices into arguments and results of a launch, in the order of the kernel's arguments."""
    count, tensors = len(spec.arguments), (*spec.arguments, *spec.results)
    return sorted(range(len(tensors)), key=lambda number: (number >= count, tensors[number].position))


def expected_of(specs: Iterable[TensorSpec]) -> list[_Expected]:
    """Shape and type of each tensor."""
    return [(each.shape, TYPES[each.type.name]) for each in specs]


def _match(tensors: Sequence[Any], expected: Sequence[_Expected], index: int) -> bool:
    """Whether `tensors` are plain and dense, of these shapes and types, on the device with this index; -1 is the CPU."""
    if len(tensors) != len(expected):
        return False
    return all(
        type(tensor) in PLAIN
        and tensor.dtype is dtype
        and tensor.shape == shape
        and (tensor.is_cpu if index < 0 else tensor.get_device() == index)
        and tensor.is_contiguous()
        and not tensor.is_neg()
        for tensor, (shape, dtype) in zip(tensors, expected, strict=True)
    )


def usable_outs(out: Any, expected: Sequence[_Expected], index: int) -> list[Tensor] | None:
    """`out` as a list; None unless kernels can write to these tensors, given that their addresses are usable."""
    outs = [out] if len(expected) == 1 else list(out)
    return outs if _match(outs, expected, index) and not any(each.requires_grad for each in outs) else None


def allocation(spec: TensorSpec, device: torch.device) -> Callable[[], Tensor]:
    """What returns a new tensor for a result."""
    empty = partial(torch.empty, spec.shape, dtype=TYPES[spec.type.name], device=device)
    is_small = math.prod(spec.shape) * spec.type.bytes <= _SMALL_BYTES
    return partial(torch.empty_like, empty()) if is_small else empty


def address_check(spec: LaunchSpec) -> Callable[[Sequence[int]], bool]:
    """Addresses of arguments and results -> whether all are aligned, and results share no memory with the others."""
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


def _list_maker(
    kernel: LoadedKernel, spec: LaunchSpec, lists: dict[tuple[int, ...], Any]
) -> Callable[[tuple[int, ...]], Any]:
    """Addresses of arguments and results on the CPU -> the kernel's arguments, also in `lists`; None if unusable."""
    order, are_usable = argument_order(spec), address_check(spec)
    views = [
        host_views(kernel.device, each.kernel_shape, each.type) for each in (*spec.arguments, *spec.results)
    ]

    def make_list(addresses: tuple[int, ...]) -> Any:
        if not are_usable(addresses):
            return None
        passed = rt.VmVariantList(len(order))
        for number in order:
            passed.push_ref(views[number](addresses[number]))
        if len(lists) >= _KEPT_LISTS:
            lists.clear()
        lists[addresses] = passed
        return passed

    return make_list


def _sharing_on_gpu(kernel: LoadedKernel, spec: TensorSpec) -> Callable[[Tensor], Any]:
    """Aligned, dense tensor -> buffer view."""
    from_capsule = kernel.device.hal.from_dlpack_capsule
    if spec.shape == spec.kernel_shape:
        return lambda tensor: from_capsule(to_dlpack(tensor))
    shape, type_ = list(spec.kernel_shape), HAL_TYPES[spec.type.name]
    return lambda tensor: rt.HalBufferView(from_capsule(to_dlpack(tensor)).get_buffer(), shape, type_)

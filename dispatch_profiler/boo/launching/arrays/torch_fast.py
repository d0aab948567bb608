"""The fastest ways to launch a kernel on torch tensors: everything that does not depend on the tensors is prepared.

Launches return None for tensors that need a copy or an error message, which `TorchTensors` then makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import iree.runtime as rt
import torch

from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching._base import FastLaunch
from dispatch_profiler.boo.launching.host.host_launch import (
    NOT_SHARED,
    HostArrays,
    address_check,
    argument_order,
    launch_by_address,
)
from dispatch_profiler.boo.launching.loaded import LoadedKernel
from dispatch_profiler.boo.launching.torch_types import PLAIN, TYPES, Tensor, note_write, to_dlpack
from dispatch_profiler.runtime.iree_buffers import HAL_TYPES

#: New results up to this size are made with `torch.empty_like`, which is faster than passing a shape and a type.
_SMALL_BYTES = 2**16

#: Shape and dtype of a tensor.
_Expected = tuple[tuple[int, ...], torch.dtype]


def host_launch(kernel: LoadedKernel, spec: LaunchSpec) -> FastLaunch:
    """A fast launch on the CPU."""
    expected, written, plain, count = (
        expected_of(spec.arguments),
        expected_of(spec.results),
        PLAIN,
        len(spec.arguments),
    )
    allocate = [allocation(each, torch.device("cpu")) for each in spec.results]

    def addresses_of(arguments: tuple[Any, ...]) -> list[int] | None:
        if len(arguments) != count:
            return None
        addresses = []
        # `matches`, written out to save a call.
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
        return addresses

    def outs_of(out: Any) -> list[Tensor] | None:
        return usable_outs(out, written, -1)

    return launch_by_address(
        kernel, spec, HostArrays(addresses_of, allocate, outs_of, torch.Tensor.data_ptr, note_write)
    )


def gpu_launch(
    kernel: LoadedKernel, spec: LaunchSpec, device: torch.device, wait: Callable[[], None]
) -> FastLaunch:
    """A fast launch on a GPU through IREE's runtime. `wait` returns when the contents of the tensors are complete."""
    expected, written, index = expected_of(spec.arguments), expected_of(spec.results), device.index
    allocate = [allocation(each, device) for each in spec.results]
    share = [_sharing_on_gpu(kernel, each) for each in (*spec.arguments, *spec.results)]
    order, are_usable, is_single = argument_order(spec), address_check(spec), len(written) == 1

    def launch(arguments: tuple[Any, ...], out: Any) -> Any:
        try:
            if not matches(arguments, expected, index):
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
        except NOT_SHARED:
            return None
        wait()
        kernel.run(passed)
        if out is not None:
            for tensor in returned:
                note_write(tensor)
            return out
        return returned[0] if is_single else tuple(returned)

    return launch


def expected_of(specs: Iterable[TensorSpec]) -> list[_Expected]:
    """Shape and dtype of each tensor."""
    return [(each.shape, TYPES[each.type.name]) for each in specs]


def matches(tensors: Sequence[Any], expected: Sequence[_Expected], index: int) -> bool:
    """Whether `tensors` are plain, dense, on device `index` (-1: CPU), and have the expected shapes and dtypes."""
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
    """`out` as a list; None if kernels cannot write to these tensors. Does not check their addresses."""
    outs = [out] if len(expected) == 1 else list(out)
    return outs if matches(outs, expected, index) and not any(each.requires_grad for each in outs) else None


def allocation(
    spec: TensorSpec, device: torch.device, order: tuple[int, ...] | None = None
) -> Callable[[], Tensor]:
    """A function that returns a new tensor for a result: with the memory of `spec`, and axes permuted by `order`."""
    options: Any = {"dtype": TYPES[spec.type.name], "device": device}
    empty = partial(torch.empty, spec.shape, **options)
    if order is not None:
        like = torch.empty(spec.shape, device="meta").permute(order)
        empty = partial(torch.empty_strided, tuple(like.shape), like.stride(), **options)
    is_small = math.prod(spec.shape) * spec.type.bytes <= _SMALL_BYTES
    return partial(torch.empty_like, empty()) if is_small else empty


def _sharing_on_gpu(kernel: LoadedKernel, spec: TensorSpec) -> Callable[[Tensor], Any]:
    """A function: aligned, dense tensor -> buffer view."""
    from_capsule = kernel.device.hal.from_dlpack_capsule
    if spec.shape == spec.kernel_shape:
        return lambda tensor: from_capsule(to_dlpack(tensor))
    shape, type_ = list(spec.kernel_shape), HAL_TYPES[spec.type.name]
    return lambda tensor: rt.HalBufferView(from_capsule(to_dlpack(tensor)).get_buffer(), shape, type_)

"""torch tensors in launches, on the CPU and on CUDA devices.

A launch is no part of autograd: it reads tensors that require grad, and its results do not require grad.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import iree.runtime as rt
import torch
import torch.utils.dlpack

from dispatch_profiler.boo.aligned import ALIGNMENT
from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching._base import FastLaunch, check_matches
from dispatch_profiler.boo.launching.drivers import TASK
from dispatch_profiler.boo.launching.host_memory import host_views
from dispatch_profiler.boo.launching.loaded import LoadedKernel, launch_error
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import HAL_TYPES, IREE_ERRORS

Tensor = Any
#: torch as Any, because parts of it are untyped.
_torch: Any = torch
to_dlpack = _torch.utils.dlpack.to_dlpack
#: Our names of element types -> torch's.
TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "i8": torch.int8,
    "i32": torch.int32,
}
_NAMES = {dtype: name for name, dtype in TYPES.items()}
#: Types that DLPack passes without help.
_SHARED = frozenset(TYPES) - {"f8E4M3FN"}
#: Classes of tensors that have memory of their own. Others may stand for several tensors, or for none.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
#: Up to this size, a result has a tensor to imitate, which takes as much memory.
_SMALL_BYTES = 2**16
#: What IREE and torch raise for a tensor that they cannot share.
_NOT_SHARED = (*IREE_ERRORS, BufferError, TypeError)


class TorchTensors:
    """See `ArrayLibrary`."""

    expects_copies = False

    def __init__(self, device: torch.device) -> None:
        """Raises UsageError if launches do not support `device`."""
        if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip):
            kind = "ROCm devices" if device.type == "cuda" else str(device)
            raise UsageError(
                f"launches take tensors on the CPU and on CUDA devices, but these are on {kind}",
                hint="move them: tensor.cpu()",
            )
        self._device = device

    @property
    def uri(self) -> DeviceUri:
        """See `ArrayLibrary.uri`."""
        return TASK if self._device.type == "cpu" else DeviceUri("cuda", str(self._device.index))

    def check(self, array: Tensor, spec: TensorSpec, what: str) -> None:
        """See `ArrayLibrary.check`."""
        if array.device != self._device:
            raise UsageError(
                f"{what} is on {array.device}, but the first argument is on {self._device}",
                hint="move all tensors to one device",
            )
        dtype = TYPES[spec.type.name]
        got = _NAMES.get(array.dtype, str(array.dtype).removeprefix("torch."))
        check_matches(what, spec, got, tuple(array.shape), f"convert it: tensor.to({dtype})")
        if type(array).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise UsageError(
                f"{what} is a {type(array).__name__}, which has no memory that a kernel could use",
                hint="pass a plain tensor",
            )
        if array.layout is not torch.strided:
            raise UsageError(f"{what} is not dense ({array.layout})", hint="convert it: tensor.to_dense()")

    def check_writable(self, array: Tensor, what: str) -> None:
        """See `ArrayLibrary.check_writable`."""
        if array.requires_grad:
            raise UsageError(
                f"{what} requires grad, but launches do not support autograd", hint="pass tensor.detach()"
            )

    def obstacle(self, array: Tensor) -> str:
        """See `ArrayLibrary.obstacle`."""
        if not array.is_contiguous():
            return "it is not dense and row major"
        if array.is_neg():
            return "it is the negative of its memory"
        return "" if self.span(array)[0] % ALIGNMENT == 0 else f"it is not aligned to {ALIGNMENT} bytes"

    def span(self, array: Tensor) -> tuple[int, int]:
        """See `ArrayLibrary.span`."""
        start = array.data_ptr()
        return start, start + array.nbytes

    def empty(self, spec: TensorSpec) -> Tensor:
        """See `ArrayLibrary.empty`."""
        return torch.empty(spec.shape, dtype=TYPES[spec.type.name], device=self._device)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """See `ArrayLibrary.copy`."""
        target.copy_(source.detach())

    def buffer_view(self, device: IreeDevice, array: Tensor, spec: TensorSpec) -> Any:
        """See `ArrayLibrary.buffer_view`."""
        if self._device.type == "cpu":
            return host_views(device, spec.kernel_shape, spec.type)(array.data_ptr())
        flat = array.detach().reshape(-1)
        bits = flat if spec.type.name in _SHARED else flat.view(torch.uint8)
        view = device.hal.from_dlpack_capsule(to_dlpack(bits))
        return rt.HalBufferView(view.get_buffer(), list(spec.kernel_shape), HAL_TYPES[spec.type.name])

    def before_launch(self) -> None:
        """See `ArrayLibrary.before_launch`."""
        wait = self._wait
        if wait is not None:
            wait()

    @property
    def _wait(self) -> Callable[[], None] | None:
        """Waits for torch's current stream, which IREE cannot launch on; None on the CPU."""
        device = self._device
        if device.type == "cpu":
            return None
        current_stream = torch.cuda.current_stream
        return lambda: current_stream(device).synchronize()

    def fast_launch(self, kernel: LoadedKernel, spec: LaunchSpec) -> FastLaunch | None:
        """See `ArrayLibrary.fast_launch`: on the CPU, every microsecond of it counts."""
        if any(each.type.name not in _SHARED for each in (*spec.arguments, *spec.results)):
            return None
        return _fast_launch(kernel, spec, self._device, self._wait)


def _fast_launch(
    kernel: LoadedKernel, spec: LaunchSpec, device: torch.device, wait: Callable[[], None] | None
) -> FastLaunch:
    """All that does not depend on the tensors is done here, once.

    On the CPU, IREE rejects arguments that are strided or not aligned.
    """
    invoke, entry, name = kernel.invoke, kernel.entry, kernel.name
    index = -1 if device.index is None else device.index
    operands = [(spec.arguments.index(each), *_expected(each)) for each in _in_order(spec.arguments)]
    results = [(spec.results.index(each), *_expected(each)) for each in _in_order(spec.results)]
    shares = [_sharing(kernel.device, each, is_gpu=wait is not None) for each in _in_order(spec.results)]
    allocate = [_allocation(each, device) for each in spec.results]
    operands_count, results_count, is_single = len(operands), len(results), len(results) == 1
    size, is_gpu, new_list, plain = operands_count + results_count, wait is not None, rt.VmVariantList, _PLAIN
    from_capsule, buffer_view = kernel.device.hal.from_dlpack_capsule, rt.HalBufferView

    def launch(arguments: tuple[Any, ...], out: Any) -> Any:
        if len(arguments) != operands_count:
            return None
        passed = new_list(size)
        push = passed.push_ref
        try:
            for position, shape, dtype, view_as in operands:
                tensor = arguments[position]
                if (
                    type(tensor) not in plain
                    or tensor.dtype is not dtype
                    or tensor.shape != shape
                    or tensor.get_device() != index
                    or (is_gpu and tensor.data_ptr() % ALIGNMENT)
                ):
                    return None
                view = from_capsule(to_dlpack(tensor))
                push(view if view_as is None else buffer_view(view.get_buffer(), *view_as))
            if out is None:
                returned = [new() for new in allocate]
            else:
                returned = [out] if is_single else list(out)
                if not _can_be_written(returned, results, index, arguments):
                    return None
            for share, (position, *_) in zip(shares, results, strict=True):
                push(share(returned[position]))
        except _NOT_SHARED:
            return None
        if wait is not None:
            wait()
        try:
            invoke(entry, passed, new_list(results_count))
        except IREE_ERRORS as error:
            raise launch_error(name, error) from error
        if out is not None:
            return out
        return returned[0] if is_single else tuple(returned)

    return launch


def _allocation(spec: TensorSpec, device: torch.device) -> Callable[[], Tensor]:
    """What returns a new tensor for a result. A small tensor to imitate is faster than a shape and a type."""
    empty = partial(torch.empty, spec.shape, dtype=TYPES[spec.type.name], device=device)
    is_small = math.prod(spec.shape) * spec.type.bytes <= _SMALL_BYTES
    return partial(torch.empty_like, empty()) if is_small else empty


def _sharing(device: IreeDevice, spec: TensorSpec, is_gpu: bool) -> Callable[[Tensor], Any]:
    """Tensor of a result, aligned and dense -> buffer view."""
    if is_gpu:
        from_capsule = device.hal.from_dlpack_capsule
        shape, type_ = list(spec.kernel_shape), HAL_TYPES[spec.type.name]
        return lambda tensor: rt.HalBufferView(from_capsule(to_dlpack(tensor)).get_buffer(), shape, type_)
    view_at = host_views(device, spec.kernel_shape, spec.type)
    return lambda tensor: view_at(tensor.data_ptr())


def _in_order(specs: tuple[TensorSpec, ...]) -> list[TensorSpec]:
    """In the order of the kernel's arguments."""
    return sorted(specs, key=lambda each: each.position)


def _expected(spec: TensorSpec) -> tuple[Any, ...]:
    """Shape and type of a tensor, and the kernel's shape and type if the shape is another."""
    is_same = spec.shape == spec.kernel_shape
    view_as = None if is_same else (list(spec.kernel_shape), HAL_TYPES[spec.type.name])
    return spec.shape, TYPES[spec.type.name], view_as


def _can_be_written(outs: list[Any], results: list[Any], index: int, arguments: tuple[Any, ...]) -> bool:
    """Whether a kernel can write to `outs`: dense, aligned, and no memory shared with each other or an argument."""
    if len(outs) != len(results):
        return False
    for position, shape, dtype, _ in results:
        tensor = outs[position]
        if (
            type(tensor) not in _PLAIN
            or tensor.dtype is not dtype
            or tensor.shape != shape
            or tensor.get_device() != index
            or tensor.requires_grad
            or not tensor.is_contiguous()
            or tensor.data_ptr() % ALIGNMENT
        ):
            return False
    starts = [(tensor.data_ptr(), tensor.nbytes) for tensor in (*outs, *arguments)]
    for number, (start, size) in enumerate(starts[: len(outs)]):
        if any(start < other + length and other < start + size for other, length in starts[number + 1 :]):
            return False
    return True

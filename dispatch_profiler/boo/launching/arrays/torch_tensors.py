"""Launches on torch tensors, on the CPU and on CUDA devices.

Autograd does not see launches: they read tensors that require grad, but their results do not require grad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import iree.runtime as rt
import torch

from dispatch_profiler.boo.aligned import ALIGNMENT
from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching._base import FastLaunch, check_matches
from dispatch_profiler.boo.launching.arrays.torch_fast import gpu_launch, host_launch
from dispatch_profiler.boo.launching.arrays.torch_streams import on_stream, stream_launch
from dispatch_profiler.boo.launching.drivers import TASK
from dispatch_profiler.boo.launching.host.host_memory import host_views
from dispatch_profiler.boo.launching.loaded import LoadedKernel
from dispatch_profiler.boo.launching.torch_types import (
    NAMES,
    SHARED,
    TYPES,
    Tensor,
    note_write,
    to_dlpack,
)
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import HAL_TYPES


class TorchTensors:
    """See `ArrayLibrary`."""

    expects_copies = False

    def __init__(self, device: torch.device) -> None:
        """Raises UsageError if launches do not support `device`, and TargetError for CUDA in a forked process."""
        if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip):
            kind = "ROCm devices" if device.type == "cuda" else str(device)
            raise UsageError(
                f"launches take tensors on the CPU and on CUDA devices, but these are on {kind}",
                hint="move them: tensor.cpu()",
            )
        if device.type == "cuda" and _is_forked():
            raise TargetError(
                "torch used CUDA before this process was forked, so this process cannot use CUDA",
                hint='start processes with the method "spawn": multiprocessing.set_start_method("spawn")',
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
        got = NAMES.get(array.dtype, str(array.dtype).removeprefix("torch."))
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
        if any(
            stride == 0 and extent > 1 for stride, extent in zip(array.stride(), array.shape, strict=True)
        ):
            raise UsageError(
                f"{what} is expanded: several of its elements share memory", hint="pass tensor.clone()"
            )

    def obstacle(self, array: Tensor) -> str:
        """See `ArrayLibrary.obstacle`."""
        if not array.is_contiguous():
            return "it is not dense and row major"
        if array.is_neg():
            return "its negation is lazy (Tensor.is_neg)"
        return "" if self.span(array)[0] % ALIGNMENT == 0 else f"it is not aligned to {ALIGNMENT} bytes"

    def span(self, array: Tensor) -> tuple[int, int]:
        """See `ArrayLibrary.span`. Raises UsageError for a tensor without memory, such as a tensor in `torch.vmap`."""
        try:
            start = array.data_ptr()
        except RuntimeError as error:
            raise UsageError(
                "a tensor has no memory that a kernel could use", hint="pass a plain tensor"
            ) from error
        return start, start + array.nbytes

    def empty(self, spec: TensorSpec) -> Tensor:
        """See `ArrayLibrary.empty`."""
        return torch.empty(spec.shape, dtype=TYPES[spec.type.name], device=self._device)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """See `ArrayLibrary.copy`."""
        target.copy_(source.detach())

    def note_write(self, array: Tensor) -> None:
        """See `ArrayLibrary.note_write`."""
        note_write(array)

    def buffer_view(self, device: IreeDevice, array: Tensor, spec: TensorSpec) -> Any:
        """See `ArrayLibrary.buffer_view`."""
        if self._device.type == "cpu":
            return host_views(device, spec.kernel_shape, spec.type)(array.data_ptr())
        flat = array.detach().reshape(-1)
        bits = flat if spec.type.name in SHARED else flat.view(torch.uint8)
        view = device.hal.from_dlpack_capsule(to_dlpack(bits))
        return rt.HalBufferView(view.get_buffer(), list(spec.kernel_shape), HAL_TYPES[spec.type.name])

    def before_launch(self) -> None:
        """See `ArrayLibrary.before_launch`: IREE's runtime cannot launch on torch's stream."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def launch(self, program: CudaProgram, arrays: Sequence[Tensor]) -> None:
        """See `ArrayLibrary.launch`."""
        on_stream(program, self._device)([each.data_ptr() for each in arrays])

    def fast_launch(self, kernel: LoadedKernel | CudaProgram, spec: LaunchSpec) -> FastLaunch | None:
        """See `ArrayLibrary.fast_launch`."""
        if isinstance(kernel, CudaProgram):
            return stream_launch(kernel, spec, self._device)
        if self._device.type == "cpu":
            return host_launch(kernel, spec)
        if any(each.type.name not in SHARED for each in (*spec.arguments, *spec.results)):
            return None
        return gpu_launch(kernel, spec, self._device, self.before_launch)


def _is_forked() -> bool:
    """Whether this process was forked after torch had used CUDA."""
    asked: Any = getattr(torch.cuda, "_is_in_bad_fork", None)
    return asked is not None and bool(asked())

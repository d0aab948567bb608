"""Launches on torch tensors, on the CPU and on CUDA devices.

Autograd does not see launches: they read tensors that require grad, but their results do not require grad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import iree.runtime as rt
import torch

from dispatch_profiler.boo.interface import ALIGNMENT, LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching.array_library import (
    NOT_SHARED,
    FastLaunch,
    HostArrays,
    address_check,
    argument_order,
    check_matches,
    host_views,
    launch_by_address,
)
from dispatch_profiler.boo.launching.loading import TASK, LoadedKernel
from dispatch_profiler.boo.launching.torch_types import (
    NAMES,
    PLAIN,
    SHARED,
    TYPES,
    Tensor,
    note_write,
    to_dlpack,
)
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import HAL_TYPES, IreeDevice

# -- fast launches ---------------------------------------------------------------------------------

# The fastest ways to launch a kernel on torch tensors: everything that does not depend on the tensors is prepared.
#
# Launches return None for tensors that need a copy or an error message, which `TorchTensors` then makes.


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

    return launch_by_address(
        kernel,
        spec,
        HostArrays(
            addresses_of,
            allocate,
            lambda out: usable_outs(out, written, -1),
            torch.Tensor.data_ptr,
            note_write,
        ),
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
    # Not on a GPU: if the first call is captured, what is kept would be in the memory of a CUDA graph.
    is_small = device.type == "cpu" and math.prod(spec.shape) * spec.type.bytes <= _SMALL_BYTES
    return partial(torch.empty_like, empty()) if is_small else empty


def _sharing_on_gpu(kernel: LoadedKernel, spec: TensorSpec) -> Callable[[Tensor], Any]:
    """A function: aligned, dense tensor -> buffer view."""
    from_capsule = kernel.device.hal.from_dlpack_capsule
    if spec.shape == spec.kernel_shape:
        return lambda tensor: from_capsule(to_dlpack(tensor))
    shape, type_ = list(spec.kernel_shape), HAL_TYPES[spec.type.name]
    return lambda tensor: rt.HalBufferView(from_capsule(to_dlpack(tensor)).get_buffer(), shape, type_)


# -- launches on a stream --------------------------------------------------------------------------

# Launches on torch's current stream of a CUDA device. Like torch's operators, they do not wait for the device.
#
# torch also allocates temporary memory, so that a stream uses it in order and a CUDA graph keeps it.


_torch: Any = torch


#: Index of a device -> handle of the current stream. torch's private function takes a tenth of the public one's time.
current_stream: Callable[[int], int] = getattr(
    _torch._C, "_cuda_getCurrentRawStream", lambda index: int(_torch.cuda.current_stream(index).cuda_stream)
)


def index_of(device: torch.device) -> int:
    """The index as in `Tensor.get_device`: -1 for the CPU, which stands in for a GPU in tests."""
    return -1 if device.type == "cpu" else device.index


def on_stream(program: CudaProgram, device: torch.device) -> Callable[[Sequence[int]], None]:
    """A function that launches `program` on the current stream, given the addresses of operands and results.

    The function raises RunError.
    """
    size, add, stream_of, index = program.transient_bytes, program.launch, current_stream, index_of(device)
    if not size:
        return lambda addresses: add(addresses, stream_of(index))
    allocate = partial(torch.empty, size, dtype=torch.uint8, device=device)

    def launch(addresses: Sequence[int]) -> None:
        memory = allocate()  # free for the next user of this stream when this function returns
        add([*addresses, memory.data_ptr()], stream_of(index))

    return launch


def stream_launch(program: CudaProgram, spec: LaunchSpec, device: torch.device) -> FastLaunch:
    """A fast launch, for tensors that need neither a copy nor an error message."""
    expected, written, index = expected_of(spec.arguments), expected_of(spec.results), index_of(device)
    allocate = [allocation(each, device) for each in spec.results]
    order, start, are_usable = argument_order(spec), on_stream(program, device), address_check(spec)
    is_ordered, is_single, count = order == list(range(len(order))), len(written) == 1, len(expected)
    plain, misaligned = PLAIN, ALIGNMENT - 1

    def launch(arguments: tuple[Any, ...], out: Any) -> Any:
        if len(arguments) != count:
            return None
        addresses, bits = [], 0
        try:
            for tensor, (shape, dtype) in zip(arguments, expected, strict=True):
                if (
                    type(tensor) not in plain
                    or tensor.dtype is not dtype
                    or tensor.shape != shape
                    or tensor.get_device() != index
                    or not tensor.is_contiguous()
                    or tensor.is_neg()
                ):
                    return None
                address = tensor.data_ptr()
                bits |= address
                addresses.append(address)
            returned = [new() for new in allocate] if out is None else usable_outs(out, written, index)
            if returned is None or bits & misaligned:
                return None
            for tensor in returned:
                addresses.append(tensor.data_ptr())
        except (RuntimeError, TypeError):
            return None
        # New results share no memory with anything.
        if out is not None and not are_usable(addresses):
            return None
        start(addresses if is_ordered else [addresses[number] for number in order])
        if out is not None:
            for tensor in returned:
                note_write(tensor)
            return out
        return returned[0] if is_single else tuple(returned)

    return launch


# -- the array library -----------------------------------------------------------------------------


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

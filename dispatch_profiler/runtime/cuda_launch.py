"""Launch programs on a CUDA device, through libcuda: in the primary context, which PyTorch uses, and on its streams.

A launch returns when its commands are in the stream. Several threads may launch one program at once.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.dispatches.launch_program import Copy, Fill, KernelCode, LaunchProgram, Run, Span
from dispatch_profiler.errors import TargetError
from dispatch_profiler.runtime._base import RunError
from dispatch_profiler.runtime.cuda_driver import driver_library

#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8
#: CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_LOG_BYTES = 4096
#: CU_STREAM_CAPTURE_MODE_RELAXED: while a stream of this thread is captured, modules may be loaded.
_RELAXED = 2
#: Temporary buffers begin at multiples of this many bytes of one allocation.
_ALIGNMENT = 256

_POINTER, _SIZE = ctypes.c_uint64, ctypes.c_size_t
#: Functions of libcuda that launches call: name -> types of its arguments.
_PROTOTYPES = {
    "cuLaunchKernelEx": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "cuMemsetD8Async": (_POINTER, ctypes.c_ubyte, _SIZE, ctypes.c_void_p),
    "cuMemsetD16Async": (_POINTER, ctypes.c_ushort, _SIZE, ctypes.c_void_p),
    "cuMemsetD32Async": (_POINTER, ctypes.c_uint, _SIZE, ctypes.c_void_p),
    "cuMemcpyDtoDAsync_v2": (_POINTER, _POINTER, _SIZE, ctypes.c_void_p),
    "cuCtxGetCurrent": (ctypes.c_void_p,),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (ctypes.c_void_p,),
}
_FILLS = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class OldDriverError(TargetError):
    """The driver is older than CUDA 11.8."""


@dataclass(frozen=True)
class BufferPlace:
    """Where a buffer is: `offset` bytes after the address with the index `address`."""

    address: int
    offset: int = 0


class CudaProgram:
    """A launch program whose kernels are loaded on one device. They stay loaded for the life of the process."""

    def __init__(self, program: LaunchProgram, vmfb: bytes, ordinal: int, name: str) -> None:
        """`ordinal` is the number of the device, as libcuda counts them. `name` is for messages.

        Raises RunError if the kernels cannot be loaded, OldDriverError, and TargetError if the device cannot be used,
        as in a process that was forked after a launch.
        """
        self.name = name
        self.program = program
        self.driver = driver = _driver_of(ordinal)
        with driver.current(), driver.relaxed_capture():
            modules = [driver.module(vmfb[start : start + size]) for start, size in program.images]
            self.functions = [driver.function(modules[each.image], each) for each in program.kernels]
        self._offsets, self.transient_bytes = offsets_of(program.transients)
        count = len(program.arguments)
        self._sequence = CudaSequence(
            [(self, [BufferPlace(number) for number in range(count)])], BufferPlace(count)
        )

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Add the commands to a stream. Raises RunError, with the name of CUDA's error.

        `addresses` are the addresses of operands and results, followed by the address of `transient_bytes`
        bytes of temporary memory, unless that number is 0; all are multiples of 64. The memory must not be
        used for anything else before the commands have ended. Callers leave the sequence itself as it is.
        """
        self._sequence.launch(addresses, stream)

    def buffers(self, arguments: Sequence[BufferPlace], memory: BufferPlace) -> list[BufferPlace]:
        """The places of all buffers, given the places of the arguments and the `memory` of temporary buffers."""
        return [
            *arguments,
            *(BufferPlace(memory.address, memory.offset + offset) for offset in self._offsets),
        ]


class CudaSequence:
    """Programs of one device that are added to a stream one after another, by one call."""

    def __init__(
        self, programs: Sequence[tuple[CudaProgram, Sequence[BufferPlace]]], memory: BufferPlace
    ) -> None:
        """Each program comes with the places of its operands and results. All use the same temporary `memory`."""
        self._programs, self._memory = programs, memory
        #: Launches that are prepared and not in use: a thread takes one, and returns it.
        self._idle: list[_Launch] = []

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """See `CudaProgram.launch`: places have numbers of `addresses`."""
        try:
            launch = self._idle.pop()
        except IndexError:
            launch = _Launch(self._programs, self._memory)
        launch.start(addresses, stream)
        self._idle.append(launch)


def offsets_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where buffers of these sizes begin in one allocation, and its bytes."""
    found, end = [], 0
    for size in sizes:
        found.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return found, end


class _Launch:
    """A launch whose parameters are written to the same memory each time: libcuda copies them before it returns."""

    def __init__(
        self, programs: Sequence[tuple[CudaProgram, Sequence[BufferPlace]]], memory: BufferPlace
    ) -> None:
        self._driver = programs[0][0].driver
        buffers = [program.buffers(arguments, memory) for program, arguments in programs]
        #: The slots of the pointers that commands take, by the places that they point to.
        self._slots: dict[BufferPlace, int] = {}
        for (program, _), places in zip(programs, buffers, strict=True):
            for span in (each for command in program.program.commands for each in _spans_of(command)):
                self._slots.setdefault(_place_of(span, places), len(self._slots))
        self._sources = [(each.address, each.offset) for each in self._slots]
        self._pointers = (_POINTER * max(1, len(self._slots)))()
        self._pack = struct.Struct(f"{len(self._slots)}Q").pack_into
        self._configs: list[_LaunchConfig] = []
        #: The addresses that the parameters currently hold.
        self._addresses: Sequence[int] | None = None
        self._stream = 0
        self._current = ctypes.c_void_p()
        self._into_current = ctypes.byref(self._current)
        self._calls = [
            (self._call_of(command, program, places), program.name)
            for (program, _), places in zip(programs, buffers, strict=True)
            for command in program.program.commands
        ]

    def start(self, addresses: Sequence[int], stream: int) -> None:
        """See `CudaProgram.launch`."""
        if addresses != self._addresses:
            self._pack(self._pointers, 0, *[addresses[index] + after for index, after in self._sources])
            self._addresses = addresses
        if stream != self._stream:
            for config in self._configs:
                config.stream = stream
            self._stream = stream
        driver = self._driver
        driver.get_current(self._into_current)
        if self._current.value == driver.context:
            self._add(stream)
            return
        with driver.current():  # this thread has not used the device yet, or uses another one
            self._add(stream)

    def _add(self, stream: int) -> None:
        for call, name in self._calls:
            if status := call(stream):
                raise self._driver.error(f"launching {name}", status)

    def _call_of(
        self, command: Run | Fill | Copy, of: CudaProgram, places: Sequence[BufferPlace]
    ) -> Callable[[int], int]:
        """A function that adds a command to a stream, and returns its status."""
        slots = [self._slots[_place_of(span, places)] for span in _spans_of(command)]
        library, pointers = self._driver.library, self._pointers
        if isinstance(command, Run):
            return self._run(command, of.program.kernels[command.kernel], of.functions[command.kernel], slots)
        if isinstance(command, Fill):
            fill, pattern = getattr(library, _FILLS[command.width]), command.pattern
            count, at = command.target.length // command.width, slots[0]
            return lambda stream: fill(pointers[at], pattern, count, stream)
        copy, length, (source, target) = library.cuMemcpyDtoDAsync_v2, command.target.length, slots
        return lambda stream: copy(pointers[target], pointers[source], length, stream)

    def _run(
        self, command: Run, kernel: KernelCode, function: int, slots: Sequence[int]
    ) -> Callable[[int], int]:
        config = _LaunchConfig(*command.grid, *kernel.block, kernel.shared_bytes, None, None, 0)
        self._configs.append(config)
        constants = (ctypes.c_uint32 * max(1, len(command.constants)))(*command.constants)
        addresses = [ctypes.addressof(self._pointers) + ctypes.sizeof(_POINTER) * slot for slot in slots]
        addresses += [ctypes.addressof(constants) + 4 * index for index in range(len(command.constants))]
        parameters = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        launch, settings = self._driver.library.cuLaunchKernelEx, ctypes.byref(config)

        def call(_: int, kept: object = constants) -> int:
            status: int = launch(settings, function, parameters, None)
            return status

        return call


def _place_of(span: Span, buffers: Sequence[BufferPlace]) -> BufferPlace:
    buffer = buffers[span.buffer]
    return BufferPlace(buffer.address, buffer.offset + span.offset)


def _spans_of(command: Run | Fill | Copy) -> tuple[Span, ...]:
    if isinstance(command, Run):
        return command.bindings
    return (command.target,) if isinstance(command, Fill) else (command.source, command.target)


class _Driver:
    """libcuda, and the primary context of one device."""

    def __init__(self, library: Any, ordinal: int) -> None:
        """Raises OldDriverError, and RunError if the device cannot be used."""
        self.library = library
        try:
            for name, types in _PROTOTYPES.items():
                getattr(library, name).argtypes = types
        except AttributeError as error:
            raise OldDriverError(f"the NVIDIA driver is too old: it has no {name}") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check("opening the device", library.cuDeviceGet(ctypes.byref(device), ordinal))
        self.check("opening the device", library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.context = context.value
        self.get_current = library.cuCtxGetCurrent

    def error(self, what: str, status: int) -> RunError:
        """The error for a status, with the name that CUDA gives it."""
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(status, ctypes.byref(name))
        return RunError(f"{what} failed: {name.value.decode() if name.value else f'CUDA error {status}'}")

    def check(self, what: str, status: int) -> None:
        """Raise RunError unless a call succeeded."""
        if status:
            raise self.error(what, status)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Use the context in this thread."""
        self.check("using the device", self.library.cuCtxPushCurrent_v2(self.context))
        try:
            yield
        finally:
            self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    @contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """Allow calls that a CUDA graph cannot contain, although torch may be capturing a graph in this thread."""
        mode = ctypes.c_int(_RELAXED)
        exchange = self.library.cuThreadExchangeStreamCaptureMode
        self.check("using the device", exchange(ctypes.byref(mode)))
        try:
            yield
        finally:
            exchange(ctypes.byref(mode))

    def module(self, ptx: bytes) -> Any:
        """PTX, compiled for the device. Raises RunError with the driver's messages."""
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        found = ctypes.c_void_p()
        status = self.library.cuModuleLoadDataEx(ctypes.byref(found), ptx + b"\0", 2, options, values)
        if status:
            said = " ".join(log.value.decode(errors="replace").split())[:500]
            raise RunError(f"{self.error('loading a kernel', status).message}{': ' if said else ''}{said}")
        return found

    def function(self, module: Any, kernel: KernelCode) -> int:
        """The handle of a kernel of a module, with its shared memory allowed."""
        found, what = ctypes.c_void_p(), f"loading the kernel {kernel.entry}"
        self.check(what, self.library.cuModuleGetFunction(ctypes.byref(found), module, kernel.entry.encode()))
        if kernel.shared_bytes:
            set_attribute = self.library.cuFuncSetAttribute
            self.check(what, set_attribute(found, _MAX_DYNAMIC_SHARED, kernel.shared_bytes))
        return found.value or 0


class _CudaProcess:
    """The drivers of one process. A forked child cannot use what its parent has opened."""

    def __init__(self, is_lost: bool = False) -> None:
        self.lock = threading.Lock()
        self.opened: dict[int, _Driver] = {}
        self.is_lost = is_lost


_process = _CudaProcess()


def _driver_of(ordinal: int) -> _Driver:
    with _process.lock:
        if _process.is_lost:
            raise TargetError(
                "CUDA was used before this process was forked, and cannot be used in a forked process",
                hint='start processes with the method "spawn": multiprocessing.set_start_method("spawn")',
            )
        if ordinal not in _process.opened:
            library = driver_library()
            if library is None:
                raise TargetError("no NVIDIA driver on this machine")
            _process.opened[ordinal] = _Driver(library, ordinal)
        return _process.opened[ordinal]


def _after_fork() -> None:
    global _process
    _process = _CudaProcess(is_lost=_process.is_lost or bool(_process.opened))


os.register_at_fork(after_in_child=_after_fork)

"""IREE's runtime, in this process. Results are written to the caller's buffers (destination passing)."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import iree.runtime as rt
import numpy as np
from iree.runtime._binding import create_hal_driver, disable_leak_checker

from dispatch_profiler.amx_permission import may_use_amx
from dispatch_profiler.cores import physical_cores, usable_threads
from dispatch_profiler.errors import TargetError, WorkerCrashed, WorkerOutOfMemory
from dispatch_profiler.operations import ElementType
from dispatch_profiler.runtime._base import Arguments, RunError, checked, raw_clock
from dispatch_profiler.runtime.caches import last_level_cache_bytes
from dispatch_profiler.runtime.cuda_driver import find_gpu
from dispatch_profiler.runtime.device_uri import DeviceUri

# -- hal devices -----------------------------------------------------------------------------------

# HAL devices of this process: each is opened once and kept until the process ends, because buffers that outlive their device crash.
#
# A forked child has its parent's devices, but not the threads that run their work. It opens devices of its own.


class _Key(NamedTuple):
    uri: DeviceUri
    workers: int | None
    graphs: bool


class _HalProcess:
    """The devices of one process. `lost` are GPUs that only its parent can use."""

    def __init__(self, is_forked: bool = False, lost: frozenset[DeviceUri] = frozenset()) -> None:
        self.lock = threading.Lock()
        self.opened: dict[_Key, Any] = {}
        self.is_forked = is_forked
        self.lost = lost


_process = _HalProcess()


def hal_device(uri: DeviceUri, *, workers: int | None = None, graphs: bool = True) -> Any:
    """The HAL device with the URI `uri`.

    `workers` is the number of threads of a `local-task` device; None means `usable_threads`. The device with one thread
    per physical core is shared with other users of IREE in this process. With `graphs`, a CUDA device executes recorded
    commands as CUDA graphs.
    Raises TargetError if no such device can be opened.
    """
    threads = workers or usable_threads()
    is_default = threads == len(physical_cores())
    key = _Key(uri, None if is_default or not uri.has_workers else threads, graphs)
    with _process.lock:
        if key not in _process.opened:
            _process.opened[key] = _opened(key)
        return _process.opened[key]


def devices_of(driver: str) -> tuple[str, ...]:
    """URIs of all devices of a driver. Raises TargetError if it has no device."""
    try:
        found = rt.get_driver(driver).query_available_devices()
    except (ValueError, RuntimeError) as error:
        raise TargetError(f"no {driver} device on this machine: {_why(error)}") from error
    if not found:
        raise TargetError(f"no {driver} device on this machine")
    return tuple(f"{driver}://{index}" for index in range(len(found)))


def _opened(key: _Key) -> Any:
    uri, flags = key.uri, _flags(key)
    if uri in _process.lost:
        raise TargetError(
            f"{uri} was opened before this process was forked, and cannot be used in a forked process",
            hint='start processes with the method "spawn": multiprocessing.set_start_method("spawn")',
        )
    if not uri.is_cuda:
        may_use_amx()  # Kernels for this CPU may use its tile registers.
    try:
        if not flags and not _process.is_forked:
            return rt.get_device(str(uri))  # shared with other users of IREE in this process
        try:
            _set_flags({name: value for name, (value, _) in flags.items()})
            return create_hal_driver(uri.driver).create_device_by_uri(str(uri))
        finally:
            # Flags apply to the whole process: drivers that other code creates later get the defaults again.
            _set_flags({name: default for name, (_, default) in flags.items()})
    except (ValueError, RuntimeError) as error:
        drivers = ", ".join(rt.query_available_drivers())
        raise TargetError(
            f"no device {str(uri)!r} on this machine: {_why(error)}",
            hint=f"choose another with --device; available drivers: {drivers}",
        ) from error


def _flags(key: _Key) -> dict[str, tuple[str, str]]:
    """Flags of IREE that a device's driver is created with: name -> (value, default)."""
    if key.uri.is_cuda and key.graphs:
        return {"cuda_use_streams": ("false", "true")}
    if key.workers is not None:
        return {"task_topology_group_count": (str(key.workers), "0")}
    return {}


def _set_flags(values: Mapping[str, str]) -> None:
    rt.flags.parse_flags(*(f"--{name}={value}" for name, value in values.items()))


def _why(error: Exception) -> str:
    """`...: libvulkan.c:641: NOT_FOUND; Vulkan loader library not found; ensure ...` -> its third clause."""
    first = str(error).splitlines()[0]
    reason = re.sub(r"^.*?: [A-Z_]+; ", "", first)
    return re.split(r"; |: please ", reason)[0].strip()


def _after_fork() -> None:
    """In a forked child: forget the parent's devices, but never destroy them, which would wait for their threads."""
    global _process
    for device in _process.opened.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))
    disable_leak_checker()  # it would report the devices when the child ends
    gpus = {key.uri for key in _process.opened if key.uri.is_gpu}
    _process = _HalProcess(is_forked=True, lost=_process.lost | gpus)


os.register_at_fork(after_in_child=_after_fork)


# -- iree buffers ----------------------------------------------------------------------------------

# Buffers of IREE devices: mapped if the host can access them, otherwise copied by the device.
#
# CUDA device memory cannot be mapped. A buffer allocated for mapping is managed memory, whose pages migrate
# between host and GPU: unsuitable for operands that are timed.


_HOST_VISIBLE = int(rt.MemoryType.HOST_VISIBLE)
#: Errors that IREE raises.
IREE_ERRORS = (ValueError, RuntimeError, IndexError, MemoryError)

HAL_TYPES = {
    "f64": rt.HalElementType.FLOAT_64,
    "f32": rt.HalElementType.FLOAT_32,
    "f16": rt.HalElementType.FLOAT_16,
    "bf16": rt.HalElementType.BFLOAT_16,
    "f8E4M3FN": rt.HalElementType.FLOAT_8_E4M3_FN,
    "f8E5M2": rt.HalElementType.FLOAT_8_E5M2,
    "i8": rt.HalElementType.SINT_8,
    "i32": rt.HalElementType.SINT_32,
}

#: After one of these, this process can run nothing more (CUDA Driver API, "CUresult").
_FATAL = re.compile(
    r"CUDA_ERROR_(ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC"
    r"|HARDWARE_STACK_ERROR|LAUNCH_FAILED|LAUNCH_TIMEOUT|ASSERT|ECC_UNCORRECTABLE|CONTEXT_IS_DESTROYED)"
)

#: IREE's status of everything that waits for an operation of the device that failed. The cause may follow only with
#: the next use of the device, which would then be blamed for it.
_ABORTED = "ABORTED;"


def run_error(what: str, error: Exception) -> Exception:
    """The error of this package for an error that IREE raised during `what`."""
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" in text or isinstance(error, MemoryError):
        return WorkerOutOfMemory(f"out of memory while {what}")
    fatal = _FATAL.search(text)
    if fatal:
        return WorkerCrashed(f"{what} broke the device's context: {fatal[0]}")
    if _ABORTED in text:
        return WorkerCrashed(f"{what} broke the device's queue: {text[:300]}")
    rejected = driver_rejection(text)
    if rejected:
        return RunError(f"{what} failed: {rejected}")
    foreign = re.search(r"INCOMPATIBLE; .*?#hal\.executable\.target<\"([^\"]+)\", \"([^\"]+)\"", text)
    if foreign:
        return RunError(f"{what} failed: it is {foreign[1]} code ({foreign[2]}) for another device")
    return RunError(f"{what} failed: {text[:300]}")


class IreeBuffer:
    """See `Buffer`. `view` is IREE's buffer view."""

    def __init__(self, device: Any, view: Any, shape: tuple[int, ...], type_: ElementType) -> None:
        self.view = view
        self.shape = shape
        self.type = type_
        self._device = device
        self._buffer = view.get_buffer()
        self._is_visible = bool(self._buffer.memory_type() & _HOST_VISIBLE)
        #: Host memory and its mapping, which must live as long as arrays that were read from it.
        self._mapped: tuple[Any, Any] | None = None

    def write(self, array: np.ndarray) -> None:
        """See `Buffer.write`."""
        dense = checked(array, self.shape, self.type)
        try:
            self._bytes()[:] = dense.reshape(-1).view(np.uint8)
            if not self._is_visible:
                self._copy(self._host()[0], self._buffer)
        except IREE_ERRORS as error:
            raise run_error("writing a buffer", error) from error

    def read(self) -> np.ndarray:
        """See `Buffer.read`."""
        try:
            if not self._is_visible:
                self._copy(self._buffer, self._host()[0])
            return self._bytes().copy().view(self.type.dtype).reshape(self.shape)
        except IREE_ERRORS as error:
            raise run_error("reading a buffer", error) from error

    def copy_from(self, source: IreeBuffer) -> None:
        """See `Buffer.copy_from`."""
        if (source.shape, source.type) != (self.shape, self.type):
            raise RunError(
                f"expected {self.type.name} {self.shape}, but got {source.type.name} {source.shape}"
            )
        try:
            if self._is_visible and source._is_visible:
                self._bytes()[:] = source._bytes()
            else:
                self._copy(source._buffer, self._buffer)
        except IREE_ERRORS as error:
            raise run_error("copying a buffer", error) from error

    def _host(self) -> tuple[Any, Any]:
        """The buffer if it is visible to the host, else staging memory, with its mapping."""
        if self._mapped is None:
            buffer = self._buffer if self._is_visible else self._staging()
            self._mapped = buffer, buffer.map()
        return self._mapped

    def _staging(self) -> Any:
        return self._device.allocator.allocate_buffer(
            rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE,
            rt.BufferUsage.TRANSFER | rt.BufferUsage.MAPPING,
            self._buffer.byte_length(),
        )

    def _bytes(self) -> np.ndarray:
        buffer, mapping = self._host()
        found = np.asarray(mapping.asarray([buffer.byte_length()], np.dtype(np.uint8)))
        # A buffer may be longer than its tensor.
        return found[: int(np.prod(self.shape, dtype=np.int64)) * self.type.bytes]

    def _copy(self, source: Any, target: Any) -> None:
        done = self._device.create_semaphore(0)
        start, end = (rt.HalFence.create_at(done, at) for at in (0, 1))
        self._device.queue_copy(source, target, wait_semaphores=start, signal_semaphores=end)
        end.wait()


# -- driver errors ---------------------------------------------------------------------------------

# Rejections of kernels by a GPU's driver, as messages that say what to do.


def driver_rejection(text: str) -> str:
    """Why the CUDA driver rejected an executable, from the text of IREE's error; empty for other errors.

    `...Unsupported .version 9.9; current version is '9.0'...` -> a sentence with both versions.
    """
    version = re.search(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'", text)
    if version:
        return f"the kernel is PTX {version[1]}, the driver supports up to {version[2]}: update the driver"
    if "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in text:
        return "the kernel's PTX version is newer than the driver supports: update the driver"
    shared = re.search(r"requires (\d+)B of shared memory and exceeds the device maximum of (\d+)B", text)
    if shared:
        return f"the kernel needs {shared[1]} B of shared memory, but this device has {shared[2]}"
    if "CUDA_ERROR_NOT_FOUND" in text:
        return "the object has no kernel with the name that is launched"
    invalid = re.search(r"CUDA_ERROR_(INVALID_PTX|NO_BINARY_FOR_GPU|INVALID_IMAGE)", text)
    if invalid:
        reason = re.search(r"error\s*:\s*([^;]+?)(?: ptxas application|;|$)", text)
        detail = f": {reason[1].strip()}" if reason else ""
        return f"the kernel is for another GPU ({invalid[1]}){detail}"
    return ""


@cache
def _instance() -> Any:
    return rt.VmInstance()


class IreeDevice:
    """A HAL device by its URI: `local-task`, `local-sync`, `cuda://0`. See `hal_device` for the options."""

    def __init__(self, uri: DeviceUri, *, workers: int | None = None, graphs: bool = True) -> None:
        self.uri = uri
        self._device = hal_device(uri, workers=workers, graphs=graphs)
        self._usage = rt.BufferUsage.DEFAULT
        if uri.is_local:
            self._usage |= rt.BufferUsage.MAPPING  # on a GPU, this would be another kind of memory

    @property
    def hal(self) -> Any:
        """IREE's HAL device."""
        return self._device

    @property
    def cache_bytes(self) -> int:
        """See `Device.cache_bytes`."""
        if self.uri.is_local:
            return last_level_cache_bytes()
        gpu = find_gpu(str(self.uri))
        return gpu.l2_bytes if gpu else 0

    def load(self, vmfb: bytes) -> IreeProgram:
        """See `Device.load`."""
        try:
            module = rt.VmModule.copy_buffer(_instance(), vmfb)
            hal = rt.create_hal_module(_instance(), self._device)
            return IreeProgram(rt.VmContext(_instance(), [hal, module]), module)
        except IREE_ERRORS as error:
            raise run_error("loading the vmfb", error) from error

    def allocate(self, shape: Sequence[int], type_: ElementType) -> IreeBuffer:
        """See `Device.allocate`."""
        size = max(1, math.prod(shape)) * type_.bytes
        try:
            memory = self._device.allocator.allocate_buffer(rt.MemoryType.DEVICE_LOCAL, self._usage, size)
            view = rt.HalBufferView(memory, list(shape), HAL_TYPES[type_.name])
        except IREE_ERRORS as error:
            raise run_error("allocating a buffer", error) from error
        return IreeBuffer(self._device, view, tuple(shape), type_)

    def put(self, array: np.ndarray, type_: ElementType) -> IreeBuffer:
        """See `Device.put`."""
        dense = checked(array, array.shape, type_)
        # The bindings do not know bf16 and f8: pass their bits, and the type separately.
        bits = dense.view(f"u{dense.dtype.itemsize}") if dense.dtype.kind not in "fi" else dense
        try:
            view = self._device.allocator.allocate_buffer_copy(
                memory_type=rt.MemoryType.DEVICE_LOCAL,
                allowed_usage=self._usage,
                device=self._device,
                buffer=bits,
                element_type=HAL_TYPES[type_.name],
            )
        except IREE_ERRORS as error:
            raise run_error("copying operands to the device", error) from error
        return IreeBuffer(self._device, view, array.shape, type_)


class IreeProgram:
    """A module in its own context."""

    def __init__(self, context: Any, module: Any) -> None:
        self._context = context
        self._module = module

    def entry_point(self, function: str) -> tuple[Callable[[Any, Any, Any], None], Any]:
        """IREE's `invoke` and its first argument for `function`; the others are lists of arguments and results.

        RunError if the function does not exist.
        """
        entry = self._module.lookup_function(function)
        if entry is None:
            raise RunError(f"the vmfb has no function {function}")
        return self._context.invoke, entry

    def appending(self, function: str) -> Appending | None:
        """Adds calls of `function` to a command buffer; None if the vmfb lacks the entry points."""
        try:
            return Appending.of(self._context.invoke, self._module.lookup_function, function)
        except IREE_ERRORS as error:
            raise run_error("loading the program", error) from error

    def bind(self, function: str, *arguments: Arguments) -> IreeCall:
        """See `Program.bind`. Commands are recorded here, if the vmfb has entry points for it."""
        _, entry = self.entry_point(function)
        lists = [_argument_list(each) for each in arguments]
        record, replay = (
            self._module.lookup_function(f"{function}{each}") for each in ("$record", "$replay")
        )
        if record is None or replay is None:
            return IreeCall(self._context, entry, lists, len(arguments[0].results), arguments)
        return IreeCall(self._context, replay, [self._recorded(record, each) for each in lists], 0, arguments)

    def _recorded(self, record: Any, arguments: Any) -> Any:
        """The arguments of a replay: the command buffer for these arguments."""
        commands = rt.VmVariantList(1)
        try:
            self._context.invoke(record, arguments, commands)
        except IREE_ERRORS as error:
            raise run_error("recording the dispatch", error) from error
        return commands


class IreeCall:
    """See `Call`."""

    def __init__(self, context: Any, entry: Any, lists: Sequence[Any], results: int, kept: object) -> None:
        """`lists` has the arguments of each turn, created in advance, which saves a microsecond per call."""
        self._context = context
        self._entry = entry
        self._kept = kept
        self._results = results
        self._first = lists[0]
        self._turns: Iterator[Any] = itertools.cycle(lists)

    @property
    def now(self) -> Callable[[], float]:
        """See `Call.now`."""
        return raw_clock

    def invoke(self) -> None:
        """See `Call.invoke`."""
        try:
            self._context.invoke(self._entry, self._first, rt.VmVariantList(self._results))
        except IREE_ERRORS as error:
            raise run_error("running the dispatch", error) from error

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        invoke, entry, turns, results = self._context.invoke, self._entry, self._turns, self._results
        try:
            start = time.perf_counter()
            for _ in range(calls):
                invoke(entry, next(turns), rt.VmVariantList(results))
            return time.perf_counter() - start
        except IREE_ERRORS as error:
            raise run_error("running the dispatch", error) from error


def _argument_list(arguments: Arguments) -> Any:
    buffers = (*arguments.operands, *arguments.results)
    found = rt.VmVariantList(len(buffers))
    for buffer in buffers:
        found.push_ref(buffer.view)
    return found


# -- iree commands ---------------------------------------------------------------------------------

# Calls of several functions, of several programs, as one submission. See `compiler.passes.recording` for the entry points.


@dataclass(frozen=True, eq=False)
class Appending:
    """Adds calls of one function to a command buffer of its device. All methods raise IREE's errors."""

    #: Bytes of temporary memory that a call needs.
    scratch: int
    _invoke: Callable[[Any, Any, Any], None]
    _begin: Any
    _append: Any
    _finish: Any
    _replay: Any

    @classmethod
    def of(
        cls, invoke: Callable[[Any, Any, Any], None], entry: Callable[[str], Any], function: str
    ) -> Appending | None:
        """`entry` looks up an entry point. None if the vmfb lacks the entry points for `function`."""
        scratch = entry(f"{function}$scratch")
        if scratch is None:
            return None
        size = rt.VmVariantList(1)
        invoke(scratch, rt.VmVariantList(0), size)
        others = (entry(f"{function}${each}") for each in ("begin", "append", "finish", "replay"))
        return cls(int(size.get_variant(0)), invoke, *others)

    def begin(self) -> Any:
        """A new command buffer."""
        commands = rt.VmVariantList(1)
        self._invoke(self._begin, rt.VmVariantList(0), commands)
        return commands.get_as_ref(0)

    def append(self, views: Sequence[Any], scratch: Any, commands: Any) -> None:
        """Add a call with these buffer views, which the caller keeps alive; `scratch` has as many bytes as it says."""
        passed = rt.VmVariantList(len(views) + 2)
        for each in (*views, scratch, commands):
            passed.push_ref(each)
        self._invoke(self._append, passed, rt.VmVariantList(0))

    def finish(self, commands: Any) -> Callable[[], None]:
        """What executes the calls that have been added, one after another, and waits: any number of times."""
        passed = rt.VmVariantList(1)
        passed.push_ref(commands)
        self._invoke(self._finish, passed, rt.VmVariantList(0))
        invoke, replay = self._invoke, self._replay
        return lambda: invoke(replay, passed, rt.VmVariantList(0))

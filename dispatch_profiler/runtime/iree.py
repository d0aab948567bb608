"""IREE's runtime, in this process. Results land in buffers that we own (destination passing)."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

import iree.runtime as rt
import numpy as np

from dispatch_profiler.errors import TargetError, WorkerCrashed, WorkerOutOfMemory
from dispatch_profiler.operations import ElementType, Operation
from dispatch_profiler.runtime._base import Operands, RunError, poison, raw_clock
from dispatch_profiler.runtime.caches import last_level_cache_bytes
from dispatch_profiler.runtime.cuda_driver import find_gpu
from dispatch_profiler.runtime.driver_errors import driver_refusal
from dispatch_profiler.runtime.transfers import ResultMemory

_ELEMENT_TYPES = {
    "f64": rt.HalElementType.FLOAT_64,
    "f32": rt.HalElementType.FLOAT_32,
    "f16": rt.HalElementType.FLOAT_16,
    "bf16": rt.HalElementType.BFLOAT_16,
    "f8E4M3FN": rt.HalElementType.FLOAT_8_E4M3_FN,
    "i8": rt.HalElementType.SINT_8,
    "i32": rt.HalElementType.SINT_32,
}

#: After one of these nothing runs in this process any more (CUDA Driver API, "CUresult").
_FATAL = re.compile(
    r"CUDA_ERROR_(ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC"
    r"|HARDWARE_STACK_ERROR|LAUNCH_FAILED|LAUNCH_TIMEOUT|ASSERT|ECC_UNCORRECTABLE|CONTEXT_IS_DESTROYED)"
)


@cache
def _instance() -> Any:
    return rt.VmInstance()


@cache
def _hal_device(uri: str) -> Any:
    # Kept for the life of the process: buffers that outlive their device crash it.
    try:
        return rt.get_device(uri)
    except (ValueError, RuntimeError) as error:
        drivers = ", ".join(rt.query_available_drivers())
        raise TargetError(
            f"no device {uri!r} on this machine: {_why(error)}",
            hint=f"--device names another; drivers of this runtime: {drivers}",
        ) from error


def devices_of(driver: str) -> tuple[str, ...]:
    """URIs of all devices of a driver. Raises TargetError if there are none."""
    try:
        found = rt.get_driver(driver).query_available_devices()
    except (ValueError, RuntimeError) as error:
        raise TargetError(f"no {driver} device on this machine: {_why(error)}") from error
    if not found:
        raise TargetError(f"no {driver} device on this machine")
    return tuple(f"{driver}://{index}" for index in range(len(found)))


def _why(error: Exception) -> str:
    """`...: libvulkan.c:641: NOT_FOUND; Vulkan loader library not found; ensure ...` -> its third clause."""
    first = str(error).splitlines()[0]
    said = re.sub(r"^.*?: [A-Z_]+; ", "", first)
    return re.split(r"; |: please ", said)[0].strip()


def _refused(what: str, error: Exception) -> Exception:
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" in text or isinstance(error, MemoryError):
        return WorkerOutOfMemory(f"out of memory while {what}")
    fatal = _FATAL.search(text)
    if fatal:
        return WorkerCrashed(f"{what} broke the device's context: {fatal[0]}")
    refusal = driver_refusal(text)
    if refusal:
        return RunError(f"{what} failed: {refusal}")
    foreign = re.search(r"INCOMPATIBLE; .*?#hal\.executable\.target<\"([^\"]+)\", \"([^\"]+)\"", text)
    if foreign:
        return RunError(f"{what} failed: it is {foreign[1]} code ({foreign[2]}) for another device than this")
    return RunError(f"{what} failed: {text[:300]}")


class IreeDevice:
    """A HAL device by its URI: `local-task`, `local-sync`, `cuda://0`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._device = _hal_device(uri)
        self._usage = rt.BufferUsage.DEFAULT
        if uri.startswith("local-"):
            self._usage |= rt.BufferUsage.MAPPING  # elsewhere that would be another kind of memory

    @property
    def cache_bytes(self) -> int:
        """See `Device.cache_bytes`."""
        if self.uri.startswith("local-"):
            return last_level_cache_bytes()
        gpu = find_gpu(self.uri)
        return gpu.l2_bytes if gpu else 0

    def load(self, vmfb: bytes) -> IreeProgram:
        """See `Device.load`."""
        try:
            module = rt.VmModule.copy_buffer(_instance(), vmfb)
            hal = rt.create_hal_module(_instance(), self._device)
            return IreeProgram(self._device, rt.VmContext(_instance(), [hal, module]), module)
        except (ValueError, RuntimeError, MemoryError) as error:
            raise _refused("loading the vmfb", error) from error

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Device.put`."""
        arrays = [*inputs, *(poison(result.type, result.shape) for result in operation.results)]
        types = [tensor.type for tensor in (*operation.operands, *operation.results)]
        try:
            views = tuple(self._put(array, type_) for array, type_ in zip(arrays, types, strict=True))
        except (ValueError, RuntimeError, MemoryError) as error:
            raise _refused("putting operands on the device", error) from error
        return Operands(operation, views)

    def _put(self, array: np.ndarray, type_: ElementType) -> Any:
        # The bindings know no bf16 and no f8: they get the bits, and the type beside them.
        dense = np.ascontiguousarray(array)
        bits = dense.view(f"u{dense.dtype.itemsize}") if dense.dtype.kind not in "fi" else dense
        return self._device.allocator.allocate_buffer_copy(
            memory_type=rt.MemoryType.DEVICE_LOCAL,
            allowed_usage=self._usage,
            device=self._device,
            buffer=bits,
            element_type=_ELEMENT_TYPES[type_.name],
        )


class IreeProgram:
    """A module in a context of its own."""

    def __init__(self, device: Any, context: Any, module: Any) -> None:
        self._device = device
        self._context = context
        self._module = module

    def bind(self, function: str, *operands: Operands) -> IreeCall:
        """See `Program.bind`."""
        entry = self._module.lookup_function(function)
        if entry is None:
            raise RunError(f"the vmfb has no function {function}")
        return IreeCall(self._device, self._context, entry, operands)


class IreeCall:
    """See `Call`."""

    def __init__(self, device: Any, context: Any, entry: Any, operands: Sequence[Operands]) -> None:
        self._device = device
        self._context = context
        self._entry = entry
        self._first = operands[0]
        # Made beforehand: a microsecond less in each call.
        self._arguments: Iterator[Any] = itertools.cycle([_arguments(each) for each in operands])

    def _invoke(self) -> None:
        self._context.invoke(self._entry, next(self._arguments), rt.VmVariantList(1))

    @property
    def now(self) -> Callable[[], float]:
        """See `Call.now`."""
        return raw_clock

    def run(self) -> tuple[np.ndarray, ...]:
        """See `Call.run`."""
        results = self._first.operation.results
        try:
            memories = _result_memories(self._device, self._first)
            for memory in memories:
                memory.reset()
            self._context.invoke(self._entry, _arguments(self._first), rt.VmVariantList(len(results)))
            raws = [memory.read() for memory in memories]
        except (ValueError, RuntimeError, MemoryError) as error:
            raise _refused("running the dispatch", error) from error
        return tuple(
            raw.view(result.type.dtype).reshape(result.shape)
            for raw, result in zip(raws, results, strict=True)
        )

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        try:
            start = time.perf_counter()
            for _ in range(calls):
                self._invoke()
            return time.perf_counter() - start
        except (ValueError, RuntimeError, MemoryError) as error:
            raise _refused("running the dispatch", error) from error


@lru_cache(maxsize=2)
def _result_memories(device: Any, operands: Operands) -> tuple[ResultMemory, ...]:
    """Kept for the two distributions of an operation: all its configurations write to the same memory."""
    results = operands.operation.results
    return tuple(
        ResultMemory(device, handle, poison(result.type, result.shape))
        for handle, result in zip(operands.handles[-len(results) :], results, strict=True)
    )


def _arguments(operands: Operands) -> Any:
    arguments = rt.VmVariantList(len(operands.handles))
    for view in operands.handles:
        arguments.push_ref(view)
    return arguments

"""IREE's runtime, in this process. Results land in buffers that we own (destination passing)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import iree.runtime as rt
import numpy as np

from dispatch_profiler.errors import TargetError, WorkerOutOfMemory
from dispatch_profiler.operations import ElementType, Operation
from dispatch_profiler.runtime._base import RunError, poison, raw_clock

_ELEMENT_TYPES = {
    "f64": rt.HalElementType.FLOAT_64,
    "f32": rt.HalElementType.FLOAT_32,
    "f16": rt.HalElementType.FLOAT_16,
    "bf16": rt.HalElementType.BFLOAT_16,
    "f8E4M3FN": rt.HalElementType.FLOAT_8_E4M3_FN,
    "i8": rt.HalElementType.SINT_8,
    "i32": rt.HalElementType.SINT_32,
}


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


def _why(error: Exception) -> str:
    """`...: libvulkan.c:641: NOT_FOUND; Vulkan loader library not found; ensure ...` -> its third clause."""
    first = str(error).splitlines()[0]
    said = re.sub(r"^.*?: [A-Z_]+; ", "", first)
    return re.split(r"; |: please ", said)[0].strip()


def _refused(what: str, error: Exception) -> Exception:
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" in text or isinstance(error, MemoryError):
        return WorkerOutOfMemory(f"out of memory while {what}")
    foreign = re.search(r"INCOMPATIBLE; .*?#hal\.executable\.target<\"([^\"]+)\", \"([^\"]+)\"", text)
    if foreign:
        return RunError(f"{what} failed: it is {foreign[1]} code ({foreign[2]}) for another device than this")
    return RunError(f"{what} failed: {text[:300]}")


class IreeDevice:
    """A HAL device by its URI: `local-task`, `local-sync`, `cuda://0`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._device = _hal_device(uri)

    def load(self, vmfb: bytes) -> IreeProgram:
        """See `Device.load`."""
        try:
            module = rt.VmModule.copy_buffer(_instance(), vmfb)
            hal = rt.create_hal_module(_instance(), self._device)
            return IreeProgram(self._device, rt.VmContext(_instance(), [hal, module]), module)
        except (ValueError, RuntimeError, MemoryError) as error:
            raise _refused("loading the vmfb", error) from error


class IreeProgram:
    """A module in a context of its own."""

    def __init__(self, device: Any, context: Any, module: Any) -> None:
        self._device = device
        self._context = context
        self._module = module

    def bind(self, function: str, operation: Operation, inputs: Sequence[np.ndarray]) -> IreeCall:
        """See `Program.bind`."""
        entry = self._module.lookup_function(function)
        if entry is None:
            raise RunError(f"the vmfb has no function {function}")
        try:
            types = [tensor.type for tensor in operation.inputs]
            views = [self._put(array, type_) for array, type_ in zip(inputs, types, strict=True)]
            result = operation.result
            views.append(self._put(poison(result.type, result.shape), result.type))
        except (ValueError, RuntimeError, MemoryError) as error:
            raise _refused("putting operands on the device", error) from error
        return IreeCall(self._context, entry, views, operation)

    def _put(self, array: np.ndarray, type_: ElementType) -> Any:
        # The bindings know no bf16 and no f8: they get the bits, and the type beside them.
        dense = np.ascontiguousarray(array)
        bits = dense.view(f"u{dense.dtype.itemsize}") if dense.dtype.kind not in "fi" else dense
        return self._device.allocator.allocate_buffer_copy(
            memory_type=rt.MemoryType.DEVICE_LOCAL,
            allowed_usage=rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING,
            device=self._device,
            buffer=bits,
            element_type=_ELEMENT_TYPES[type_.name],
        )


class IreeCall:
    """See `Call`. The last view is the result's."""

    def __init__(self, context: Any, entry: Any, views: list[Any], operation: Operation) -> None:
        self._context = context
        self._entry = entry
        self._views = views
        self._operation = operation

    def _invoke(self) -> None:
        arguments = rt.VmVariantList(len(self._views))
        for view in self._views:
            arguments.push_ref(view)
        self._context.invoke(self._entry, arguments, rt.VmVariantList(1))

    @property
    def now(self) -> Callable[[], float]:
        """See `Call.now`."""
        return raw_clock

    def run(self) -> np.ndarray:
        """See `Call.run`."""
        result = self._operation.result
        mapping = self._views[-1].map()  # must live as long as `raw`
        raw = mapping.asarray([result.bytes], np.dtype(np.uint8))
        raw[:] = poison(result.type, result.shape).reshape(-1).view(np.uint8)
        try:
            self._invoke()
        except (ValueError, RuntimeError, MemoryError) as error:
            raise _refused("running the dispatch", error) from error
        return raw.view(result.type.dtype).reshape(result.shape).copy()

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        try:
            start = time.perf_counter()
            for _ in range(calls):
                self._invoke()
            return time.perf_counter() - start
        except (ValueError, RuntimeError, MemoryError) as error:
            raise _refused("running the dispatch", error) from error

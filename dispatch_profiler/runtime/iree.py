"""IREE's runtime, in this process. Results are written to the caller's buffers (destination passing)."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import iree.runtime as rt
import numpy as np

from dispatch_profiler.operations import ElementType
from dispatch_profiler.runtime._base import Arguments, RunError, checked, raw_clock
from dispatch_profiler.runtime.caches import last_level_cache_bytes
from dispatch_profiler.runtime.cuda_driver import find_gpu
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.hal_devices import hal_device
from dispatch_profiler.runtime.iree_buffers import HAL_TYPES, IREE_ERRORS, IreeBuffer, run_error
from dispatch_profiler.runtime.iree_commands import Appending


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

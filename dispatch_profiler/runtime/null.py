"""The null device: results from the reference, times and faults from the null compiler's "vmfb"."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatch_profiler.errors import DispatchProfilerError, reason_of
from dispatch_profiler.files.json_fields import FieldError, mapping, number, parse_json, text, whole
from dispatch_profiler.operations import ElementType, Operation, operation_from_dict
from dispatch_profiler.runtime._base import Arguments, RunError, checked

#: Readings before a clock with the fault `clock_stalls` stalls.
_HONEST = 8
#: Executions whose results a device keeps.
_EXECUTIONS = 16


@dataclass
class _Clock:
    """The time of one function, shared by all its calls wherever it was loaded from."""

    passed: float = 0.0
    readings: int = 0


class _Executions:
    """The results of the last executions: all configurations of an operation run it with the same operands."""

    def __init__(self) -> None:
        self._results: OrderedDict[tuple[Any, ...], tuple[np.ndarray, ...]] = OrderedDict()

    def results(self, operation: Operation, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """What `operation` computes of `operands`. Not to be changed."""
        key = operation, *((each.shape, hashlib.sha256(each.tobytes()).digest()) for each in operands)
        if key not in self._results:
            self._results[key] = tuple(
                reference.expected.astype(result.type.dtype)
                for reference, result in zip(operation.reference(operands), operation.results, strict=True)
            )
        self._results.move_to_end(key)
        while len(self._results) > _EXECUTIONS:
            self._results.popitem(last=False)
        return self._results[key]


class NullBuffer:
    """See `Buffer`: an array."""

    def __init__(self, array: np.ndarray, type_: ElementType) -> None:
        self.array = array
        self.shape = array.shape
        self.type = type_

    def write(self, array: np.ndarray) -> None:
        """See `Buffer.write`."""
        self.array[...] = checked(array, self.shape, self.type)

    def read(self) -> np.ndarray:
        """See `Buffer.read`."""
        return self.array.copy()

    def copy_from(self, source: NullBuffer) -> None:
        """See `Buffer.copy_from`."""
        self.write(source.array)


class NullDevice:
    """See `Device`. Runs what `compiler.backends.null` wrote."""

    cache_bytes = 2**20

    def __init__(self) -> None:
        self._clocks: dict[str, _Clock] = {}
        self._executions = _Executions()

    def load(self, vmfb: bytes) -> NullProgram:
        """See `Device.load`."""
        try:
            data = mapping(parse_json(vmfb))
            if text(data, "magic") != "null vmfb":
                raise FieldError("magic: expected 'null vmfb'")
            return NullProgram(data, self._clocks, self._executions)
        except FieldError as error:
            raise RunError(f"loading the vmfb failed: not made by the null compiler ({error})") from error

    def allocate(self, shape: Sequence[int], type_: ElementType) -> NullBuffer:
        """See `Device.allocate`."""
        return NullBuffer(np.empty(tuple(shape), type_.dtype), type_)

    def put(self, array: np.ndarray, type_: ElementType) -> NullBuffer:
        """See `Device.put`."""
        return NullBuffer(checked(array, array.shape, type_).copy(), type_)


@dataclass(frozen=True)
class _NullFunction:
    """A function of a vmfb: its operation, the seconds of a call, and its fault."""

    operation: Operation
    seconds: float
    fault: str


class NullProgram:
    """See `Program`."""

    def __init__(self, data: Mapping[str, Any], clocks: dict[str, _Clock], executions: _Executions) -> None:
        self._functions = mapping(data.get("functions"), "functions")
        self._repeat = whole(data, "repeat", least=1)
        self._clocks = clocks
        self._executions = executions
        self._read: dict[str, _NullFunction] = {}

    def bind(self, function: str, *arguments: Arguments) -> NullCall:
        """See `Program.bind`."""
        if function not in self._read:
            self._read[function] = self._function(function)
        clock = self._clocks.setdefault(function, _Clock())
        return NullCall(self._read[function], arguments[0], clock, self._executions)

    def _function(self, name: str) -> _NullFunction:
        row = self._functions.get(name)
        if row is None:
            raise RunError(f"the vmfb has no function {name}")
        try:
            row = mapping(row, name)
            compiled = operation_from_dict(mapping(row.get("operation"), "operation"))
            return _NullFunction(compiled, number(row, "time_ms") / 1e3 * self._repeat, text(row, "fault"))
        except (DispatchProfilerError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"the vmfb is damaged: {reason_of(error)}") from error


class NullCall:
    """See `Call`. Time passes only as `time` returns it; an independent clock shows how much did.

    The faults `clock_*` make `time` return something else.
    """

    def __init__(
        self, function: _NullFunction, arguments: Arguments, clock: _Clock, executions: _Executions
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._clock = clock
        self._executions = executions
        self._computed: tuple[np.ndarray, ...] = ()

    @property
    def now(self) -> Callable[[], float]:
        """See `Call.now`."""
        return lambda: self._clock.passed

    def invoke(self) -> None:
        """See `Call.invoke`."""
        fault = self._function.fault
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "hang":
            threading.Event().wait()
        if fault == "memory":
            raise MemoryError("injected fault: the null device is out of memory")
        if not self._computed:
            operands = [each.array for each in self._arguments.operands]
            self._computed = self._executions.results(self._function.operation, operands)
        for buffer, computed in zip(self._arguments.results, self._computed, strict=True):
            checked(computed, buffer.shape, buffer.type)  # like IREE, before anything is written
        *whole, last = zip(self._arguments.results, self._computed, strict=True)
        for buffer, computed in whole:
            buffer.write(computed)
        # The fault is in the last result: checking only the first one misses it.
        self._write_faulty(*last)

    def _write_faulty(self, buffer: NullBuffer, computed: np.ndarray) -> None:
        flat = computed.copy().reshape(-1)
        middle = flat.size // 2
        written = flat.size
        fault = self._function.fault
        if fault == "wrong_element":
            # Across zero, beyond any tolerance, and too far to be rounded away.
            value = float(flat[middle])
            away = (4.0 + abs(value)) * (1.0 if value < 0 else -1.0)
            flat[middle] = np.asarray(value + away).astype(flat.dtype)
        elif fault == "unwritten":
            written = middle
        elif fault in ("nan", "inf"):
            flat[middle] = np.asarray(float(fault)).astype(flat.dtype)
        buffer.array.reshape(-1)[:written] = flat[:written]

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        self.invoke()
        seconds = self._function.seconds * calls
        self._clock.passed += seconds
        self._clock.readings += 1
        return self._reported(seconds)

    def _reported(self, seconds: float) -> float:
        """What the clock reports for `seconds`."""
        fault = self._function.fault
        if fault == "clock_zero":
            return 0.0
        if fault == "clock_back":
            return -seconds
        if fault == "clock_stalls":
            return seconds if self._clock.readings < _HONEST else 0.3 * seconds
        if fault == "clock_drifts":
            return seconds * (1.0 + 0.03 * self._clock.readings)
        return seconds

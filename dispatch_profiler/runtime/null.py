"""The null device: results from the reference, times and faults from the null compiler's "vmfb"."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatch_profiler.errors import DispatchProfilerError, reason_of
from dispatch_profiler.json_fields import FieldError, mapping, number, parse_json, text, whole
from dispatch_profiler.operations import Operation, Tensor, operation_from_dict
from dispatch_profiler.runtime._base import Operands, RunError, poison

#: How often a clock that stalls is asked before it does.
_HONEST = 8


@dataclass
class _Clock:
    """The time of one function: all its calls share it, wherever it was loaded from."""

    passed: float = 0.0
    asked: int = 0


class NullDevice:
    """See `Device`. Runs what `compiler.null` wrote."""

    uri = "null"
    cache_bytes = 2**20

    def __init__(self) -> None:
        self._clocks: dict[str, _Clock] = {}

    def load(self, vmfb: bytes) -> NullProgram:
        """See `Device.load`."""
        try:
            data = mapping(parse_json(vmfb))
            if text(data, "magic") != "null vmfb":
                raise FieldError("magic: expected 'null vmfb'")
            return NullProgram(data, self._clocks)
        except FieldError as error:
            raise RunError(f"loading the vmfb failed: it is not of the null compiler ({error})") from error

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Device.put`."""
        return Operands(operation, tuple(inputs))


class NullProgram:
    """See `Program`."""

    def __init__(self, data: Mapping[str, Any], clocks: dict[str, _Clock]) -> None:
        self._functions = mapping(data.get("functions"), "functions")
        self._repeat = whole(data, "repeat", least=1)
        self._clocks = clocks

    def bind(self, function: str, *operands: Operands) -> NullCall:
        """See `Program.bind`."""
        row = self._functions.get(function)
        if row is None:
            raise RunError(f"the vmfb has no function {function}")
        try:
            row = mapping(row, function)
            compiled = operation_from_dict(mapping(row.get("operation"), "operation"))
            seconds, fault = number(row, "time_ms") / 1e3 * self._repeat, text(row, "fault")
        except (DispatchProfilerError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"the vmfb is damaged: {reason_of(error)}") from error
        clock = self._clocks.setdefault(function, _Clock())
        return NullCall(compiled, list(operands[0].handles), fault, seconds, clock)


class NullCall:
    """See `Call`. Time passes only in what it answers, and a clock of its own tells how much did.

    The faults `clock_*` make it answer something else.
    """

    def __init__(
        self,
        operation: Operation,
        inputs: list[np.ndarray],
        fault: str,
        seconds: float,
        clock: _Clock,
    ) -> None:
        self._operation = operation
        self._inputs = inputs
        self._fault = fault
        self._seconds = seconds
        self._clock = clock
        self._results: tuple[np.ndarray, ...] = ()

    @property
    def now(self) -> Callable[[], float]:
        """See `Call.now`."""
        return lambda: self._clock.passed

    def run(self) -> tuple[np.ndarray, ...]:
        """See `Call.run`."""
        if self._fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._fault == "hang":
            threading.Event().wait()
        if self._fault == "memory":
            raise MemoryError("the null device was told to run out of memory")
        results = self._operation.results
        if not self._results:
            references = self._operation.reference(self._inputs)
            self._results = tuple(
                reference.expected.astype(result.type.dtype)
                for reference, result in zip(references, results, strict=True)
            )
        copies = [array.copy() for array in self._results]
        # The last result has the fault: whoever looks at the first alone misses it.
        return (*copies[:-1], self._spoiled(copies[-1], results[-1]))

    def _spoiled(self, array: np.ndarray, result: Tensor) -> np.ndarray:
        type_ = result.type
        flat = array.reshape(-1)
        middle = flat.size // 2
        if self._fault == "wrong_element":
            # Across zero, further than any tolerance reaches and any type rounds back.
            value = float(flat[middle])
            away = (4.0 + abs(value)) * (1.0 if value < 0 else -1.0)
            flat[middle] = np.asarray(value + away).astype(type_.dtype)
        elif self._fault == "unwritten":
            flat[middle:] = poison(type_, (flat.size - middle,))
        elif self._fault in ("nan", "inf"):
            flat[middle] = np.asarray(float(self._fault)).astype(type_.dtype)
        return array

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        self.run()
        seconds = self._seconds * calls
        self._clock.passed += seconds
        self._clock.asked += 1
        return self._told(seconds)

    def _told(self, seconds: float) -> float:
        """What the clock says instead of `seconds`."""
        if self._fault == "clock_zero":
            return 0.0
        if self._fault == "clock_back":
            return -seconds
        if self._fault == "clock_stalls":
            return seconds if self._clock.asked < _HONEST else 0.3 * seconds
        if self._fault == "clock_drifts":
            return seconds * (1.0 + 0.03 * self._clock.asked)
        return seconds

"""Contracts of the runtime: a device holds buffers and loads programs, a program binds calls.

The runtime knows no operations, only buffers with a shape and an element type. It does not alter the
process that calls it: no scheduling, no environment, no signals. The one exception is Linux's permission to use AMX
(`amx_permission`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import ElementType

# -- timing ----------------------------------------------------------------------------------------

# Seconds of calls: the loop with which kernels, libraries and launches are timed, on both sides of a comparison.


def seconds_of(
    call: Callable[..., object],
    turns: Iterable[Iterable[Any]] = ((),),
    now: Callable[[], float] = time.perf_counter,
    wait: Callable[[], object] | None = None,
) -> float:
    """Seconds of one call of `call` with each of `turns`, which are its arguments, one after another, and of `wait` behind them."""
    start = now()
    for arguments in turns:
        call(*arguments)
    if wait is not None:
        wait()
    return now() - start


def alternating(timers: Sequence[Callable[[], float]], rounds: int, budget: float) -> list[list[float]]:
    """What each of `timers` returns in each round, of which none begins after `budget` seconds."""
    taken: list[list[float]] = [[] for _ in timers]
    end = time.perf_counter() + budget
    for _ in range(rounds):
        for seconds, timer in zip(taken, timers, strict=True):
            seconds.append(timer())
        if time.perf_counter() > end:
            break
    return taken


class RunError(ToolError):
    """The runtime rejected or aborted a call."""


class Buffer(Protocol):
    """A dense tensor on a device, row major in `shape`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def type(self) -> ElementType:
        """Type of each element."""

    def write(self, array: np.ndarray) -> None:
        """Copy `array` to the device. RunError if its shape or type differs."""

    def read(self) -> np.ndarray:
        """A copy of the contents."""

    def copy_from(self, source: Any) -> None:
        """Copy the contents of `source`, a buffer of this device with the same shape and type."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """Buffers that one call reads, and buffers that it writes. Functions take them in this order."""

    operands: tuple[Any, ...]
    results: tuple[Any, ...]


class Call(Protocol):
    """One entry point with its arguments, ready to be run repeatedly."""

    @property
    def now(self) -> Callable[[], float] | None:
        """A clock in seconds, independent of the clock of `time`, to check it; None without a second clock."""

    def invoke(self) -> None:
        """Run once on the first arguments and wait. Raises RunError, WorkerOutOfMemory or WorkerCrashed."""

    def time(self, calls: int) -> float:
        """Run `calls` times, one after another; returns the total in seconds.

        If bound to several arguments, calls take them in turn.
        """


class Program(Protocol):
    """A loaded vmfb."""

    def bind(self, function: str, *arguments: Arguments) -> Call:
        """The call of `function` on these arguments, in turn if several. RunError if it does not exist."""


class Device(Protocol):
    """Something that runs vmfbs."""

    @property
    def cache_bytes(self) -> int:
        """Total bytes of the largest caches of the device; 0 if unknown."""

    def load(self, vmfb: bytes) -> Program:
        """Load a vmfb. RunError for other data, and for a vmfb of another device."""

    def allocate(self, shape: Sequence[int], type_: ElementType) -> Buffer:
        """Uninitialized memory. RunError or WorkerOutOfMemory if it fails."""

    def put(self, array: np.ndarray, type_: ElementType) -> Buffer:
        """A copy of `array` on the device. RunError or WorkerOutOfMemory if it fails."""


def checked(array: np.ndarray, shape: tuple[int, ...], type_: ElementType) -> np.ndarray:
    """`array`, dense, if it has this shape and type; RunError otherwise."""
    if array.shape != shape or array.dtype != type_.dtype:
        raise RunError(f"expected {type_.name} {shape}, but got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array).reshape(shape)  # ascontiguousarray makes a 0-d array 1-d


def raw_clock() -> float:
    """Seconds by a clock that network time does not adjust, unlike the clock of `Call.time`."""
    clock = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)

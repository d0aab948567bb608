"""Contracts of the runtime: a device holds buffers and loads programs, a program binds calls.

Nothing here knows an operation, only buffers with a shape and an element type; and nothing changes the
process that calls it: no scheduling, no environment, no signals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import ElementType


class RunError(ToolError):
    """The runtime rejected a call or broke it off."""


class Buffer(Protocol):
    """A dense tensor on a device, row major in `shape`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def type(self) -> ElementType:
        """Of each element."""

    def write(self, array: np.ndarray) -> None:
        """Copy `array`, of this shape and type, to the device. RunError if it has another one."""

    def read(self) -> np.ndarray:
        """A copy of what the device holds."""

    def copy_from(self, source: Any) -> None:
        """Copy what `source`, a buffer of this device with this shape and type, holds."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """What one call reads, and the destination buffers that it writes. Functions take them in this order."""

    operands: tuple[Any, ...]
    results: tuple[Any, ...]


class Call(Protocol):
    """One entry point with its arguments, ready to be run again and again."""

    @property
    def now(self) -> Callable[[], float] | None:
        """A clock in seconds that `time` does not read, to check it by; None if there is none."""

    def invoke(self) -> None:
        """Run once on the first arguments and wait. RunError, WorkerOutOfMemory or WorkerCrashed if it fails."""

    def time(self, calls: int) -> float:
        """Run `calls` times, one after another; returns the seconds that all took together.

        Bound to several arguments, each call takes the next ones.
        """


class Program(Protocol):
    """A loaded vmfb."""

    def bind(self, function: str, *arguments: Arguments) -> Call:
        """The call of `function` on these arguments, in turns if several. RunError if there is none."""


class Device(Protocol):
    """Something that runs vmfbs."""

    @property
    def cache_bytes(self) -> int:
        """What the largest caches of the device hold together; 0 if that is not known."""

    def load(self, vmfb: bytes) -> Program:
        """Raises RunError if `vmfb` is not for this device, or no vmfb at all."""

    def allocate(self, shape: Sequence[int], type_: ElementType) -> Buffer:
        """Memory that holds anything. RunError or WorkerOutOfMemory if it fails."""

    def put(self, array: np.ndarray, type_: ElementType) -> Buffer:
        """A copy of `array` on the device. RunError or WorkerOutOfMemory if it fails."""


def checked(array: np.ndarray, shape: tuple[int, ...], type_: ElementType) -> np.ndarray:
    """`array`, dense, if it has this shape and type; RunError otherwise."""
    if array.shape != shape or array.dtype != type_.dtype:
        raise RunError(f"expected {type_.name} {shape}, but got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array).reshape(shape)  # which makes a 0-d array 1-d


def raw_clock() -> float:
    """Seconds by a clock that is not steered by the network's time, as that of `Call.time` is."""
    clock = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)

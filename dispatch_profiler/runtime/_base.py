"""Contracts of the runtime room: a device loads programs, a program binds calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import ElementType, Operation


class RunError(ToolError):
    """The runtime refused or broke off a call."""


class Call(Protocol):
    """One entry point with its operands on the device, ready to be run again and again."""

    @property
    def now(self) -> Callable[[], float] | None:
        """A clock in seconds that `time` does not read, to check it by; None if there is none."""

    def run(self) -> np.ndarray:
        """Run once, into memory that held no plausible value before; returns the result."""

    def time(self, calls: int) -> float:
        """Run `calls` times, one after another; returns the seconds that all took together."""


class Program(Protocol):
    """A loaded vmfb."""

    def bind(self, function: str, operation: Operation, inputs: Sequence[np.ndarray]) -> Call:
        """Put `inputs` (shapes and types of `operation.inputs`) on the device. RunError if it fails."""


class Device(Protocol):
    """Something that runs vmfbs."""

    def load(self, vmfb: bytes) -> Program:
        """Raises RunError if `vmfb` is not for this device, or no vmfb at all."""


def poison(type_: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    """What a result's memory holds before a run, so that an element that is not written shows.

    All bits set is NaN in every floating-point type here. In i32 it is a number that no sum of
    i8 products reaches: -2**31 + 1.
    """
    if type_.is_integer:
        return np.full(shape, np.iinfo(type_.dtype).min + 1, type_.dtype)
    return np.full(int(np.prod(shape)) * type_.bytes, 0xFF, np.uint8).view(type_.dtype).reshape(shape)


def raw_clock() -> float:
    """Seconds by a clock that is not steered by the network's time, as that of `Call.time` is."""
    clock = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)

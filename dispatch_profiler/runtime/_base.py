"""Contracts of the runtime room: a device loads programs, a program binds calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import ElementType, Operation


class RunError(ToolError):
    """The runtime refused or broke off a call."""


@dataclass(frozen=True, eq=False)
class Operands:
    """The operands of an operation and the memory of its results, on a device.

    `handles` are the device's own, in the order of `operation.operands`, then of `operation.results`. Every call
    bound to them reads and writes the same memory: where memory lies makes a kernel up to a tenth
    faster or slower, so what is to be compared shares it.
    """

    operation: Operation
    handles: tuple[Any, ...]


class Call(Protocol):
    """One entry point with its operands on the device, ready to be run again and again."""

    @property
    def now(self) -> Callable[[], float] | None:
        """A clock in seconds that `time` does not read, to check it by; None if there is none."""

    def run(self) -> tuple[np.ndarray, ...]:
        """Run once, into memory that held no plausible value before; returns the results."""

    def time(self, calls: int) -> float:
        """Run `calls` times, one after another; returns the seconds that all took together.

        Bound to several operands, each call takes the next ones.
        """


class Program(Protocol):
    """A loaded vmfb."""

    def bind(self, function: str, *operands: Operands) -> Call:
        """The call of `function` on these operands, in turns if several. RunError if there is none."""


class Device(Protocol):
    """Something that runs vmfbs."""

    @property
    def cache_bytes(self) -> int:
        """What the largest caches of the device hold together; 0 if that is not known."""

    def load(self, vmfb: bytes) -> Program:
        """Raises RunError if `vmfb` is not for this device, or no vmfb at all."""

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """Copy `inputs` (shapes and types of `operation.operands`) to the device. RunError if it fails."""


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

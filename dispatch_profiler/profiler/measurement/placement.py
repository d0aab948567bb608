"""Where operands lie in memory, which makes a kernel up to a tenth faster or slower.

Which sets of the caches an array falls into depends on the pages that it got. So that a figure is not
one of a lucky or unlucky place, samples go over several places in turn, and everything that is
compared shares them. Large operands need one place only: they have pages of every kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.kernels import KernelCall, Kernels, Operands
from dispatch_profiler.runtime import RunError

#: Places of one operation, and bytes of all of them together, where they are to be warm.
_PLACES = 64
_PLACES_BYTES = 256 * 2**20
#: By how much operands that are to be cold exceed what the caches hold.
_TIMES_CACHE = 3


def warm_places(operation: Operation) -> int:
    """How many places an operation is measured at: 64, fewer if they are large."""
    return max(1, min(_PLACES, _PLACES_BYTES // operation.bytes))


def cold_places(operation: Operation, cache_bytes: int) -> int:
    """How many places there must be so that, in turn, no cache holds the next one's operands.

    Raises RunError if the cache sizes are unknown (`cache_bytes` is 0).
    """
    if not cache_bytes:
        raise RunError("how large the caches of this device are is not known: measure with --mode=warm")
    return math.ceil(_TIMES_CACHE * cache_bytes / operation.bytes) + 1


class Places:
    """The same operands at several places of a device's memory, made as they are asked for."""

    def __init__(self, device: Kernels, operation: Operation, inputs: Sequence[np.ndarray]) -> None:
        self.operation = operation
        self.device = device
        self._inputs = inputs
        self._made: list[Operands] = []

    def at(self, place: int) -> Operands:
        """Those of a number, from 0. Raises RunError and WorkerOutOfMemory."""
        return self.first(place + 1)[place]

    def first(self, count: int) -> tuple[Operands, ...]:
        """So many of them. Raises RunError and WorkerOutOfMemory."""
        while len(self._made) < count:
            self._made.append(self.device.put(self.operation, self._inputs))
        return tuple(self._made[:count])


class Stage(NamedTuple):
    """A call at one place, and one of a single execution there, which brings operands into the caches."""

    call: KernelCall
    warm_up: KernelCall


class Rotation:
    """Calls at one place after another, of `places`, from number `begin` on; `stage` makes each.

    `advance` goes on to the next place and tells which it is, `time` stays there.
    """

    def __init__(self, stage: Callable[[int], Stage], places: int, begin: int = 0) -> None:
        self._make = stage
        self._places = places
        self._next = begin
        self._stage: Stage | None = None

    def advance(self) -> int:
        """Go on to the next place, the operands there warm."""
        is_warm = self._places == 1 and self._stage is not None
        number, self._next = self._next, self._next + 1
        self._stage = self._make(number)
        if not is_warm:
            self._stage.warm_up.time(1)
        return number % self._places

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        assert self._stage is not None
        return self._stage.call.time(calls)

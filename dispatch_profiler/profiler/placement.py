"""Where operands lie in memory, which makes a kernel up to a tenth faster or slower.

Which sets of the caches an array falls into depends on the pages that it got. So that a figure is not
one of a lucky or unlucky place, samples go over several places in turn, and everything that is
compared shares them. Large operands need one place only: they have pages of every kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime import Call, Device, Operands, RunError

#: Places of one operation, and bytes of all of them together, where they are to be warm.
_PLACES = 8
_PLACES_BYTES = 64 * 2**20
#: By how much operands that are to be cold exceed what the caches hold.
_TIMES_CACHE = 3


def warm_places(operation: Operation) -> int:
    """How many places an operation is measured at: 8, fewer if they are large."""
    return max(1, min(_PLACES, _PLACES_BYTES // operation.bytes))


def cold_places(operation: Operation, cache_bytes: int) -> int:
    """How many places there must be so that, in turn, no cache holds the next one's operands.

    Raises RunError if nobody knows the caches (`cache_bytes` is 0).
    """
    if not cache_bytes:
        raise RunError("how large the caches of this device are is not known: measure with --mode=warm")
    return math.ceil(_TIMES_CACHE * cache_bytes / operation.bytes) + 1


class Places:
    """The same operands at several places of a device's memory, made as they are asked for."""

    def __init__(self, device: Device, operation: Operation, inputs: Sequence[np.ndarray]) -> None:
        self.operation = operation
        self.device = device
        self._inputs = inputs
        self._made: list[Operands] = []

    def first(self, count: int) -> tuple[Operands, ...]:
        """So many of them. Raises RunError and WorkerOutOfMemory."""
        while len(self._made) < count:
            self._made.append(self.device.put(self.operation, self._inputs))
        return tuple(self._made[:count])


class Rotation:
    """A call at each of several places. `advance` goes on to the next, `time` stays there.

    `warm_ups` are calls of one execution at the same places: they bring the operands into the caches.
    """

    def __init__(self, calls: Sequence[Call], warm_ups: Sequence[Call]) -> None:
        self._calls = calls
        self._warm_ups = warm_ups
        self._at = 0

    def advance(self) -> None:
        """Go on to the next place, the operands there warm."""
        if len(self._calls) > 1:
            self._at = (self._at + 1) % len(self._calls)
            self._warm_ups[self._at].time(1)

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        return self._calls[self._at].time(calls)

"""Where operands lie in memory, which makes a kernel up to 10 % faster or slower.

The pages of an array determine which sets of the caches it uses. So that a result does not depend on one
lucky or unlucky place, samples rotate over several places, and everything that is compared shares them.
Large operands need only one place: they have pages of every kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.kernels import KernelCall, Kernels, Operands
from dispatch_profiler.runtime import RunError

#: Places of one operation in warm mode, and bytes of all of them together.
_PLACES = 64
_PLACES_BYTES = 256 * 2**20
#: Factor by which operands in cold mode exceed the caches.
_TIMES_CACHE = 3


def warm_places(operation: Operation) -> int:
    """Number of places at which an operation is measured: 64, fewer if they are large."""
    return max(1, min(_PLACES, _PLACES_BYTES // operation.bytes))


def cold_places(operation: Operation, cache_bytes: int) -> int:
    """Number of places so that, in rotation, no cache holds the next one's operands.

    Raises RunError if the cache sizes are unknown (`cache_bytes` is 0).
    """
    if not cache_bytes:
        raise RunError("the cache sizes of this device are unknown: measure with --mode=warm")
    return math.ceil(_TIMES_CACHE * cache_bytes / operation.bytes) + 1


class Places:
    """The same operands at several places of a device's memory, allocated on demand."""

    def __init__(self, device: Kernels, operation: Operation, inputs: Sequence[np.ndarray]) -> None:
        self.operation = operation
        self.device = device
        self._inputs = inputs
        self._made: list[Operands] = []

    @property
    def bytes(self) -> int:
        """Bytes of the places allocated so far."""
        return len(self._made) * self.operation.bytes

    def at(self, place: int) -> Operands:
        """The operands at number `place`, from 0. Raises RunError and WorkerOutOfMemory."""
        return self.first(place + 1)[place]

    def first(self, count: int) -> tuple[Operands, ...]:
        """The operands at the first `count` places. Raises RunError and WorkerOutOfMemory."""
        while len(self._made) < count:
            self._made.append(self.device.put(self.operation, self._inputs))
        return tuple(self._made[:count])


class Stage(NamedTuple):
    """A call at one place, and a single execution there, which brings the operands into the caches."""

    call: KernelCall
    warm_up: KernelCall


class Rotation:
    """Calls that rotate over `places` places, from number `begin` on; `stage` makes each.

    `advance` moves to the next place and returns its number, `time` stays there.
    """

    def __init__(self, stage: Callable[[int], Stage], places: int, begin: int = 0) -> None:
        self._make = stage
        self._places = places
        self._next = begin
        self._stage: Stage | None = None

    def advance(self) -> int:
        """Move to the next place and warm up the operands there."""
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

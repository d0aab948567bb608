"""Sentinels of operations: the best dispatch of each, sampled again beside the others, shows whether the machine is slower.

Some seconds in which another machine uses the core slow down every sample of a round. Without a sentinel, all of its
candidates would look slower than the best one, which was measured before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.measurement.sample_batches import SampleBatch
from dispatch_profiler.profiler.statistics.intervals import quantile

#: The machine is slower if the sentinel takes this many times its usual time: its place in memory alone changes some percent.
_SLOWER = 1.1


@dataclass
class Sentinel:
    """A dispatch that was measured in `batches`, and its samples in the present group, in milliseconds."""

    candidate: Candidate
    batches: tuple[SampleBatch, ...]
    single_seconds: float
    usual_ms: float
    samples_ms: list[float] = field(default_factory=list)
    turns: int = 0

    @property
    def batches_before(self) -> tuple[SampleBatch, ...]:
        """The sample batches that the next one continues: its place is one of theirs, in turn."""
        return self.batches[: 1 + self.turns % len(self.batches)]

    def add(self, batch: SampleBatch) -> None:
        """Another sample batch."""
        self.samples_ms += batch.samples_ms
        self.turns += 1

    @property
    def slowdown(self) -> float:
        """The lowest decile of the samples, relative to the usual time; 1 without samples."""
        return quantile(self.samples_ms, 0.1) / self.usual_ms if self.samples_ms else 1.0


class Sentinels:
    """The sentinel of each operation; an operation without one counts as undisturbed."""

    def __init__(self) -> None:
        self._found: dict[Operation, Sentinel] = {}

    def learn(self, new: Sentinel) -> None:
        """Take a dispatch as the sentinel of its operation if it is the fastest."""
        operation = new.candidate.dispatch.operation
        if operation not in self._found or new.usual_ms < self._found[operation].usual_ms:
            self._found[operation] = new

    def beside(self, candidates: Collection[Candidate]) -> list[Sentinel]:
        """The sentinels of the operations of `candidates`."""
        operations = dict.fromkeys(each.dispatch.operation for each in candidates)
        return [self._found[each] for each in operations if each in self._found]

    def drop(self, sentinel: Sentinel) -> None:
        """Use this one no more: it failed."""
        self._found.pop(sentinel.candidate.dispatch.operation, None)

    def is_slow(self, operation: Operation) -> bool:
        """Whether the machine has been slower since the sampling of the present group began."""
        sentinel = self._found.get(operation)
        return sentinel is not None and sentinel.slowdown > _SLOWER

    def settle(self) -> None:
        """The group is done: a machine that stayed slower has changed, and that is the usual time from now on."""
        for each in self._found.values():
            each.usual_ms *= max(1.0, each.slowdown)
            each.samples_ms.clear()

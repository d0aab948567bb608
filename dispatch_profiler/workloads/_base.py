"""A workload: operations, how often each runs, and their origin."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.operations import Operation


@dataclass(frozen=True)
class WorkloadEntry:
    """One operation of a workload. `origin` names its source."""

    operation: Operation
    count: int = 1
    origin: str = ""


@dataclass(frozen=True)
class Workload:
    """Entries in the order in which they were read, with distinct operations."""

    entries: tuple[WorkloadEntry, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(entry.operation for entry in self.entries)


def merged(entries: list[WorkloadEntry]) -> Workload:
    """A workload that merges entries with equal operations and adds up their counts."""
    counts: dict[Operation, int] = {}
    origins: dict[Operation, str] = {}
    for entry in entries:
        counts[entry.operation] = counts.get(entry.operation, 0) + entry.count
        origins.setdefault(entry.operation, entry.origin)
    return Workload(tuple(WorkloadEntry(op, count, origins[op]) for op, count in counts.items()))

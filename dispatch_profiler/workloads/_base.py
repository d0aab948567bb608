"""A workload: operations, how often each runs, and their origin."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    by_operation: dict[Operation, WorkloadEntry] = {}
    for entry in entries:
        first = by_operation.setdefault(entry.operation, entry)
        if first is not entry:
            by_operation[entry.operation] = replace(first, count=first.count + entry.count)
    return Workload(tuple(by_operation.values()))

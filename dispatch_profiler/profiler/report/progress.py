"""How far a run is, for those who wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.profiler.report.console import runtime_text


@dataclass
class Tally:
    """Counts the records of a run of `total`; `clock` tells seconds."""

    total: int
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    failed: int = 0
    #: Whether the last one counts: of what several devices measured, the first does.
    step: int = 0
    started: float = field(init=False)

    _seen: set[tuple[str, str]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def add(self, record: Record) -> None:
        """One more is done."""
        key = (record.dispatch.name, record.provider)
        self.step = int(key not in self._seen)
        self._seen.add(key)
        self.done += self.step
        self.failed += record.is_failure

    def note(self) -> str:
        """Beside a bar."""
        return f"{self.failed} failed" if self.failed else ""

    def line(self, record: Record) -> str:
        """What became of the last one, how far the run is, and how long it still takes if the rest is alike."""
        figure = f", {runtime_text(record)} ms" if record.measurement is not None else ""
        left = (self.clock() - self.started) / self.done * (self.total - self.done)
        where = f"{self.done} of {self.total}, {timedelta(seconds=round(left))} left"
        return f"[Profiling]: {record.dispatch.name}: {record.verdict.value}{figure}  [{where}]"

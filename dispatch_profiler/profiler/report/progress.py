"""The progress of a run, and an estimate of the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dispatch_profiler.console.remaining_time import RemainingTime, time_text
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.profiler.report.console import runtime_text


def reference_costs(candidates: Iterable[Candidate]) -> list[float | None]:
    """The work of each candidate's reference, for `RemainingTime`."""
    before = None
    costs: list[float | None] = []
    for candidate in candidates:
        operation = candidate.dispatch.operation
        costs.append(None if operation == before else float(operation.flops))
        before = operation
    return costs


@dataclass
class Tally:
    """Counts the records of a run over `candidates`; `clock` returns seconds."""

    candidates: Sequence[Candidate]
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    failed: int = 0
    #: 1 if the last record counts, else 0: if several devices measure a dispatch, the first record does.
    step: int = 0

    _seen: set[tuple[str, str]] = field(init=False, default_factory=set)
    _remaining: RemainingTime = field(init=False)

    def __post_init__(self) -> None:
        self._remaining = RemainingTime(reference_costs(self.candidates), self.clock())

    def begun(self) -> Iterator[Candidate]:
        """Yield the candidates; each begins when it is taken."""
        for candidate in self.candidates:
            self._remaining.begin(self.clock())
            yield candidate

    def add(self, record: Record) -> None:
        """Count a finished record."""
        key = (record.dispatch.name, record.provider)
        self.step = int(key not in self._seen)
        self._seen.add(key)
        self.done += self.step
        self.failed += record.is_failure
        if self.step:
            self._remaining.finish(self.clock())

    def note(self) -> str:
        """The text beside the progress bar."""
        return f"{self.failed} failed" if self.failed else ""

    @property
    def seconds_left(self) -> float | None:
        """The remaining time; None while unknown."""
        return self._remaining.left(self.clock())

    def left(self) -> str:
        """The remaining time, `0:01:30`; `-:--:--` while unknown."""
        return time_text(self.seconds_left)

    def line(self, record: Record) -> str:
        """The outcome of the latest record, the progress of the run, and the remaining time."""
        figure = f", {runtime_text(record)} ms" if record.measurement is not None else ""
        where = f"{self.done} of {len(self.candidates)}, {self.left()} left"
        return f"[Profiling]: {record.dispatch.name}: {record.verdict.value}{figure}  [{where}]"

"""Evaluators that are invented: what each device was given, and where it fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from search_samples import ORIGIN

from dispatch_profiler.errors import TargetError
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.verification.verify import VerifiedHashes

GONE = "the device is gone"


class Bench:
    """Invented evaluators: what each device was given, and where it fails."""

    def __init__(self) -> None:
        self.given: dict[str, list[str]] = {}
        self.breaks_at: dict[str, int] = {}
        self.broken: set[str] = set()
        self.killed: list[str] = []

    def evaluator(self, options: EvaluatorOptions, hashes: VerifiedHashes | None = None) -> Evaluator:
        return Evaluator(self, options.device)


class Evaluator:
    def __init__(self, bench: Bench, device: str) -> None:
        self._bench = bench
        self._device = device
        self._given = bench.given.setdefault(device, [])

    def check_device(self) -> None:
        if self._device in self._bench.broken:
            raise TargetError(GONE)

    def prepare(self, operation: Operation) -> None: ...

    def verify(self, candidate: Candidate) -> None: ...

    def records(self, candidates: Iterable[Candidate]) -> Iterator[Record]:
        for candidate in candidates:
            record = Record(candidate.dispatch, replace(ORIGIN, device=self._device), Verdict.SUCCESS)
            if self._device in self._bench.broken:
                yield record.failed(Verdict.CRASHED, GONE)
                continue
            self._given.append(candidate.dispatch.name)
            if len(self._given) == self._bench.breaks_at.get(self._device):
                self._bench.broken.add(self._device)
                record = record.failed(Verdict.CRASHED, "killed by SIGBUS")
            yield record

    def kill(self) -> None:
        self._bench.killed.append(self._device)

    def close(self) -> None: ...

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exception: object) -> None: ...

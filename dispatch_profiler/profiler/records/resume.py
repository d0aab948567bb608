"""The dispatches that a resumed run still has to measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from dispatch_profiler.outside_causes import outside_cause
from dispatch_profiler.profiler.records.record import Provenance, StoredRecord, Verdict

Work = TypeVar("Work")


@dataclass(frozen=True)
class Wanted:
    """The outcomes that a run must determine for each dispatch."""

    verify: bool
    profile: bool
    mode: str

    def is_in(self, record: StoredRecord) -> bool:
        """True if `record` is complete.

        A failure is complete, unless it lacked memory, processes or disk space or was ended from outside. An interrupted
        measurement is not.
        """
        if record.verdict.is_failure and outside_cause(record.reason):
            return False
        if record.verdict.is_failure or record.verdict is Verdict.NOT_SUPPORTED:
            return True
        if self.verify and record.verdict is Verdict.NOT_VERIFIED and not record.reason:
            return False
        if record.measurement is None:
            return not self.profile
        return record.measurement.mode == self.mode and not record.measurement.was_interrupted


def left_to_do(
    work: Iterable[Work],
    origins: Callable[[Work], Iterable[tuple[str, Provenance]]],
    records: Iterable[StoredRecord],
    wanted: Wanted,
) -> tuple[list[Work], list[StoredRecord]]:
    """The part of `work` without a complete record in `records`, and the complete records.

    `origins` yields the name of each dispatch and the provenance its record would have, for each device.
    """
    done = {(each.dispatch, each.provenance.origin): each for each in records if wanted.is_in(each)}
    left, finished = [], []
    for each in work:
        keys = [(name, provenance.origin) for name, provenance in origins(each)]
        known = [done[key] for key in keys if key in done]
        finished += known
        if not known:
            left.append(each)
    return left, finished

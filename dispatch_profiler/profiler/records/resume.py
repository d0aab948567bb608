"""What a run that is resumed has left to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from dispatch_profiler.profiler.records.record import Provenance, Verdict
from dispatch_profiler.profiler.records.record_file import StoredRecord

Work = TypeVar("Work")


@dataclass(frozen=True)
class Wanted:
    """What a run is to find out of each dispatch."""

    verify: bool
    profile: bool
    mode: str

    def is_in(self, record: StoredRecord) -> bool:
        """Does `record` hold all of it? A failure does, a measurement that was interrupted does not."""
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
    """The part of `work` of which `records` do not hold what is wanted, and the records that do.

    `origins` gives each dispatch by name, with the provenance that its record would have on each device.
    """
    done = {(each.dispatch, each.provenance.origin): each for each in records if wanted.is_in(each)}
    left, found = [], []
    for each in work:
        keys = [(name, provenance.origin) for name, provenance in origins(each)]
        known = [done[key] for key in keys if key in done]
        found += known
        if not known:
            left.append(each)
    return left, found

"""How fast a record is relative to the compiler's default, to a reference, and to the hardware's peak.

The only place that computes it: console, CSV, Markdown and HTML take their figures from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dispatch_profiler.configurations import Default
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import PROVIDER, Record
from dispatch_profiler.profiler.records.record_file import StoredRecord, as_stored
from dispatch_profiler.profiler.statistics.comparison import Ratio, location, ratio

#: What speeds are relative to if it is no library: the compiler's own choice.
DEFAULT_REFERENCE = "default"
_BASELINE = Default().name
_ITSELF = Ratio(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Speedup:
    """Speeds as ratios with their 95 % intervals, 2 is twice as fast; None where a side has no figure.

    `of_limit` is relative to the roofline at the operation's arithmetic intensity.
    """

    vs_default: Ratio | None
    vs_reference: Ratio | None
    of_limit: float | None


def is_default(record: StoredRecord) -> bool:
    """Is it the compiler's own choice?"""
    return record.provider == PROVIDER and record.configuration == _BASELINE


def speed_ratio(record: StoredRecord, baseline: StoredRecord | None) -> Ratio | None:
    """The speed of `record` relative to `baseline`, of medians; None if one of them has no figure.

    An end of the interval is 0 or infinite where samples tell nothing of it.
    """
    ms, baseline_ms = median_ms(record), median_ms(baseline)
    if ms is None or baseline_ms is None or baseline is None:
        return None
    if record is baseline:
        return _ITSELF
    value = baseline_ms / ms
    low, high = _interval(record.measurement, baseline.measurement)
    theirs, ours = _overhead_part(baseline.measurement), _overhead_part(record.measurement)
    low = low * max(0.0, 1.0 - theirs) / (1.0 + ours)
    high = high * (1.0 + theirs) / (1.0 - ours) if ours < 1.0 else math.inf
    return Ratio(value, min(value, low), max(value, high))


def _interval(measurement: Measurement | None, baseline: Measurement | None) -> tuple[float, float]:
    sides = [each.independent_ms for each in (measurement, baseline) if each is not None]
    if any(len(samples) < 2 or min(samples) <= 0.0 for samples in sides):
        return 0.0, math.inf
    found = ratio(*map(location, sides))
    return found.low, found.high


def _overhead_part(measurement: Measurement | None) -> float:
    """How far the overhead that was taken off may be off, relative to the median."""
    return measurement.overhead_error_ms / measurement.median_ms if measurement is not None else 0.0


def median_ms(record: Record | StoredRecord | None) -> float | None:
    """Milliseconds; None if there is no figure to compare."""
    if record is None or record.measurement is None or record.verdict.is_failure:
        return None
    median = record.measurement.median_ms
    return median if 0.0 < median < math.inf else None


def speedup_text(found: Ratio | None) -> str:
    """`1.45x (0.92-2.30) ~`: speed, interval, and a mark if the interval includes 1; empty for None.

    What is compared with itself, and what has no interval, has none.
    """
    if found is None:
        return ""
    if found == _ITSELF:
        return "1.00x"
    known = (
        f" ({_digits(found.low)}-{_digits(found.high)})" if found.low > 0 and found.high < math.inf else ""
    )
    return f"{found.value:.2f}x{known}{' ~' if includes_one(found) else ''}"


def includes_one(found: Ratio) -> bool:
    """May it be as fast as what it is compared with?"""
    return found != _ITSELF and found.low <= 1.0 <= found.high


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10.0 else f"{value:.0f}"


#: An operation, and where it was measured: machine, device, target. No baseline serves elsewhere.
_Key = tuple[str, str, str, str]


class SpeedupsOfRuns:
    """Speedups of records in the order of a file, which may hold several runs.

    Another run begins where a dispatch comes again. A record is compared with the baseline of its own
    run on the same machine and device and for the same target; without one, with that of the latest run
    before it by the same software. Of several records of one baseline the last counts, and one without a figure
    clears it: a wrong result has no speed.

    `reference` is `default` or the name of a provider.
    """

    def __init__(
        self, reference: str = DEFAULT_REFERENCE, records: Iterable[Record | StoredRecord] = ()
    ) -> None:
        self.reference = reference
        self.records: list[StoredRecord] = []
        self._runs: list[_Run] = []
        self._run_of: list[int] = []
        for record in records:
            self.add(record)

    def add(self, record: Record | StoredRecord) -> int:
        """Take the next record; the index of the first record whose place or speedup changes by it.

        It replaces the interrupted measurement of the same dispatch in its run.
        """
        new = as_stored(record)
        if not self._runs or not self._runs[-1].has_place_for(new):
            self._runs.append(_Run())
        run = self._runs[-1]
        replaced = run.seen.get(_identity(new))
        if replaced is not None:
            return self._replace(replaced, new)
        index = len(self.records)
        run.seen[_identity(new)] = new
        first = run.first.setdefault(_key(new), index)
        self.records.append(new)
        self._run_of.append(len(self._runs) - 1)
        is_baseline = run.learn(new, self.reference)
        return first if is_baseline else index

    def _replace(self, old: StoredRecord, new: StoredRecord) -> int:
        kept = [record for record in self.records if record is not old]
        again = SpeedupsOfRuns(self.reference, [*kept, new])
        self.records, self._runs, self._run_of = again.records, again._runs, again._run_of
        return 0

    def of(self, index: int) -> Speedup:
        """Where the record at `index` stands."""
        record = self.records[index]
        median = median_ms(record)
        limit = record.roofline_ms / median if record.roofline_ms and median else None
        return Speedup(
            speed_ratio(record, self._baseline(index, DEFAULT_REFERENCE)),
            speed_ratio(record, self._baseline(index, self.reference)),
            limit,
        )

    def all(self) -> Iterator[tuple[StoredRecord, Speedup]]:
        """Each record with its speedup."""
        return ((record, self.of(index)) for index, record in enumerate(self.records))

    def _baseline(self, index: int, reference: str) -> StoredRecord | None:
        record, run = self.records[index], self._run_of[index]
        key = reference, _key(record)
        if key in self._runs[run].baselines:
            return self._runs[run].baselines[key]
        for earlier in reversed(self._runs[:run]):
            found = earlier.baselines.get(key)
            if found is not None and _may_serve(found, record):
                return found
        return None


class _Run:
    """What is known of one run."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str, _Key], StoredRecord] = {}
        #: Where the first record of each operation stands in the file.
        self.first: dict[_Key, int] = {}
        self.baselines: dict[tuple[str, _Key], StoredRecord | None] = {}

    def has_place_for(self, record: StoredRecord) -> bool:
        """Is `record` of this run?"""
        known = self.seen.get(_identity(record))
        return known is None or (
            known.was_interrupted and known.provenance.origin == record.provenance.origin
        )

    def learn(self, record: StoredRecord, reference: str) -> bool:
        """Note a record that others are compared with; False if it is none."""
        names = [DEFAULT_REFERENCE] if is_default(record) else []
        names += [record.provider] if record.provider == reference else []
        for name in names:
            self.baselines[name, _key(record)] = record if median_ms(record) is not None else None
        return bool(names)


def _may_serve(baseline: StoredRecord, record: StoredRecord) -> bool:
    """May `record` be compared with a baseline of an earlier run?"""
    same = baseline.provenance.software == record.provenance.software
    return same or baseline.provider != record.provider


def _identity(record: StoredRecord) -> tuple[str, str, _Key]:
    return record.dispatch, record.provider, _key(record)


def _key(record: StoredRecord) -> _Key:
    origin = record.provenance
    return record.operation, origin.machine.name, origin.device, origin.target

"""The speed of a record relative to the compiler's default, a reference and the hardware's peak.

Console, CSV, Markdown and HTML all take their figures from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dispatch_profiler.configurations import Default
from dispatch_profiler.profiler.measurement.measure import Included, Measurement
from dispatch_profiler.profiler.records.record import PROVIDER, Record, StoredRecord, as_stored
from dispatch_profiler.profiler.statistics.comparison import Ratio, location, ratio

#: The reference if it is not a library: the compiler's own choice.
DEFAULT_REFERENCE = "default"
_BASELINE = Default().name
_ITSELF = Ratio(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Speedup:
    """Speedups with their 95 % intervals (2 is twice as fast); None if either side has no measurement.

    `of_limit` is relative to the roofline at the operation's arithmetic intensity.
    """

    vs_default: Ratio | None
    vs_reference: Ratio | None
    of_limit: float | None


def is_default(record: StoredRecord) -> bool:
    """True for the compiler's own choice."""
    return record.provider == PROVIDER and record.configuration == _BASELINE


def packs_weight(record: StoredRecord) -> bool:
    """True for a dispatch whose time does not include converting the weight, which is packed at load time.

    It is never the best of an operation, because the times of other dispatches include more.
    """
    includes = record.measurement.includes if record.measurement is not None else ()
    return record.provider == PROVIDER and bool(includes) and Included.WEIGHT_CONVERSION not in includes


def speed_ratio(record: StoredRecord, baseline: StoredRecord | None) -> Ratio | None:
    """The speed of `record` relative to `baseline`, from medians; None if either has no valid measurement.

    An end of the interval is 0 or infinite if the samples do not determine it.
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
    of_sides = ratio(*map(location, sides))
    return of_sides.low, of_sides.high


def _overhead_part(measurement: Measurement | None) -> float:
    """The uncertainty of the subtracted overhead, relative to the median."""
    return measurement.overhead_error_ms / measurement.median_ms if measurement is not None else 0.0


def median_ms(record: Record | StoredRecord | None) -> float | None:
    """The median in milliseconds; None without a valid measurement."""
    if record is None or record.measurement is None or record.verdict.is_failure:
        return None
    median = record.measurement.median_ms
    return median if 0.0 < median < math.inf else None


def speedup_text(speedup: Ratio | None) -> str:
    """`1.45x (0.92-2.30) ~`: speedup, interval, and a mark if the interval includes 1; empty for None.

    The interval is omitted if it is unknown, or if a record is compared with itself.
    """
    if speedup is None:
        return ""
    if speedup == _ITSELF:
        return "1.00x"
    interval = (
        f" ({_digits(speedup.low)}-{_digits(speedup.high)})"
        if speedup.low > 0 and speedup.high < math.inf
        else ""
    )
    return f"{speedup.value:.2f}x{interval}{' ~' if includes_one(speedup) else ''}"


def includes_one(speedup: Ratio) -> bool:
    """True if the interval includes 1, so that both may be equally fast."""
    return speedup != _ITSELF and speedup.low <= 1.0 <= speedup.high


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10.0 else f"{value:.0f}"


#: Operation, machine, device and target. A baseline applies only where all four match.
_Key = tuple[str, str, str, str]


class SpeedupsOfRuns:
    """Speedups of records in file order. A file may hold several runs.

    A new run begins when a dispatch is repeated. A record is compared with the baseline of its own run on the
    same machine, device and target; otherwise with the baseline of the latest earlier run by the same
    software. If a baseline was measured several times, the last record counts; a record without a valid
    measurement clears the baseline, because a wrong result has no speed.

    `reference` is `default` or the name of a provider.
    """

    def __init__(
        self, reference: str = DEFAULT_REFERENCE, records: Iterable[Record | StoredRecord] = ()
    ) -> None:
        self.reference = reference
        self.records: list[StoredRecord] = []
        self._runs: list[_RecordedRun] = []
        self._run_of: list[int] = []
        for record in records:
            self.add(record)

    def add(self, record: Record | StoredRecord) -> int:
        """Add the next record; returns the index of the first record whose place or speedup changes.

        Replaces an interrupted measurement of the same dispatch in its run.
        """
        new = as_stored(record)
        if not self._runs or not self._runs[-1].has_place_for(new):
            self._runs.append(_RecordedRun())
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
        """The speedups of the record at `index`."""
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
            baseline = earlier.baselines.get(key)
            if baseline is not None and _may_serve(baseline, record):
                return baseline
        return None


class _RecordedRun:
    """The records and baselines of one run."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str, _Key], StoredRecord] = {}
        #: The index of the first record of each operation.
        self.first: dict[_Key, int] = {}
        self.baselines: dict[tuple[str, _Key], StoredRecord | None] = {}

    def has_place_for(self, record: StoredRecord) -> bool:
        """True if `record` belongs to this run."""
        known = self.seen.get(_identity(record))
        return known is None or (
            known.was_interrupted and known.provenance.origin == record.provenance.origin
        )

    def learn(self, record: StoredRecord, reference: str) -> bool:
        """Store `record` if it is a baseline; returns whether it is."""
        names = [DEFAULT_REFERENCE] if is_default(record) else []
        names += [record.provider] if record.provider == reference else []
        for name in names:
            self.baselines[name, _key(record)] = record if median_ms(record) is not None else None
        return bool(names)


def _may_serve(baseline: StoredRecord, record: StoredRecord) -> bool:
    """True if `record` may be compared with `baseline`, which is from an earlier run."""
    same = baseline.provenance.software == record.provenance.software
    return same or baseline.provider != record.provider


def _identity(record: StoredRecord) -> tuple[str, str, _Key]:
    return record.dispatch, record.provider, _key(record)


def _key(record: StoredRecord) -> _Key:
    origin = record.provenance
    return record.operation, origin.machine.name, origin.device, origin.target

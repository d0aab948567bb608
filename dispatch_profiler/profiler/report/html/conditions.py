"""The conditions of the measurements: one row for each set of conditions, and the warnings."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dispatch_profiler.profiler.measurement.measure import Measurement, included_text
from dispatch_profiler.profiler.records.record import StoredRecord

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Condition:
    """Conditions shared by a number of `dispatches`, as text."""

    dispatches: int
    run: str
    provider: str
    machine: str
    device: str
    target: str
    software: str
    seed: str
    tags: str
    mode: str
    includes: str
    samples: str
    executions: str
    overhead: str
    ended_by: str
    interval: str
    when: str


def conditions(records: Sequence[StoredRecord], runs: Sequence[str] = ()) -> list[Condition]:
    """The conditions, in the order of the records. `runs` has the run of each; empty for a single run."""
    by_condition: dict[tuple[str, ...], list[StoredRecord]] = {}
    for record, run in zip(records, runs or [""] * len(records), strict=True):
        origin = record.provenance
        tags = ", ".join(f"{name}: {value}" for name, value in record.tags.items())
        taken = record.measurement
        mode, includes = (
            ("not measured", "") if taken is None else (taken.mode, included_text(taken.includes))
        )
        key = (
            run,
            record.provider,
            origin.machine.text,
            origin.device,
            origin.target,
            origin.software,
            str(origin.seed),
            tags,
            mode,
            includes,
        )
        by_condition.setdefault(key, []).append(record)
    return [Condition(len(members), *key, *_measured(members)) for key, members in by_condition.items()]


def _measured(records: Sequence[StoredRecord]) -> tuple[str, ...]:
    """Samples, executions, overhead, reason for stopping, interval and time, as text."""
    taken = [record.measurement for record in records if record.measurement is not None]
    ended = Counter(each.ended_by for each in taken)
    return (
        _span(len(each.samples_ms) for each in taken),
        _span(each.executions for each in taken),
        _span(each.overhead_ms for each in taken),
        ", ".join(f"{why} ({count})" for why, count in ended.most_common()),
        _interval(taken),
        _period(record.provenance.when for record in records),
    )


def _span(values: Iterable[float]) -> str:
    """`5`, or `5 to 40`."""
    ordered = sorted(values)
    if not ordered:
        return ""
    low, high = f"{ordered[0]:.4g}", f"{ordered[-1]:.4g}"
    return low if low == high else f"{low} to {high}"


def _period(times: Iterable[str]) -> str:
    ordered = sorted(time for time in times if time)
    if not ordered:
        return ""
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def _interval(taken: Sequence[Measurement]) -> str:
    """The relative half width of the median's interval: the median and the maximum over `taken`."""
    halves = []
    for each in taken:
        if each.has_interval and each.median_ms > 0:
            low, high = each.interval_ms
            halves.append((high - low) / 2 / each.median_ms)
    if not halves:
        return ""
    return f"±{statistics.median(halves):.2%} typical, ±{max(halves):.2%} worst"


def warnings(records: Sequence[StoredRecord]) -> list[tuple[str, int]]:
    """Each kind of warning with the number of affected dispatches, the most frequent first.

    Warnings that differ only in numbers are of one kind, represented by the first one.
    """
    examples: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for record in records:
        if record.measurement is not None:
            kinds = {_NUMBER.sub("0", text): text for text in record.measurement.warnings}
            examples = {**kinds, **examples}
            counts.update(kinds.keys())
    return sorted(
        ((examples[kind], count) for kind, count in counts.items()), key=lambda one: (-one[1], one[0])
    )

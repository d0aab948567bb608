"""Pairs two sets of records, and determines the outcome of each pair."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.profiler.measurement.measure import Measurement, differences, included_text
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance, StoredRecord
from dispatch_profiler.profiler.statistics.comparison import (
    Location,
    Outcome,
    Ratio,
    geometric_mean,
    location_of_runs,
    needed_samples,
    ratio,
)
from dispatch_profiler.runtime import DeviceUri

#: Execution counts, and sample lengths, that differ by a larger factor were chosen in different ways.
_ALIKE = 2.0


class By(str, Enum):
    """The key that two records must share to be compared."""

    DISPATCH = "dispatch"
    #: For comparing one configuration with another.
    OPERATION = "operation"


@dataclass(frozen=True)
class CompareOptions:
    """`threshold` is the largest relative difference that counts as the same."""

    threshold: float = 0.01
    confidence: float = 0.95
    by: By = By.DISPATCH


@dataclass(frozen=True)
class Pair:
    """A comparison of new with base: an outcome with its reason, and a ratio of times, new over base.

    `ratio` is None if a side has no samples. `base_ms` and `new_ms` are the sides' centres in ms.
    """

    name: str
    operation: str
    configuration: str
    provider: str
    outcome: Outcome
    reason: str
    ratio: Ratio | None = None
    base_ms: float | None = None
    new_ms: float | None = None


@dataclass(frozen=True)
class SideSummary:
    """The origins of one side's records: all devices, targets and revisions."""

    name: str
    devices: tuple[str, ...]
    targets: tuple[str, ...]
    revisions: tuple[str, ...]
    #: Known machines only.
    machines: tuple[Machine, ...] = ()
    seeds: tuple[int, ...] = ()
    #: State of the caches, `warm` or `cold`, and what times include, where records state it.
    modes: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunComparison:
    """All pairs of two sets of records, in the order of base, followed by pairs that only new has."""

    base: SideSummary
    new: SideSummary
    pairs: tuple[Pair, ...]
    options: CompareOptions
    #: True if all pairs have at least two runs on both sides.
    repeated: bool
    #: True if measured by paired sampling.
    live: bool = False
    #: Other differences between the sides, besides machines and devices: `seed: 3 vs. 7`.
    differences: tuple[str, ...] = ()

    @property
    def mean(self) -> Ratio | None:
        """Geometric mean of all ratios; None without any."""
        return geometric_mean(pair.ratio for pair in self.pairs if pair.ratio is not None)

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """Number of pairs with each outcome, in the order of `Outcome`."""
        counts = Counter(pair.outcome for pair in self.pairs)
        return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}

    @property
    def unlike(self) -> str:
        """A warning if the sides were measured on different machines or devices; else empty."""
        if warning := self._different_devices:
            return warning
        both = [side.machines for side in (self.base, self.new)]
        if not all(both) or {*both[0]} == {*both[1]}:
            return ""
        if any(len(machines) > 1 for machines in both):
            return "The sides were not measured on the same machines."
        different = both[0][0].differences(both[1][0])
        return f"The sides were measured on different machines: {'; '.join(different)}." if different else ""

    @property
    def _different_devices(self) -> str:
        """Compares drivers only: the machines show whether `cuda://0` and `cuda://1` are the same kind of GPU."""
        kinds = [
            {DeviceUri.parse(device).driver for device in side.devices} for side in (self.base, self.new)
        ]
        if not all(kinds) or (kinds[0] == kinds[1] and len(kinds[0]) == 1):
            return ""
        if any(len(drivers) > 1 for drivers in kinds):
            return "At least one side combines measurements from different devices."
        one, other = (next(iter(drivers)) for drivers in kinds)
        return f"The sides were measured on different devices: {one} vs. {other}."

    @property
    def caveat(self) -> str:
        """One sentence on what the intervals cover."""
        if self.live:
            return (
                "Both sides were measured by paired sampling in one process: the intervals cover the noise of"
                " that process, but not the placement of code and data in another one."
            )
        if self.repeated:
            return "The intervals cover the noise between the runs in the two files."
        return (
            "The intervals cover the noise within each run, but not differences between runs (clocks, memory"
            " layout, other load). Append runs to both files to cover those too."
        )


@dataclass(frozen=True)
class FailOn:
    """The conditions of exit status 1: outcomes, and `slower` by at least a relative difference."""

    slower: float | None = None
    outcomes: frozenset[Outcome] = frozenset()

    def applies(self, pair: Pair) -> bool:
        """True if this pair makes the comparison fail."""
        if pair.outcome is Outcome.SLOWER and self.slower is not None and pair.ratio is not None:
            return pair.ratio.value >= 1.0 + self.slower
        return pair.outcome in self.outcomes

    def is_undecided(self, pair: Pair) -> bool:
        """True for an unclear pair whose interval, if it is known, has ratios that make the comparison fail."""
        if self.slower is None or pair.outcome is not Outcome.UNCLEAR or self.applies(pair):
            return False
        return pair.ratio is None or pair.ratio.high >= 1.0 + self.slower


Key = tuple[str, str]
Groups = dict[Key, list[StoredRecord]]


def compare_records(
    base: Sequence[StoredRecord],
    new: Sequence[StoredRecord],
    options: CompareOptions,
    names: tuple[str, str] = ("base", "new"),
) -> RunComparison:
    """Compare records with the same dispatch (or operation) and provider.

    Several records of a dispatch on one side are equivalent runs of it. Raises UsageError if the sides share
    no key, or if several dispatches of one side have the key of one dispatch of the other.
    """
    sides = _grouped(base, names[0], options.by), _grouped(new, names[1], options.by)
    if not sides[0].keys() & sides[1].keys():
        hint = "compare one configuration with another by --by=operation" if options.by is By.DISPATCH else ""
        raise UsageError(f"no {options.by.value} is in both {names[0]} and {names[1]}", hint=hint)
    keys = dict.fromkeys([*sides[0], *sides[1]])
    pairs = tuple(_pair(sides[0].get(key, []), sides[1].get(key, []), options) for key in keys)
    runs = [
        len(side[key])
        for key, pair in zip(keys, pairs, strict=True)
        for side in sides
        if pair.ratio is not None
    ]
    summaries = _summary(names[0], base), _summary(names[1], new)
    both = [
        (sides[0][key][-1].provenance, sides[1][key][-1].provenance)
        for key in keys
        if key in sides[0] and key in sides[1]
    ]
    return RunComparison(
        *summaries, pairs, options, min(runs, default=1) > 1, differences=side_differences(*summaries, both)
    )


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, in order of first occurrence."""
    return tuple(dict.fromkeys(texts))


def side_differences(
    base: SideSummary, new: SideSummary, both: Sequence[tuple[Provenance, Provenance]]
) -> tuple[str, ...]:
    """Differences between the sides; `both` has the origins of the dispatches that are on both."""
    settings: tuple[tuple[str, Sequence[object], Sequence[object]], ...] = (
        ("target", base.targets, new.targets),
        ("software", base.revisions, new.revisions),
        ("seed", base.seeds, new.seeds),
        ("caches", base.modes, new.modes),
        ("times include", base.includes, new.includes),
    )
    different = [
        f"{name}: {_listed(one)} vs. {_listed(other)}"
        for name, one, other in settings
        if one and other and set(one) != set(other)
    ]
    different += _flag_differences(both)
    if not different and (count := sum(_differ_in_content(one, other) for one, other in both)):
        different = [f"content of the compiled modules of {counted(count, 'dispatch')}"]
    return tuple(different)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _flag_differences(both: Sequence[tuple[Provenance, Provenance]]) -> list[str]:
    """`flags: only new has --iree-opt-level=O0`. Skips records of version 1, which lack flags."""
    known = [pair for pair in both if all(origin.module_key for origin in pair)]
    only_base = dict.fromkeys(flag for one, other in known for flag in one.flags if flag not in other.flags)
    only_new = dict.fromkeys(flag for one, other in known for flag in other.flags if flag not in one.flags)
    return [
        f"flags: only {side} has {' '.join(flags)}"
        for side, flags in (("base", only_base), ("new", only_new))
        if flags
    ]


def _differ_in_content(base: Provenance, new: Provenance) -> bool:
    return bool(base.module_key and new.module_key) and base.module_key != new.module_key


def _grouped(records: Iterable[StoredRecord], name: str, by: By) -> Groups:
    groups: Groups = {}
    for record in records:
        label = record.dispatch if by is By.DISPATCH else record.operation
        runs = groups.setdefault((label, record.provider), [])
        if runs and runs[0].dispatch != record.dispatch:
            raise UsageError(
                f"{name} has more than one configuration of {label}:"
                f" {runs[0].configuration}, {record.configuration}",
                hint="choose one per side with --base-dispatches=PATTERN and --new-dispatches=PATTERN",
            )
        runs.append(record)
    return groups


def _pair(base: list[StoredRecord], new: list[StoredRecord], options: CompareOptions) -> Pair:
    """Pair the runs of one dispatch on both sides; one side may be empty."""
    some = (new or base)[-1]
    one, other = (base or new)[-1].configuration, some.configuration
    configuration = one if one == other else f"{one} -> {other}"
    name = some.dispatch if one == other else f"{some.operation}_{configuration}"
    pair = Pair(name, some.operation, configuration, some.provider, *_without_samples(base, new))
    pair = replace(pair, base_ms=_median(base), new_ms=_median(new))
    return (
        _compared(pair, base, new, options) if pair.outcome is Outcome.UNCLEAR and not pair.reason else pair
    )


def _without_samples(base: list[StoredRecord], new: list[StoredRecord]) -> tuple[Outcome, str]:
    """The outcome if no ratio can be computed; UNCLEAR without a reason if one can."""
    if not new:
        return Outcome.MISSING, "not in new"
    if not base:
        return Outcome.ADDED, "not in base"
    sides = (("base", base), ("new", new))
    failures = [
        f"{side}: {runs[-1].verdict.value}{f' ({runs[-1].reason})' if runs[-1].reason else ''}"
        for side, runs in sides
        if runs[-1].verdict.is_failure
    ]
    if failures:
        outcome = Outcome.FAILED if new[-1].verdict.is_failure else Outcome.NOT_MEASURED
        return outcome, "; ".join(failures)
    empty = [side for side, runs in sides if not _samples(runs)]
    if empty:
        return Outcome.NOT_MEASURED, f"no samples in {' and '.join(empty)}"
    for side, runs in sides:
        if any(not 0.0 < sample < math.inf for run in _samples(runs) for sample in run):
            return (
                Outcome.UNCLEAR,
                f"{side} has a sample that is not a positive time: its clock cannot be trusted",
            )
    return Outcome.UNCLEAR, ""


def _compared(pair: Pair, base: list[StoredRecord], new: list[StoredRecord], options: CompareOptions) -> Pair:
    """The pair with its ratio and the resulting outcome."""
    one, other = (location_of_runs(_samples(runs), options.confidence) for runs in (base, new))
    found_ratio = ratio(one, other)
    needed = needed_samples(options.confidence)
    too_few = [
        text
        for side, runs, at in (("base", base, one), ("new", new, other))
        if (text := _too_few(side, runs, at, needed))
    ]
    outcome = Outcome.UNCLEAR if too_few else found_ratio.outcome(options.threshold)
    reasons = too_few or [found_ratio.reason(options.threshold)]
    reasons += _measured_differently(base[-1], new[-1])
    for side, runs in (("base", base), ("new", new)):
        reasons += [f"warning in {side}: {text}" for text in _warnings(runs)]
    return replace(
        pair,
        outcome=outcome,
        reason="; ".join(reasons),
        ratio=found_ratio,
        base_ms=one.center_ms,
        new_ms=other.center_ms,
    )


def _too_few(side: str, runs: list[StoredRecord], location: Location, needed: int) -> str:
    """Why the samples of one side do not allow an interval; empty if they do."""
    measured = _samples(runs)
    if len(measured) > 1 or location.independent >= needed:
        return ""
    count = len(measured[0])
    if count < needed:
        return f"{side} has {counted(count, 'sample')}, but at least {needed} are required"
    return f"the {count} samples of {side} are autocorrelated (drift?): effective sample size {location.independent:.1f}"


def _measured_differently(base: StoredRecord, new: StoredRecord) -> list[str]:
    """Differences in how the two were measured, other than those under comparison (compiler, target)."""
    one, other = base.measurement, new.measurement
    different = []
    if base.provenance.device != new.provenance.device:
        different.append(f"device {base.provenance.device} vs. {new.provenance.device}")
    if one is not None and other is not None:
        if one.mode != other.mode:
            different.append(f"{one.mode} vs. {other.mode} caches")
        different += differences(one.includes, other.includes)
        # Executions per sample are fixed, or chosen to fill a fixed time: only one of the two may differ.
        lengths = [each.executions * each.median_ms for each in (one, other)]
        if _differ(one.executions, other.executions) and _differ(*lengths):
            different.append(f"samples of {one.executions} vs. {counted(other.executions, 'execution')}")
    return [f"measured differently: {', '.join(different)}"] if different else []


def _differ(one: float, other: float) -> bool:
    return max(one, other) > _ALIKE * min(one, other)


def _measurements(runs: Iterable[StoredRecord]) -> list[Measurement]:
    """The measurements of successful runs."""
    return [
        run.measurement
        for run in runs
        if run.measurement is not None and run.measurement.samples_ms and not run.verdict.is_failure
    ]


def _samples(runs: Iterable[StoredRecord]) -> list[tuple[float, ...]]:
    return [measurement.independent_ms for measurement in _measurements(runs)]


def _warnings(runs: Iterable[StoredRecord]) -> list[str]:
    return list(dict.fromkeys(text for measurement in _measurements(runs) for text in measurement.warnings))


def _median(runs: Sequence[StoredRecord]) -> float | None:
    """The median of a side without a partner; None if unknown."""
    measurements = _measurements(runs)
    return measurements[-1].median_ms if measurements else None


def _summary(name: str, records: Sequence[StoredRecord]) -> SideSummary:
    origins = [record.provenance for record in records]
    measured = [record.measurement for record in records if record.measurement is not None]
    return SideSummary(
        name,
        tuple(dict.fromkeys(origin.device for origin in origins)),
        tuple(dict.fromkeys(origin.target for origin in origins)),
        tuple(dict.fromkeys(origin.software for origin in origins)),
        tuple(dict.fromkeys(origin.machine for origin in origins if origin.machine.name)),
        tuple(dict.fromkeys(origin.seed for origin in origins)),
        distinct(each.mode for each in measured),
        distinct(filter(None, (included_text(each.includes) for each in measured))),
    )

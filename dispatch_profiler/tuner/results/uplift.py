"""Which finalists are kept, why others are not, how much faster the workload becomes, and the files of the results.

Judgements and the uplift are pure functions of numbers. A finalist is the fastest configuration that a search found for a problem, compared with the
compiler's default by paired sampling on fresh samples.

Intervals of means and sums of independent estimates follow the method of variance estimates recovery (Zou and Donner,
Statistics in Medicine 27, 2008): with estimates v_i, their intervals l_i to u_i and factors c_i >= 0, the interval of
sum c_i v_i is

    sum c_i v_i - sqrt(sum (c_i (v_i - l_i))^2)   to   sum c_i v_i + sqrt(sum (c_i (u_i - v_i))^2)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dispatch_profiler.console.markup import csv_text
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.library import Estimate, KeepRule
from dispatch_profiler.library.entry import confirmed_speedup
from dispatch_profiler.profiler.measurement.measure import interval_texts
from dispatch_profiler.profiler.records.record import Confirmation, StoredRecord, Verdict
from dispatch_profiler.profiler.records.speedup import packs_weight
from dispatch_profiler.profiler.statistics.comparison import Outcome
from dispatch_profiler.tuner.results.entries import EntrySpeedups
from dispatch_profiler.tuner.tunings.problems import TIME, UNITS, TuningProblem


class Judgement(str, Enum):
    """Whether a finalist is kept, and why not."""

    KEPT = "kept"
    #: The search found nothing faster than the default.
    NO_FINALIST = "no finalist"
    #: Another finalist was faster beside it.
    RUNNER_UP = "runner-up"
    INCORRECT = "incorrect"
    #: It is faster than the hardware allows.
    IMPLAUSIBLE = "implausible"
    NOT_COMPILED = "not compiled"
    NOT_APPLIED = "not applied"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    NOT_VERIFIED = "not verified"
    #: It was correct, but failed or had no time when it was measured beside the default.
    NOT_COMPARED = "not compared"
    #: The interval of its speedup includes 1.
    INTERVAL_OVERLAPS = "interval overlaps"
    SLOWER = "slower"
    #: It is faster, but the lower end of its speedup does not exceed the threshold.
    BELOW_THRESHOLD = "below threshold"


_VERDICTS = {
    Verdict.FAILED: Judgement.INCORRECT,
    Verdict.IMPLAUSIBLE: Judgement.IMPLAUSIBLE,
    Verdict.NOT_COMPILED: Judgement.NOT_COMPILED,
    Verdict.NOT_APPLIED: Judgement.NOT_APPLIED,
    Verdict.CRASHED: Judgement.CRASHED,
    Verdict.TIMED_OUT: Judgement.TIMED_OUT,
    Verdict.NOT_VERIFIED: Judgement.NOT_VERIFIED,
    Verdict.NOT_SUPPORTED: Judgement.NOT_VERIFIED,
}


#: Why the speedup of a packed weight differs.
_PACKED = "its weight is packed at load time, which the time of the untuned configuration may include"


@dataclass(frozen=True)
class Finalist:
    """The outcome of a search for one problem.

    `default` and `tuned` are fresh records; `tuned` is None if nothing was faster in the search. `paired`
    is their comparison by paired sampling. `share` is the problem's part of its workload in percent; None if unknown.
    `is_transient` if `tuned` failed for a reason that may not occur again.
    """

    problem: TuningProblem
    default: StoredRecord | None
    tuned: StoredRecord | None = None
    paired: Confirmation | None = None
    share: float | None = None
    is_transient: bool = False

    @property
    def speedup(self) -> Estimate | None:
        """Over the default, with its interval; None if unknown."""
        return None if self.paired is None else confirmed_speedup(self.paired)


@dataclass(frozen=True)
class Judged:
    """A finalist with its judgement.

    `reason` is a sentence; empty if the finalist is kept and was compared with a configuration of the same kind.
    `others` are other finalists of the same problem, none of which is kept. `entry` has the speedups of the problem's entry
    in the final library: of the finalist, or of an untuned form that needed no tuning; None without an entry.
    """

    finalist: Finalist
    judgement: Judgement
    reason: str
    others: tuple[Judged, ...] = ()
    entry: EntrySpeedups | None = None

    @property
    def is_kept(self) -> bool:
        return self.judgement is Judgement.KEPT

    @property
    def kept_speedup(self) -> Estimate:
        """The speedup of the problem with the final library: 1 if the finalist is not kept."""
        speedup = self.finalist.speedup
        return speedup if self.is_kept and speedup is not None else Estimate(1.0, 1.0, 1.0)


def judge(finalist: Finalist, rule: KeepRule | None = None) -> Judged:
    """Keep a finalist only if it is correct and the lower end of its speedup exceeds the rule's threshold."""
    return Judged(finalist, *_judged(finalist, rule or KeepRule()))


def _judged(finalist: Finalist, rule: KeepRule) -> tuple[Judgement, str]:
    tuned, speedup = finalist.tuned, finalist.speedup
    if tuned is None:
        return Judgement.NO_FINALIST, "no configuration was faster than the default in the search"
    if tuned.verdict is not Verdict.SUCCESS:
        return _VERDICTS[tuned.verdict], tuned.reason or tuned.verdict.value
    paired = finalist.paired
    if paired is not None and paired.outcome == Outcome.FAILED.value:
        return Judgement.NOT_COMPARED, f"it failed beside the default: {paired.reason}"
    if speedup is None:
        reason = "it was not measured beside the default" if paired is None else paired.reason
        return Judgement.NOT_COMPARED, reason
    if rule.keeps(speedup):
        return Judgement.KEPT, _PACKED if packs_weight(tuned) else ""
    text = f"its speedup is {speedup.value:.3f} ({speedup.low:.3f} to {speedup.high:.3f})"
    if speedup.high < 1.0:
        return Judgement.SLOWER, text
    if speedup.low <= 1.0:
        return Judgement.INTERVAL_OVERLAPS, f"{text}, which includes 1"
    return Judgement.BELOW_THRESHOLD, f"{text}, whose lower end does not exceed {1.0 + rule.threshold:g}"


# -- uplift ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval; unlike an `Estimate`, it may be negative."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Uplift:
    """How much faster the kept finalists make their problems and the workload; percentages.

    `average` and `geometric` are means of the speedups of the kept problems, less 1; None if none is kept.
    `weighted` is the uplift of the whole workload, in which problems without a kept finalist stay as fast as
    they are; None without shares. `attempted` and `improved` are the parts of the workload that were searched
    and that became faster.
    """

    kept: int
    average: Interval | None
    geometric: Interval | None
    weighted: Interval | None
    attempted: float | None
    improved: float | None
    over_default: EntriesUplift | None = None
    over_launch: EntriesUplift | None = None


@dataclass(frozen=True)
class EntriesUplift:
    """How much faster all entries of a library are than something that is used without it; percentages.

    `entries` counts the entries, `known` those with a known speedup: the means are theirs. `weighted` is of the whole
    workload, in which problems without a known speedup stay as fast as they are; None without shares. `improved` is the
    part of the workload that has entries, in percent of its time before tuning.
    """

    entries: int
    known: int
    average: Interval | None
    geometric: Interval | None
    weighted: Interval | None
    improved: float | None


def uplift(judged: Sequence[Judged]) -> Uplift:
    """The uplift of a library with the kept finalists."""
    kept = [each for each in judged if each.is_kept]
    speedups = [each.kept_speedup for each in kept]
    with_share = [(each.finalist.share, each) for each in judged if each.finalist.share is not None]
    return Uplift(
        kept=len(kept),
        average=_average(speedups) if kept else None,
        geometric=_geometric(speedups) if kept else None,
        weighted=_weighted([(share, each.kept_speedup) for share, each in with_share])
        if with_share
        else None,
        attempted=math.fsum(share for share, _ in with_share) if with_share else None,
        improved=math.fsum(share for share, each in with_share if each.is_kept) if with_share else None,
        over_default=_entries_uplift(
            [(each, each.entry.over_default if each.entry else None) for each in judged]
        ),
        over_launch=_entries_uplift(
            [(each, each.entry.over_launch if each.entry else None) for each in judged]
        ),
    )


def _entries_uplift(judged: Sequence[tuple[Judged, Estimate | None]]) -> EntriesUplift | None:
    """The uplift of entries with these speedups; None if there is no entry."""
    entries = [each for each, _ in judged if each.entry is not None]
    if not entries:
        return None
    known = [speedup for _, speedup in judged if speedup is not None]
    shares = [each.finalist.share for each in entries if each.finalist.share is not None]
    return EntriesUplift(
        entries=len(entries),
        known=len(known),
        average=_average(known) if known else None,
        geometric=_geometric(known) if known else None,
        weighted=_weighted_over(judged) if shares else None,
        improved=math.fsum(shares) if shares else None,
    )


def _weighted_over(judged: Sequence[tuple[Judged, Estimate | None]]) -> Interval:
    """The speedup of a workload whose problems are as many times as fast as before, in percent.

    A problem's share is of the time before tuning; afterwards, it takes share / `kept_speedup`.
    """
    shares = [(each.finalist.share or 0.0, each, speedup) for each, speedup in judged]
    after = [(share / each.kept_speedup.value, speedup) for share, each, speedup in shares]
    rest = max(0.0, 100.0 - math.fsum(share for share, _, _ in shares))
    total = rest + math.fsum(time for time, _ in after)
    unchanged = Estimate(1.0, 1.0, 1.0)
    parts = [(time / total, speedup or unchanged) for time, speedup in after]
    whole = combined([*parts, (rest / total, unchanged)])
    return _percent(whole.value, whole.low, whole.high)


def _average(speedups: Sequence[Estimate]) -> Interval:
    mean = combined([(1.0 / len(speedups), each) for each in speedups])
    return _percent(mean.value, mean.low, mean.high)


def _geometric(speedups: Sequence[Estimate]) -> Interval:
    below = math.hypot(*(_log(each.value) - _log(each.low) for each in speedups)) / len(speedups)
    above = math.hypot(*(_log(each.high) - _log(each.value) for each in speedups)) / len(speedups)
    mean = math.fsum(math.log(each.value) for each in speedups) / len(speedups)
    return _percent(math.exp(mean), math.exp(mean - below), math.exp(mean + above))


def _weighted(parts: Sequence[tuple[float, Estimate]]) -> Interval:
    """The speedup of a workload of which `parts` have (percentage, speedup); the rest stays as it is."""
    # Each part takes percentage / speedup afterwards.
    times = combined(
        [
            (share, Estimate(1.0 / s.value, 1.0 / s.high, 1.0 / s.low if s.low else math.inf))
            for share, s in parts
        ]
    )
    rest = max(0.0, 100.0 - math.fsum(share for share, _ in parts))
    slowest = times.high + rest
    return _percent(
        100.0 / (times.value + rest),
        100.0 / slowest,
        100.0 / (times.low + rest) if times.low + rest > 0.0 else math.inf,
    )


def combined(parts: Sequence[tuple[float, Estimate]]) -> Interval:
    """The sum of (factor, estimate) products, with the interval that the module describes."""
    value = math.fsum(factor * each.value for factor, each in parts)
    below = math.hypot(*(factor * (each.value - each.low) for factor, each in parts))
    above = math.hypot(*(factor * (each.high - each.value) for factor, each in parts))
    return Interval(value, value - below, value + above)


def _percent(value: float, low: float, high: float) -> Interval:
    return Interval(100.0 * (value - 1.0), 100.0 * (low - 1.0), 100.0 * (high - 1.0))


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


# -- results ---------------------------------------------------------------------------------------

# The results of a tuning: raw_results.csv, final_results.csv, metrics.json, and the printed summary.


#: Every problem with all its finalists, and the finalists that are kept.
RAW_FILE, FINAL_FILE = "raw_results.csv", "final_results.csv"
METRICS_FILE = "metrics.json"
METRICS_VERSION = 1
_COLUMNS = (
    "problem", "operation", "count", "share(%)", "judgement", "reason", "verification",
    "reference(ms)", "reference_low(ms)", "reference_high(ms)", "tuned(ms)", "tuned_low(ms)", "tuned_high(ms)",
    "speedup", "speedup_low", "speedup_high", "uplift(%)", "saved_share(%)",
    "reference_configuration", "tuned_configuration", "origin",
)  # fmt: skip


#: The subject of each uplift.
DEFINITIONS = {
    "average_uplift": "arithmetic mean of the uplifts of kept problems, which one large uplift dominates",
    "geometric_mean_uplift": "geometric mean of the speedups of kept problems, less 1, which one large uplift affects less",
    "weighted_uplift": "of the whole workload, in which problems that are not kept stay as fast as they are",
}


def write_results(folder: Path, judged: Sequence[Judged], settings: Mapping[str, Any]) -> Uplift:
    """Write the three files to `folder`, each atomically; returns the uplift. `settings` are part of the metrics."""
    total = uplift(judged)
    every = [row for each in judged for row in (each, *each.others)]
    write_atomic(folder / RAW_FILE, results_text(every))
    write_atomic(folder / FINAL_FILE, results_text([each for each in judged if each.is_kept]))
    write_atomic(folder / METRICS_FILE, metrics_text(judged, total, settings))
    return total


def results_text(judged: Sequence[Judged]) -> str:
    """A CSV with a line for each finalist, in order; unknown values are empty."""
    return csv_text(_COLUMNS, map(_row, judged))


def _row(judged: Judged) -> dict[str, object]:
    finalist = judged.finalist
    problem, speedup, tuned = finalist.problem, finalist.speedup, finalist.tuned
    speeds = {} if speedup is None else {
        "speedup": _number(speedup.value), "speedup_low": _number(speedup.low),
        "speedup_high": _number(speedup.high), "uplift(%)": _number(100.0 * (speedup.value - 1.0)),
    }  # fmt: skip
    saved = None if finalist.share is None else finalist.share * (1.0 - 1.0 / judged.kept_speedup.value)
    return {
        "problem": problem.name,
        "operation": problem.operation.name,
        "count": problem.count,
        "share(%)": _number(finalist.share),
        "judgement": judged.judgement.value,
        "reason": judged.reason,
        "verification": "" if tuned is None else tuned.verdict.value,
        **_times("reference", finalist.default),
        **_times("tuned", tuned),
        **speeds,
        "saved_share(%)": _number(saved),
        "reference_configuration": "" if finalist.default is None else finalist.default.configuration,
        "tuned_configuration": "" if tuned is None else tuned.configuration,
        "origin": problem.origin,
    }


def _times(side: str, record: StoredRecord | None) -> dict[str, str]:
    """Median and interval; a wrong kernel has no time."""
    if record is None or record.measurement is None or record.is_failure:
        return {}
    low, high = interval_texts(record.measurement)
    return {
        f"{side}(ms)": _number(record.measurement.median_ms),
        f"{side}_low(ms)": low,
        f"{side}_high(ms)": high,
    }


def _number(value: float | None) -> str:
    """All digits; empty for a number that is unknown."""
    return repr(value) if value is not None and math.isfinite(value) else ""


def line_of(judged: Judged, *, in_full: bool = False) -> str:
    """`BBS_TN_0: kept: tile_config_64x128, 1.52 times as fast (1.48-1.56)`.

    With `in_full`, the problem also has its label, and the time is compared with `as tile_config_default`.
    """
    finalist = judged.finalist
    problem = f"{finalist.problem.name}, {finalist.problem.label}" if in_full else finalist.problem.name
    name = f"{problem}: {judged.judgement.value}"
    configuration = f": {finalist.tuned.configuration}" if finalist.tuned is not None else ""
    if judged.is_kept:
        speedup = judged.kept_speedup
        reference = finalist.default if in_full else None
        more = "" if reference is None else f" as {reference.configuration}"
        more += f"; {judged.reason}" if judged.reason else ""
        return f"{name}{configuration}, {speedup.value:.2f} times as fast ({speedup.low:.2f}-{speedup.high:.2f}){more}"
    return f"{name}{configuration}: {judged.reason}"


# -- metrics ---------------------------------------------------------------------------------------


def metrics_text(judged: Sequence[Judged], total: Uplift, settings: Mapping[str, Any]) -> str:
    """The metrics as JSON. Figures are in percent; unknown figures and ends of intervals are `null`."""
    counts = {each.value: sum(j.judgement is each for j in judged) for each in Judgement}
    data = {
        "format": "dispatch_profiler metrics",
        "version": METRICS_VERSION,
        "settings": dict(settings),
        "problems": len(judged),
        "judgements": {name: count for name, count in counts.items() if count},
        "definitions": DEFINITIONS,
        "average_uplift": _interval(total.average),
        "geometric_mean_uplift": _interval(total.geometric),
        "weighted_uplift": _interval(total.weighted),
        "coverage": {"attempted": total.attempted, "improved": total.improved},
        "over_default": _entries(total.over_default),
        "over_launch": _entries(total.over_launch),
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _entries(total: EntriesUplift | None) -> dict[str, Any] | None:
    if total is None:
        return None
    return {
        "entries": total.entries,
        "known": total.known,
        "average": _interval(total.average),
        "geometric_mean": _interval(total.geometric),
        "weighted": _interval(total.weighted),
    }


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: value if math.isfinite(value) else None for name, value in ends.items()}


#: What entries are compared with, in the words of the printed lines.
AGAINST_DEFAULT, AGAINST_LAUNCH = "the compiler's default", "an untuned launch"


def uplift_lines(total: Uplift, weighed_by: str = TIME) -> tuple[str, ...]:
    """The lines to print: the uplift of all entries against the compiler's default, and against an untuned launch.

    Another line has both uplifts of the whole workload if shares are known. `weighed_by`: `time` or `flops`.
    """
    over = ((AGAINST_DEFAULT, total.over_default), (AGAINST_LAUNCH, total.over_launch))
    found = [(name, each) for name, each in over if each is not None]
    lines = [_average_line(name, each) for name, each in found]
    if not found:
        lines = ["Average uplift: none, because the library has no entry"]
    weighted = [(name, each.weighted) for name, each in found if each.weighted is not None]
    if weighted:
        (first, one), *others = weighted
        more = "".join(f", and against {name} {_text(each)}" for name, each in others)
        improved = found[0][1].improved
        lines.append(
            f"Weighted total uplift: {_text(one)} against {first}{more}; the kept problems are {improved:.1f} % of the "
            f"{UNITS[weighed_by]}, all tuned problems {total.attempted:.1f} %"
        )
    elif total.weighted is not None:
        lines.append(f"Weighted total uplift: {_text(total.weighted)}")
    return tuple(lines)


def _average_line(against: str, each: EntriesUplift) -> str:
    """One uplift of all entries, with both means."""
    entries = counted(each.entries, "entry")
    if each.average is None or each.geometric is None:
        return f"Average uplift against {against}: unknown, because it has no time for {entries}"
    of = entries if each.known == each.entries else f"{each.known} of {entries}, the others being unknown"
    return f"Average uplift against {against}: {_text(each.average)}, of {of}; geometric mean {_text(each.geometric)}"


def _text(interval: Interval) -> str:
    """`12.3 % (10.1 to 14.2 %)`"""
    # The sum of -0.0 and 0.0 is 0.0.
    value, low, high = (
        f"{round(each, 1) + 0.0:.1f}" if math.isfinite(each) else "?"
        for each in (interval.value, interval.low, interval.high)
    )
    return f"{value} % ({low} to {high} %)"

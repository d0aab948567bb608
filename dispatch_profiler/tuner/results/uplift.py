"""Which finalists are kept, why others are not, and how much faster the workload becomes.

Pure functions of numbers. A finalist is the fastest configuration that a search found for a problem, compared with the
compiler's default by paired sampling on fresh samples.

Intervals of means and sums of independent estimates follow the method of variance estimates recovery (Zou and Donner,
Statistics in Medicine 27, 2008): with estimates v_i, their intervals l_i to u_i and factors c_i >= 0, the interval of
sum c_i v_i is

    sum c_i v_i - sqrt(sum (c_i (v_i - l_i))^2)   to   sum c_i v_i + sqrt(sum (c_i (u_i - v_i))^2)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dispatch_profiler.library import Estimate, KeepRule
from dispatch_profiler.library.entry import confirmed_speedup
from dispatch_profiler.profiler.records.record import Confirmation, Verdict
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.records.speedup import packs_weight
from dispatch_profiler.profiler.statistics.comparison import Outcome
from dispatch_profiler.tuner.tunings.problems import TuningProblem


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
    `others` are other finalists of the same problem, none of which is kept.
    """

    finalist: Finalist
    judgement: Judgement
    reason: str
    others: tuple[Judged, ...] = ()

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
    )


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

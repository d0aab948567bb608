"""Compares two sides: the ratio of their medians, its confidence interval, and an outcome.

A ratio is new time / base time: 1.03 is 3 % slower. All arithmetic is on logarithms, so that
exchanging base and new turns a ratio into its reciprocal.

Each median has the interval of `statistics.series_interval`. The method of variance estimates recovery
(Zou and Donner, Statistics in Medicine 27, 2008) combines two of them and keeps them asymmetric. Unlike a
bootstrap or a standard error of the median, this is valid for five samples, for samples on the grid of a
coarse clock, and for two modes with the median near the gap. It is also deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from dispatch_profiler.profiler.statistics import student
from dispatch_profiler.profiler.statistics.intervals import dependence, series_interval

#: A smaller sample size, or effective sample size, never suffices.
MIN_SAMPLES = 5


class Outcome(str, Enum):
    """The outcome of new compared with base."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNCLEAR = "unclear"
    #: New was wrong or did not run.
    FAILED = "failed"
    #: Only base has it.
    MISSING = "missing"
    #: Only new has it.
    ADDED = "added"
    #: One side has no samples, or base failed.
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Ratio:
    """New time / base time and the ends of its interval; an unknown end is 0 or infinite."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.value <= self.high:
            raise ValueError(f"expected low <= value <= high, but got {self}")

    def outcome(self, threshold: float) -> Outcome:
        """`slower` or `faster` if the whole interval lies beyond `threshold`, `same` if it lies within.

        `threshold` is relative: with 0.01, the limits are 1.01 and 1 / 1.01, which count as `same`.
        """
        if self.low > 1.0 + threshold:
            return Outcome.SLOWER
        if self.high < 1.0 / (1.0 + threshold):
            return Outcome.FASTER
        if 1.0 / (1.0 + threshold) <= self.low and self.high <= 1.0 + threshold:
            return Outcome.SAME
        return Outcome.UNCLEAR

    def reason(self, threshold: float) -> str:
        """One sentence that explains `outcome(threshold)`."""
        outcome = self.outcome(threshold)
        if outcome is Outcome.SLOWER:
            return f"at least {self.low - 1.0:.1%} more time"
        if outcome is Outcome.FASTER:
            return f"at least {1.0 - self.high:.1%} less time"
        if outcome is Outcome.SAME:
            return f"no difference above {percent(threshold)}"
        above, below = self.high > 1.0 + threshold, self.low < 1.0 / (1.0 + threshold)
        might = (
            "faster or slower" if above and below else "the same or slower" if above else "the same or faster"
        )
        return f"the interval is too wide to tell: it may be {might}"


@dataclass(frozen=True)
class Location:
    """The centre of one side and its interval, as natural logarithms of milliseconds.

    `independent` is the effective sample size.
    """

    center: float
    low: float
    high: float
    independent: float

    @property
    def center_ms(self) -> float:
        return math.exp(self.center)


def needed_samples(confidence: float) -> int:
    """Minimum effective sample size of each side for an interval of a ratio at `confidence`.

    The range of n samples misses the median with probability 2**(1 - n). This may be up to
    1.25 * (1 - confidence), since both sides' ends seldom miss at once: 5 at 95 %, 11 at 99.9 %.
    """
    return max(MIN_SAMPLES, math.ceil(1.0 - math.log2(1.25 * (1.0 - confidence)) - 1e-9))


def percent(part: float) -> str:
    """`0.03` -> `3%`, `0.005` -> `0.5%`."""
    return f"{100.0 * part:.6g}%"


def location(samples_ms: Sequence[float], confidence: float = 0.95) -> Location:
    """The median of one run's samples, in the order taken, and its confidence interval.

    With few samples this is Student's interval, see `median_interval`.
    Raises ValueError if there are no samples or one is not above 0.
    """
    logs = log_times(samples_ms)
    low, high = series_interval(logs, confidence)
    return Location(float(np.median(logs)), low, high, len(logs) / dependence(logs))


def location_of_runs(runs_ms: Sequence[Sequence[float]], confidence: float = 0.95) -> Location:
    """The centre of several runs of one side: the mean of their log medians, with Student's interval.

    Runs differ by more than their samples show (memory layout, clocks, neighbours), so with two or more
    runs each run counts as one sample (Kalibera and Jones, "Rigorous benchmarking in reasonable time",
    ISMM 2013). For a single run, see `location`.
    """
    if len(runs_ms) == 1:
        return location(runs_ms[0], confidence)
    medians = np.array([np.median(log_times(run)) for run in runs_ms])
    count = len(medians)
    center, error = float(np.mean(medians)), float(np.std(medians, ddof=1)) / math.sqrt(count)
    half = student.reach(confidence, count - 1) * error
    return Location(center, center - half, center + half, count)


def ratio(base: Location, new: Location) -> Ratio:
    """New / base. The distances of both sides' ends from their centres add in quadrature."""
    return _ratio(
        new.center - base.center,
        math.hypot(new.center - new.low, base.high - base.center),
        math.hypot(new.high - new.center, base.center - base.low),
    )


def geometric_mean(ratios: Iterable[Ratio]) -> Ratio | None:
    """The geometric mean of independent ratios, for exactly these dispatches; None without ratios."""
    found = list(ratios)
    if not found:
        return None
    logs = [math.log(one.value) for one in found]
    below = math.hypot(*(math.log(one.value / one.low) if one.low > 0 else math.inf for one in found))
    above = math.hypot(*(math.log(one.high / one.value) for one in found))
    count = len(found)
    return _ratio(math.fsum(logs) / count, below / count, above / count)


def _ratio(log: float, below: float, above: float) -> Ratio:
    value = math.exp(log)
    # Rounding must not put an end on the other side of the value.
    return Ratio(value, min(value, math.exp(log - below)), max(value, bounded_exp(log + above)))


def bounded_exp(value: float) -> float:
    """`exp(value)`, or infinity where a float would overflow."""
    return math.inf if value > 700.0 else math.exp(value)


def log_times(samples_ms: Sequence[float]) -> np.ndarray:
    """Natural logarithms of times. Raises ValueError without times, or if one is not above 0."""
    samples = np.asarray(samples_ms, dtype=float)
    if samples.size == 0 or not np.all(np.isfinite(samples)) or not np.all(samples > 0.0):
        raise ValueError("expected at least one time, and all of them finite and above 0")
    return np.log(samples)

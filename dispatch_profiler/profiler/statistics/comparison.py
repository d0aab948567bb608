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

from dispatch_profiler.profiler.statistics.intervals import (
    dependence,
    median_interval,
    series_interval,
    signed_rank_interval,
    student_reach,
)

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

    With few samples this is Student's interval, and of one sample it is infinite: see `median_interval`.
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
    half = student_reach(confidence, count - 1) * error
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


# -- sequential test -------------------------------------------------------------------------------

# A sequential test of paired samples: the order of base and new, when to stop, and the outcome.
#
# A round is a few turns of four short samples: base, new, new, base or the reverse.
#
#     base_1 new_1 new_2 base_2 base_3 new_3 new_4 base_4 ...  ->  log (fastest new / fastest base)
#
# The fastest of a few samples taken within milliseconds is the kernel's time on an undisturbed core: noise
# only adds, and it comes in bursts. With another process on one core half of the time, it is five to ten
# times as precise as the mean, and two to five times as precise as the median. Drift shifts it by at most
# the change from one sample to the next.
#
# The remaining effect of drift, bursts, or a period that beats with the round changes sign with the order,
# and the order of each round is random. So if both sides are the same, every log ratio is as likely x as -x,
# whatever the noise is and however its samples depend on each other (Fisher's randomization). Wilcoxon's
# signed rank test is then exact, and its inversion gives the interval of the Hodges-Lehmann estimate, which
# tolerates outliers in nearly a third of the rounds (Hollander, Wolfe and Chicken, "Nonparametric Statistical
# Methods", 3.1 to 3.3).
#
# Testing after every round until something is significant would always find something. So there are few
# looks, after numbers of rounds that are fixed in advance, and each may use a part of the error (Bonferroni).
# The early look has a fifth, the least with which the test can decide so soon: n rounds that agree happen by
# chance with a probability of 2**(1 - n). An eighth is left for `FarTest`. The rest is divided so that it grows
# with the rounds: the last look, after which nothing more is learned, has a fifth. All intervals of a
# comparison hold simultaneously with `confidence`.
#
# The test covers the noise within one process. Two copies of the same code at different places in memory
# differ systematically while they stay there, so the caller places both sides anew for each round, which
# turns this difference into noise.


class Side(str, Enum):
    """The side that a sample belongs to."""

    BASE = "base"
    NEW = "new"


#: The order of a round's samples.
Order = tuple[Side, ...]
ABBA: Order = (Side.BASE, Side.NEW, Side.NEW, Side.BASE)
BAAB: Order = (Side.NEW, Side.BASE, Side.BASE, Side.NEW)
AB: Order = (Side.BASE, Side.NEW)

#: Sides are far apart if one takes at least this many times as long as the other.
FAR = 2.0
#: Parts of the error of a comparison: of the early look, and of `FarTest`.
_EARLY_PART, _FAR_PART = 1.0 / 5.0, 1.0 / 8.0


def log_ratio(order: Order, times_ms: Sequence[float]) -> float:
    """log(new / base) of one round, from the fastest of each side.

    `log_ratio(ABBA, (1.0, 2.0, 2.5, 1.0))` -> log 2.
    Raises ValueError unless there are as many times as the order has, all above 0.
    """
    base, new = _fastest_logs(order, times_ms)
    return new - base


def _fastest_logs(order: Order, times_ms: Sequence[float]) -> tuple[float, float]:
    """The logarithms of the fastest times of base and of new in one round. Raises the errors of `log_ratio`."""
    if len(times_ms) != len(order):
        raise ValueError(f"a round has {len(order)} times, but got {len(times_ms)}")
    logs = log_times(times_ms)
    is_new = np.array([side is Side.NEW for side in order])
    return float(logs[~is_new].min()), float(logs[is_new].min())


@dataclass(frozen=True)
class SequentialTestOptions:
    """How certain the answer must be, and how long to try.

    `threshold` is the relative difference up to which the sides count as the same. If they are the same,
    the answer is `faster` or `slower` with a probability of at most 1 - `confidence`. After an early look, the
    next one is after `first` rounds, the last after `rounds`; a round has 4 * `turns` samples.

    With `least_gain`, a test also ends at a look that rules out that base takes this part longer than new (0.02 for 2 %),
    though the answer may be `unclear`. All intervals hold simultaneously, so this takes nothing from the error.
    """

    threshold: float = 0.01
    least_gain: float | None = None
    confidence: float = 0.98
    first: int = 17
    rounds: int = 384
    turns: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        counts = 1 <= self.first <= self.rounds and self.turns >= 1
        differences = self.threshold >= 0.0 and (self.least_gain is None or self.least_gain > 0.0)
        if not differences or not 0.0 < self.confidence < 1.0 or not counts:
            raise ValueError(
                "expected threshold >= 0, least_gain > 0, 0 < confidence < 1, 1 <= first <= rounds and "
                f"turns >= 1, but got {self}"
            )

    @property
    def error(self) -> float:
        """The probability with which sides that are the same may be called faster or slower."""
        return 1.0 - self.confidence

    def rules_out_gain(self, ratio: Ratio) -> bool:
        """Whether new is known to be faster by less than `least_gain`, if at all."""
        return self.least_gain is not None and ratio.low > 1.0 / (1.0 + self.least_gain)

    @property
    def early(self) -> int:
        """The rounds of the early look: as few as can decide with its part of the error, 9 at 98 %."""
        return math.ceil(1.0 - math.log2(_EARLY_PART * self.error) - 1e-9)

    @property
    def far_rounds(self) -> int:
        """The rounds of a `FarTest`, 5 at 98 %."""
        return math.ceil((1.0 - math.log2(_FAR_PART * self.error)) / 2.0 - 1e-9)

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of rounds after which the interval is examined.

        The early look, if it is before `first`; then each is about 1.4 times the one before.
        """
        return (*((self.early,) if self.early < self.first else ()), *self._usual_looks)

    @property
    def _usual_looks(self) -> tuple[int, ...]:
        found, at = [], float(self.first)
        while at < self.rounds / 1.2:  # the last two would be nearly the same
            found.append(round(at))
            at *= math.sqrt(2.0)
        return (*found, self.rounds)

    def confidence_at(self, look: int) -> float:
        """Confidence level of the interval at the look after `look` rounds."""
        if look < self.first:
            return 1.0 - _EARLY_PART * self.error
        rest = 1.0 - _EARLY_PART - _FAR_PART
        return 1.0 - rest * self.error * look / sum(self._usual_looks)


@dataclass(frozen=True)
class SequentialTestResult:
    """The outcome so far. `ratio` is the ratio at the last look, after `looked_at` of `rounds` rounds.

    If the test ended before the first look, `ratio` is None and `outcome` is `unclear`.
    """

    outcome: Outcome
    reason: str
    ratio: Ratio | None
    rounds: int
    looked_at: int


class FarTest:
    """Whether one side takes at least twice as long as the other, from few rounds of few samples.

        rule = FarTest(SequentialTestOptions(), AB)
        while not rule.finished and there_is_time():
            rule.add([sample(side) for side in rule.order])
        result = rule.result()

    A round has the order `pattern`, or that with base and new exchanged. The answer is `faster` or `slower` if,
    over all rounds, the shortest time of one side is at least `FAR` times the longest of the other (of the fastest
    sample of each round). Otherwise it is `unclear`: then start a `SequentialTest`, without these rounds.

    If both sides are the same, n rounds agree with a probability of 2**(1 - n), whatever the noise is, and all
    differ by the factor with a probability of at most p**n, where a round does with p. With p = 1/2, which takes
    noise that doubles the fastest sample of one side alone in every other round, the product is at most an eighth of the error
    of the options. Times that do not depend on their round are also exchangeable: those of one side all exceed those of
    the other with a probability of 2 / C(2n, n), whatever p is.
    """

    def __init__(self, options: SequentialTestOptions, pattern: Order = ABBA) -> None:
        self._options = options
        self._pattern = pattern
        self._draw = np.random.default_rng([options.seed, 2])
        #: The logarithms of the fastest times of base and new in each round.
        self._logs: list[tuple[float, float]] = []
        self._order = self._random_order()

    @property
    def order(self) -> Order:
        """The order of the next round's samples."""
        return self._order

    @property
    def rounds(self) -> int:
        """Number of rounds added so far."""
        return len(self._logs)

    @property
    def has_looked(self) -> bool:
        """Whether its only look was taken."""
        return self.finished

    @property
    def finished(self) -> bool:
        """Whether all rounds were added."""
        return self.rounds == self._options.far_rounds

    def add(self, times_ms: Sequence[float]) -> None:
        """Add the times of a round, in the order of `order`.

        Raises ValueError unless `times_ms` has a positive time for each sample of the order, or if the test is finished.
        """
        if self.finished:
            raise ValueError("the test is finished and takes no more rounds")
        self._logs.append(_fastest_logs(self._order, times_ms))
        self._order = self._random_order()

    def result(self) -> SequentialTestResult:
        """The result so far: `faster`, `slower` or `unclear`. An interval of few ratios is Student's where that is wider."""
        needed = self._options.far_rounds
        if not self.finished:
            reason = f"ended after {self.rounds} rounds; the first look is after {needed}"
            return SequentialTestResult(Outcome.UNCLEAR, reason, None, self.rounds, 0)
        base, new = zip(*self._logs, strict=True)
        ratios = [after - before for before, after in self._logs]
        centre, (low, high) = float(np.median(ratios)), median_interval(ratios, self._options.confidence)
        ratio = Ratio(*map(bounded_exp, (centre, min(low, centre), max(high, centre))))
        gap, threshold = math.log(FAR), self._options.threshold
        is_far = min(base) >= max(new) + gap or min(new) >= max(base) + gap
        outcome = ratio.outcome(threshold) if is_far else Outcome.UNCLEAR
        reason = f"{ratio.reason(threshold)} ({needed} rounds)"
        return SequentialTestResult(outcome, reason, ratio, needed, needed)

    def _random_order(self) -> Order:
        exchanged = tuple(Side.NEW if side is Side.BASE else Side.BASE for side in self._pattern)
        return self._pattern if self._draw.random() < 0.5 else exchanged


class SequentialTest:
    """A test that takes rounds until it is finished.

        rule = SequentialTest(SequentialTestOptions())
        while not rule.finished and there_is_time():
            rule.add([sample(side) for side in rule.order])
        result = rule.result()

    Ending the test early is sound: the result is then the result at the last look.
    """

    def __init__(self, options: SequentialTestOptions) -> None:
        self._options = options
        self._looks = options.looks
        self._draw = np.random.default_rng(options.seed)
        self._logs: list[float] = []
        self._looked_at = 0
        self._ratio: Ratio | None = None
        self._order = self._random_order()

    @property
    def order(self) -> Order:
        """The order of the next round's samples."""
        return self._order

    @property
    def rounds(self) -> int:
        """Number of rounds added so far."""
        return len(self._logs)

    @property
    def has_looked(self) -> bool:
        """Whether the interval was examined."""
        return self._looked_at > 0

    @property
    def finished(self) -> bool:
        """Whether the outcome is decided or all rounds are used."""
        return self._decided or self.rounds >= self._options.rounds

    def add(self, times_ms: Sequence[float]) -> None:
        """Add the times of a round, in the order of `order`.

        Raises ValueError unless `times_ms` has a positive time for each sample of the order, or if the test is finished.
        """
        if self.finished:
            raise ValueError("the test is finished and takes no more rounds")
        self._logs.append(log_ratio(self._order, times_ms))
        self._order = self._random_order()
        if self.rounds in self._looks:
            self._looked_at = self.rounds
            self._ratio = signed_rank_ratio(self._logs, self._options.confidence_at(self.rounds))

    def result(self) -> SequentialTestResult:
        """The result so far."""
        if self._ratio is None:
            reason = f"ended after {self.rounds} rounds; the first look is after {self._looks[0]}"
            return SequentialTestResult(Outcome.UNCLEAR, reason, None, self.rounds, 0)
        threshold = self._options.threshold
        outcome, reason = self._ratio.outcome(threshold), self._ratio.reason(threshold)
        if outcome is Outcome.UNCLEAR and self._options.rules_out_gain(self._ratio):
            reason = f"at most {max(0.0, 1.0 - self._ratio.low):.1%} less time"
        return SequentialTestResult(
            outcome,
            f"{reason} ({self._looked_at} rounds)",
            self._ratio,
            self.rounds,
            self._looked_at,
        )

    @property
    def _decided(self) -> bool:
        if self._ratio is None:
            return False
        is_clear = self._ratio.outcome(self._options.threshold) is not Outcome.UNCLEAR
        return is_clear or self._options.rules_out_gain(self._ratio)

    def _random_order(self) -> Order:
        return self._options.turns * (ABBA if self._draw.random() < 0.5 else BAAB)


def signed_rank_ratio(log_ratios: Sequence[float], confidence: float) -> Ratio:
    """`signed_rank_interval` of log ratios, as a ratio; from 0 to infinity if there are too few."""
    value, low, high = map(bounded_exp, signed_rank_interval(log_ratios, confidence))
    return Ratio(value, low, high)

"""Stopping rules for the samples of a dispatch, and checks of the clocks.

Pure rules that receive numbers and read no clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.profiler.statistics.intervals import median_interval, quantile, series_interval

#: The interval of fewer samples is not used.
_MIN_SAMPLES = 5
#: Nor is the interval of a single sample batch: only agreement of several batches rules out a temporary state
#: of the machine.
_SEVERAL_BATCHES = 2
_ENOUGH_BATCHES = 6
#: Further samples do not improve the interval.
_MAX_SAMPLES = 1000
#: A dispatch whose samples are all slower than the best of its operation by this factor is hopeless.
_HOPELESS_FACTOR = 3.0
#: Samples after which the lowest decile of a dispatch is compared with that of the best, and after which it may be known.
_COMPARED_DECILE, _KNOWN_DECILE = 8, 16
#: In fewer sample batches, other processes may disturb every sample: for the comparison, and to know the decile.
_COMPARED_BATCHES, _KNOWN_BATCHES = 2, 4
#: After n sample batches, all samples must exceed the decile of the best by this divided by n more than `abandon` says.
_MORE_OF_FEW = 0.4
#: The lowest decile is known if a quarter of the samples are within this part above it.
_STEADY = 0.03
#: Tolerated difference of two clocks: relative, and in seconds for their resolution.
_CLOCK_PART = 0.05
_CLOCK_SECONDS = 50e-6
#: Tolerated run delay, which threads of one process cause each other: relative, and in seconds per sample.
_TAKEN_PART = 0.03
_TAKEN_SECONDS = 50e-6
#: Smaller drifts are not reported.
_DRIFT = 0.05


class Ended(str, Enum):
    """Why a measurement ended."""

    COUNT = "count"
    INTERVAL = "interval"
    BUDGET = "budget"
    ABANDONED = "abandoned"
    #: The run was interrupted.
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class StopRule:
    """Stop when the 95 % interval of the median is within `width` of it, or after `seconds`.

    With `count`, stop after that many samples, however wide their interval is. A dispatch is abandoned if its whole
    interval is slower than the best of its operation by the factor `abandon`, or if it is hopeless after `few` samples.

    A single sample has no interval: it is hopeless if it is slower than the best by a larger factor, with `few` of 1.

    With `by_decile`, the time of a dispatch is the lowest decile of its samples, as in a search: `best` is the decile of
    the best, a dispatch is abandoned if even its fastest sample is too slow, and sampling also stops when many samples
    agree with the decile: soon on a quiet machine, while few agree on a loaded one.
    """

    width: float = 0.01
    seconds: float = 1.0
    count: int | None = None
    abandon: float = 1.5
    few: int = 3
    by_decile: bool = False

    def ended(
        self,
        samples: Sequence[float],
        elapsed: float,
        best: float | None = None,
        interval: tuple[float, float] | None = None,
        batches: int = _ENOUGH_BATCHES,
    ) -> Ended | None:
        """Why no further sample is needed; None while samples are missing.

        `elapsed` is in seconds. `best` is the time that the operation's best dispatch reaches with 95 %
        confidence, or its decile, in the unit of `samples`: a dispatch whose whole interval is far above it is
        abandoned. `interval` is the median's, if the caller knows how samples depend on each other.
        """
        if self.count is not None:
            return Ended.COUNT if len(samples) >= self.count else None
        low, high = interval or series_interval(samples)
        if self.is_hopeless(samples, best) and (len(samples) == 1 or (best is not None and low > best)):
            return Ended.ABANDONED
        median = statistics.median(samples)
        is_known = len(samples) >= _MIN_SAMPLES and batches >= _SEVERAL_BATCHES
        if self.by_decile:
            if best is not None and self._is_slow(samples, best, batches):
                return Ended.ABANDONED
            if batches >= _KNOWN_BATCHES and _has_steady_decile(samples):
                return Ended.INTERVAL
        elif is_known and best is not None and low > self.abandon * best:
            return Ended.ABANDONED
        is_narrow = max(high - median, median - low) <= self.width * median
        if is_known and is_narrow and batches >= _ENOUGH_BATCHES:
            return Ended.INTERVAL
        return Ended.BUDGET if self.is_over(len(samples), elapsed) else None

    def is_over(self, count: int, elapsed: float) -> bool:
        """Whether `count` samples in `elapsed` seconds are all that the budget allows."""
        return (elapsed >= self.seconds and count >= 3) or count >= _MAX_SAMPLES

    def is_hopeless(self, samples: Sequence[float], best: float | None) -> bool:
        """Whether all samples are far above the time of the best dispatch, and their interval is above it."""
        if self.count is not None or best is None or len(samples) < self.few:
            return False
        if min(samples) <= _HOPELESS_FACTOR * best:
            return False
        return len(samples) == 1 or series_interval(samples)[0] > best

    def _is_slow(self, samples: Sequence[float], best: float, batches: int) -> bool:
        """Whether even the fastest sample is slower than the decile of the best, by more after few sample batches."""
        if len(samples) < _COMPARED_DECILE or batches < _COMPARED_BATCHES:
            return False
        return min(samples) > (self.abandon + _MORE_OF_FEW / batches) * best

    def may_drop(self, dropped: int, kept: int, elapsed: float, seconds: float) -> bool:
        """Whether another sample may replace one that was disturbed.

        Not after the `seconds` of its batch: on a loaded machine all samples are disturbed, and the budget
        must hold. With `count`, time does not matter.
        """
        return dropped < 16 + 2 * kept and (self.count is not None or elapsed < seconds)


def _has_steady_decile(samples: Sequence[float]) -> bool:
    """Whether the lowest decile is known: so many samples are hardly slower that these were not disturbed."""
    if len(samples) < _KNOWN_DECILE:
        return False
    return quantile(samples, 0.25) <= (1.0 + _STEADY) * quantile(samples, 0.1)


@dataclass(frozen=True)
class Reading:
    """One sample by two clocks, in seconds. `waited` is None without a second clock.

    `taken` is how long threads that were ready to run waited for a core that others used.
    """

    claimed: float
    waited: float | None = None
    taken: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether the sample includes other work of the machine: threads of this process delay each other by less."""
        return self.taken > _TAKEN_SECONDS + _TAKEN_PART * self.claimed


def clock_warnings(readings: Sequence[Reading]) -> tuple[str, ...]:
    """Warnings about a clock that stood still, went back or disagrees with the second clock."""
    found = []
    if any(reading.claimed <= 0 for reading in readings):
        found.append("the clock stood still or went back")
    apart = [r for r in readings if r.waited is not None and _differ(r.claimed, r.waited)]
    # Between the readings of the two clocks, the system may occasionally take the core away. That does
    # not explain a clock that reports more time than has passed.
    late = [r for r in apart if r.claimed < (r.waited or 0.0)]
    if len(late) < len(apart) or 4 * len(late) > len(readings):
        worst = max(apart, key=lambda r: abs(r.claimed - (r.waited or 0.0)))
        found.append(
            f"two clocks disagree in {len(apart)} of {counted(len(readings), 'sample')}: "
            f"{1e3 * worst.claimed:.4g} ms and {1e3 * (worst.waited or 0.0):.4g} ms"
        )
    return tuple(found)


def _differ(claimed: float, waited: float) -> bool:
    return abs(claimed - waited) > _CLOCK_SECONDS + _CLOCK_PART * max(claimed, waited)


def load_warning(kept: int, disturbed: int) -> str:
    """A warning if other processes disturbed many of the samples that were kept; else empty."""
    if 4 * disturbed <= kept:
        return ""
    return f"other processes used a core that was needed in {disturbed} of {counted(kept, 'sample')}"


def drift_warning(samples: Sequence[float]) -> str:
    """A warning if the last third of the samples lies wholly above or below the first; else empty."""
    third = len(samples) // 3
    if third < 3:
        return ""
    first, last = samples[:third], samples[-third:]
    ratio = statistics.median(last) / statistics.median(first) if statistics.median(first) > 0 else 1.0
    apart = min(last) > max(first) or max(last) < min(first)
    if not apart or abs(ratio - 1.0) <= _DRIFT:
        return ""
    return f"drifted by {ratio - 1.0:+.0%} during the measurement"


@dataclass
class SentinelWatch:
    """Judges whether the machine is as fast as before, from repeated samples of one kernel."""

    tolerance: float = 0.05
    usual: float | None = None

    def is_as_usual(self, samples: Sequence[float]) -> bool:
        """Whether these few samples show no change. A change in so few may be noise: take more then."""
        if self.usual is None or not samples:
            return False
        median = statistics.median(samples)
        if abs(median - self.usual) > self.tolerance * self.usual:
            return False
        self._follow(median)
        return True

    def is_disturbed(self, samples: Sequence[float]) -> bool:
        """Whether the machine was slower or faster than usual, beyond the interval, during these samples."""
        low, high = median_interval(samples)
        median = statistics.median(samples)
        if self.usual is None:
            self.usual = median
            return False
        bound = self.tolerance * self.usual
        if low > self.usual + bound or high < self.usual - bound:
            return True
        self._follow(median)
        return False

    def _follow(self, median: float) -> None:
        """Let the usual time slowly follow undisturbed samples, as a machine warms up."""
        if self.usual is not None:
            self.usual += 0.25 * (median - self.usual)

    def reset(self) -> None:
        """Forget the usual time, because the machine has changed permanently."""
        self.usual = None

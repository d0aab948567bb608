"""Taking samples of one dispatch: how many executions a sample needs, and what the samples say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from dispatch_profiler.profiler.statistics import median_interval, quantile

#: A sample lasts at least this long, so that the clock and the call cost little of it.
_SAMPLE_SECONDS = 0.02
#: A profile vmfb that takes longer than this for one call is not used: one execution is enough.
_LONG_CALL_SECONDS = 2.0


@dataclass(frozen=True)
class MeasureOptions:
    """`repetitions` samples of at least `batch` executions each; None: as many as fill 20 ms."""

    repetitions: int = 5
    batch: int | None = None


@dataclass(frozen=True)
class Measurement:
    """Samples in milliseconds for one execution of the dispatch, in the order taken.

    A sample is `executions` executions in a row: `warm` on the same buffers, `cold` on buffers that
    no cache holds. `overhead_ms` is what a call costs whatever it does, for one execution; it has
    been taken off the samples. `ended_by` tells why no more samples were taken.
    """

    samples_ms: tuple[float, ...]
    executions: int
    mode: str = "warm"
    overhead_ms: float = 0.0
    ended_by: str = "count"
    warnings: tuple[str, ...] = ()

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def min_ms(self) -> float:
        return min(self.samples_ms)

    @property
    def max_ms(self) -> float:
        return max(self.samples_ms)

    @property
    def p20_ms(self) -> float:
        return quantile(self.samples_ms, 0.2)

    @property
    def p80_ms(self) -> float:
        return quantile(self.samples_ms, 0.8)

    @property
    def interval_ms(self) -> tuple[float, float]:
        """95 % confidence interval of the median."""
        return median_interval(self.samples_ms)

    @property
    def spread(self) -> float:
        """(max - min) / median of the samples; 0 for a single one."""
        return (self.max_ms - self.min_ms) / self.median_ms if self.median_ms > 0 else math.inf

    def gflops(self, flops: int) -> float:
        """10**9 operations a second at the median."""
        return flops / self.median_ms / 1e6 if self.median_ms > 0 else math.inf


def prefers_single(single_seconds: float, repeat: int) -> bool:
    """Is a call of the profile vmfb, `repeat` executions, too long to be a sample?"""
    return single_seconds * repeat > _LONG_CALL_SECONDS


def calls_per_sample(call_seconds: float, repeat: int, batch: int | None) -> int:
    """Calls of `repeat` executions each that make a sample.

    With `batch`, enough for that many executions; without, enough to last 20 ms.
    """
    if batch is not None:
        return max(1, math.ceil(batch / repeat))
    if call_seconds <= 0:
        return 1
    return max(1, math.ceil(_SAMPLE_SECONDS / call_seconds))


def measure(time: Callable[[int], float], repeat: int, options: MeasureOptions) -> Measurement:
    """Take samples with `time(calls) -> seconds`, where a call is `repeat` executions.

    The first call warms caches and is dropped; a second, warm one says how long a sample must be.
    """
    time(1)
    calls = calls_per_sample(time(1), repeat, options.batch)
    executions = calls * repeat
    samples = tuple(1e3 * time(calls) / executions for _ in range(options.repetitions))
    return Measurement(samples, executions)

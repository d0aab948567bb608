"""What samples of one dispatch say, how many executions a sample needs, and how one is timed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dispatch_profiler.profiler.measurement.gpu_monitor import GpuState
from dispatch_profiler.profiler.statistics.intervals import batched_interval, by_batch, by_place, quantile
from dispatch_profiler.profiler.statistics.stopping import Reading, StopRule

#: A sample lasts at least this long, so that the clock and the call cost little of it.
_SAMPLE_SECONDS = 0.005
#: A profile vmfb that takes longer than this for one call is not used: one execution is enough.
_LONG_CALL_SECONDS = 2.0
#: How often a short sample is repeated if other processes disturb it.
_TRIES = 5
#: The quickest of the calls of so long tells what a call costs: of few, all may have been disturbed.
OVERHEAD_SECONDS = 0.02
#: Below so many executions in a call, what a call costs cannot be told from what they take.
_FEWEST_REPEATS = 10


class Mode(str, Enum):
    """What the caches hold when an execution starts."""

    #: The operands, as the execution before left them.
    WARM = "warm"
    #: None of them: each execution has operands of its own, out of more than the caches can hold.
    COLD = "cold"


@dataclass(frozen=True)
class MeasureOptions:
    """When to stop, and how many executions make a sample: at least `batch`; None: as many as fill 5 ms."""

    stop: StopRule = StopRule()
    batch: int | None = None
    mode: Mode = Mode.WARM


@dataclass(frozen=True)
class Measurement:
    """Samples in milliseconds for one execution of the dispatch, in the order taken.

    A sample is `executions` executions in a row, with caches as `mode` says. `overhead_ms` is what a
    call costs whatever it does, for one execution; it has been taken off the samples. `ended_by`
    tells why no more samples were taken. `dropped_ms` are samples during which other processes had a
    core that was needed: others were taken instead. `places` has the number of the place in memory at
    which each sample was taken; it is empty if that does not apply. `batches` has the number of samples
    of each sample batch, in order. `gpu` is the GPU's state after the last sample; None if unknown.

    `eager_ms` is the time of one execution of a library that is called eagerly, where the samples are of
    CUDA graphs; `library_call_ms` is what a call of a library costs on a CPU beside its work, which has
    not been taken off. Both are 0 where they do not apply.
    """

    samples_ms: tuple[float, ...]
    executions: int
    mode: str = Mode.WARM.value
    overhead_ms: float = 0.0
    ended_by: str = "count"
    warnings: tuple[str, ...] = ()
    dropped_ms: tuple[float, ...] = ()
    places: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    gpu: GpuState | None = None
    eager_ms: float = 0.0
    library_call_ms: float = 0.0

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
        """95 % confidence interval of the median, over places in memory and over time."""
        low, high = batched_interval(self.samples_ms, self.places, self.batches)
        return max(0.0, min(low, self.median_ms)), max(high, self.median_ms)

    @property
    def independent_ms(self) -> tuple[float, ...]:
        """What counts as a sample when runs are compared: medians of sample batches, or of places if they are few."""
        return by_batch(self.samples_ms, self.batches) or by_place(self.samples_ms, self.places)

    @property
    def spread(self) -> float:
        """(max - min) / median of the samples; 0 for a single one."""
        return (self.max_ms - self.min_ms) / self.median_ms if self.median_ms > 0 else math.inf

    @property
    def half_width(self) -> float:
        """How far the interval of the median reaches from it, relative to it."""
        low, high = self.interval_ms
        reach = max(high - self.median_ms, self.median_ms - low)
        return reach / self.median_ms if self.median_ms > 0 else math.inf

    def gflops(self, flops: int) -> float:
        """10**9 operations a second at the median."""
        return flops / self.median_ms / 1e6 if self.median_ms > 0 else math.inf


def prefers_single(single_seconds: float, repeat: int) -> bool:
    """Is a call of the profile vmfb, `repeat` executions, too long to be a sample?"""
    return single_seconds * repeat > _LONG_CALL_SECONDS


def calls_per_sample(call_seconds: float, repeat: int, batch: int | None) -> int:
    """Calls of `repeat` executions each that make a sample.

    With `batch`, enough for that many executions; without, enough to last 5 ms.
    """
    if batch is not None:
        return max(1, math.ceil(batch / repeat))
    return calls_that_last(_SAMPLE_SECONDS, call_seconds)


def calls_that_last(seconds: float, call_seconds: float) -> int:
    """How many calls take `seconds` together; 1 if a call takes no time that the clock can see."""
    return max(1, math.ceil(seconds / call_seconds)) if call_seconds > 0 else 1


def quickest(time: Callable[[int], float], seconds: float) -> float:
    """Seconds of the quickest call of those that fit into `seconds`; of two at least."""
    first = time(1)
    return min(first, *(time(1) for _ in range(calls_that_last(seconds, first))))


def call_overhead(single_seconds: float, call_seconds: float, repeat: int) -> float:
    """Seconds that a call costs beside its executions, from calls of one and of `repeat` executions.

    single = overhead + execution, call = overhead + repeat * execution. 0 where the two are too
    close to tell, and never more than a twentieth of the call.
    """
    if repeat < _FEWEST_REPEATS:
        return 0.0
    overhead = (repeat * single_seconds - call_seconds) / (repeat - 1)
    return min(max(0.0, overhead), single_seconds, 0.05 * call_seconds)


@dataclass(frozen=True)
class Timer:
    """How a dispatch is timed: `time(calls) -> seconds`, where a call is `repeat` executions.

    `now` is a second clock that does not depend on it, in seconds, or None if there is none.
    `run_delay` is a clock that runs only while threads of ours wait for a core, or None.
    `overhead(call_seconds)` is what a call that takes so long costs beside its executions, in
    seconds. `prepare` is done before each sample and gives the number of the place that it is taken at;
    None if there is no single one. `skip_warmup`: after `prepare` it is as fast as it gets.
    """

    time: Callable[[int], float]
    repeat: int
    now: Callable[[], float] | None = None
    run_delay: Callable[[], float] | None = None
    overhead: Callable[[float], float] = lambda _: 0.0
    prepare: Callable[[], int | None] = lambda: None
    skip_warmup: bool = False

    def read(self, calls: int) -> Reading:
        """Time `calls` calls by all clocks."""
        taken = self.run_delay() if self.run_delay else 0.0
        before = self.now() if self.now else None
        claimed = self.time(calls)
        waited = self.now() - before if self.now and before is not None else None
        return Reading(claimed, waited, self.run_delay() - taken if self.run_delay else 0.0)

    def undisturbed(self, calls: int) -> Reading:
        """`read`, again and again if others have our cores, but not for ever."""
        for _ in range(_TRIES):
            reading = self.read(calls)
            if not reading.is_disturbed:
                break
        return reading

    def quickest(self, most: int) -> float:
        """Seconds of the quickest of `most` calls; of fewer if they are long."""
        found: list[float] = []
        while len(found) < most and sum(found) < _SAMPLE_SECONDS:
            found.append(self.time(1))
        return min(found)

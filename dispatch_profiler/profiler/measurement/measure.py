"""The measurement of one dispatch, how many executions a sample needs, and how a dispatch is timed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from dispatch_profiler.profiler.measurement.gpu_monitor import GpuState
from dispatch_profiler.profiler.statistics.intervals import batched_interval, by_batch, by_place, quantile
from dispatch_profiler.profiler.statistics.stopping import (
    Ended,
    Reading,
    StopRule,
)

# -- included --------------------------------------------------------------------------------------

# The parts of an execution that a time includes. Times are comparable as far as they include the same parts.


class Included(str, Enum):
    """A part of an execution that its time may include."""

    #: Every kernel (dispatch) of one execution.
    KERNELS = "kernels"
    #: The fills and copies between them, such as the zeros around a padded image.
    FILLS_AND_COPIES = "fills and copies"
    #: Converting the layout or type of a filter or weight, as an argument requires in every execution. A
    #: constant can be converted once, beforehand.
    WEIGHT_CONVERSION = "weight conversion"
    #: The host's part of a call: arguments, launch, waiting, memory for results and intermediate values.
    CALL = "call"


def included(*, weights: bool, call: bool) -> tuple[Included, ...]:
    """Kernels, fills and copies; the conversion of weights and the call as requested."""
    optional = ((Included.WEIGHT_CONVERSION, weights), (Included.CALL, call))
    return Included.KERNELS, Included.FILLS_AND_COPIES, *(part for part, is_in in optional if is_in)


def included_text(parts: Sequence[Included]) -> str:
    """`kernels; fills and copies; call`; empty if unknown."""
    return "; ".join(part.value for part in parts)


def differences(base: Sequence[Included], new: Sequence[Included]) -> list[str]:
    """`only new includes call`. A side without parts does not state what its time includes."""
    if not base or not new:
        sides = [name for name, parts in (("base", base), ("new", new)) if not parts]
        return [f"{sides[0]} does not state what its time includes"] if len(sides) == 1 else []
    found = (
        (side, [part for part in one if part not in other])
        for side, one, other in (("base", base, new), ("new", new, base))
    )
    return [
        f"only {side} includes {' and '.join(part.value for part in parts)}" for side, parts in found if parts
    ]


#: A sample lasts at least this long, so that the clock and the call contribute little to it.
_SAMPLE_SECONDS = 0.005
#: Above this time of one call, the profile vmfb is not used: one execution is enough.
_LONG_CALL_SECONDS = 2.0
#: Nor above this part of the budget: two calls and three samples must fit into it.
_LONG_CALL_PART = 1.0 / 4.0
#: The overhead of a call is measured this many times; their range is its uncertainty.
_OVERHEAD_PARTS = 4
#: How often a short sample is repeated if other processes disturb it.
_TRIES = 5
#: The overhead of a call comes from the quickest call in this time: few calls may all be disturbed.
OVERHEAD_SECONDS = 0.02
#: With fewer executions per call, its overhead cannot be separated from their time.
_MIN_REPEATS = 10


class Mode(str, Enum):
    """The contents of the caches when an execution starts."""

    #: The operands, as the previous execution left them.
    WARM = "warm"
    #: None of them: executions rotate over operands that exceed the caches.
    COLD = "cold"


@dataclass(frozen=True)
class MeasureOptions:
    """When to stop, and how many executions make a sample: at least `batch`; None fills `sample_seconds`.

    With `keeps_disturbed`, samples and batches that other processes disturb are kept, for `Measurement.p10_ms`: many
    samples say more than a few that were waited for. Only before the first sample, an undisturbed one is waited for.
    """

    stop: StopRule = StopRule()
    batch: int | None = None
    mode: Mode = Mode.WARM
    sample_seconds: float = _SAMPLE_SECONDS
    keeps_disturbed: bool = False

    @property
    def longest_call(self) -> float:
        """Seconds that a call of many executions may take."""
        if self.stop.count is not None:
            return _LONG_CALL_SECONDS
        return min(_LONG_CALL_SECONDS, _LONG_CALL_PART * self.stop.seconds)


@dataclass(frozen=True)
class Measurement:
    """Samples in milliseconds per execution of the dispatch, in the order taken.

    A sample is `executions` executions in a row, with caches as `mode` says. `overhead_ms` is the overhead
    of a call per execution, which has been subtracted from the samples; `overhead_error_ms` is its
    uncertainty, which widens the interval. `ended_by` is why no more samples were taken. `dropped_ms` are
    samples during which other processes used a core that was needed; others were taken instead. `places` is
    the number of the place in memory of each sample; empty if that does not apply. `batches` is the number
    of samples in each sample batch, in order. `gpu` is the GPU's state after the last sample; None if
    unknown.

    `includes` has what the time of an execution covers; empty in records of earlier versions.

    `eager_ms` is the time of one eager execution by a library whose samples are of CUDA graphs.
    `library_call_ms` is the overhead of a library's call on a CPU, which has not been subtracted. Both are
    0 where they do not apply.
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
    overhead_error_ms: float = 0.0
    includes: tuple[Included, ...] = ()

    @property
    def was_interrupted(self) -> bool:
        """Did the run end before it was done? `--resume` measures it again."""
        return self.ended_by == Ended.INTERRUPTED.value

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
    def p10_ms(self) -> float:
        """The time on a machine that does little else: noise only adds, and comes in bursts."""
        return quantile(self.samples_ms, 0.1)

    @property
    def p20_ms(self) -> float:
        return quantile(self.samples_ms, 0.2)

    @property
    def p80_ms(self) -> float:
        return quantile(self.samples_ms, 0.8)

    @property
    def has_interval(self) -> bool:
        """Whether the interval of the median is known: a single sample says nothing about its noise."""
        return len(self.samples_ms) > 1

    @property
    def interval_ms(self) -> tuple[float, float]:
        """95 % confidence interval of the median, over places in memory and over time.

        The uncertainty of the overhead of a call widens it. From 0 to infinity if it is unknown: see `has_interval`.
        """
        low, high = batched_interval(self.samples_ms, self.places, self.batches)
        low, high = low - self.overhead_error_ms, high + self.overhead_error_ms
        return max(0.0, min(low, self.median_ms)), max(high, self.median_ms)

    @property
    def independent_ms(self) -> tuple[float, ...]:
        """The samples for comparing runs: medians of sample batches, or of places if batches are few."""
        return by_batch(self.samples_ms, self.batches) or by_place(self.samples_ms, self.places)

    @property
    def spread(self) -> float:
        """(max - min) / median of the samples; 0 for a single one."""
        return (self.max_ms - self.min_ms) / self.median_ms if self.median_ms > 0 else math.inf

    @property
    def half_width(self) -> float:
        """The larger distance from the median to an end of its interval, relative to the median; infinite if unknown."""
        low, high = self.interval_ms
        reach = max(high - self.median_ms, self.median_ms - low)
        return reach / self.median_ms if self.median_ms > 0 else math.inf

    def gflops(self, flops: int) -> float:
        """GFLOP/s at the median."""
        return flops / self.median_ms / 1e6 if self.median_ms > 0 else math.inf


def interval_texts(measurement: Measurement) -> tuple[str, str]:
    """Both ends of the median's interval in milliseconds, with all digits; empty if they are unknown."""
    low, high = measurement.interval_ms
    return (repr(low), repr(high)) if measurement.has_interval else ("", "")


def prefers_single(single_seconds: float, repeat: int, longest: float) -> bool:
    """Whether a call of the profile vmfb, `repeat` executions, takes more than `longest` seconds."""
    return single_seconds * repeat > longest


def calls_per_sample(call_seconds: float, repeat: int, options: MeasureOptions) -> int:
    """Number of calls, of `repeat` executions each, in a sample.

    With a batch in `options`, enough for that many executions; without, enough to last their seconds.
    """
    if options.batch is not None:
        return max(1, math.ceil(options.batch / repeat))
    return calls_that_last(options.sample_seconds, call_seconds)


def calls_that_last(seconds: float, call_seconds: float) -> int:
    """How many calls take `seconds` in total; 1 if a call takes no measurable time."""
    return max(1, math.ceil(seconds / call_seconds)) if call_seconds > 0 else 1


def quickest(time: Callable[[int], float], seconds: float) -> float:
    """Seconds of the quickest of the calls that fit into `seconds`, at least two."""
    first = time(1)
    return min(first, *(time(1) for _ in range(calls_that_last(seconds, first))))


def call_overhead(single_seconds: float, call_seconds: float, repeat: int) -> float:
    """Seconds of overhead of a call, from calls of one and of `repeat` executions.

    single = overhead + execution, call = overhead + repeat * execution. 0 if `repeat` is too small to
    separate them, and at most a twentieth of the call.
    """
    if repeat < _MIN_REPEATS:
        return 0.0
    overhead = (repeat * single_seconds - call_seconds) / (repeat - 1)
    return min(max(0.0, overhead), single_seconds, 0.05 * call_seconds)


@dataclass(frozen=True)
class CallOverhead:
    """The overhead of a call in seconds, and its uncertainty.

    `execution` is the time of one execution with warm operands; 0 if unknown. Without `is_known`, the
    overhead cannot be separated from the executions, whose time includes it.
    """

    seconds: float = 0.0
    error: float = 0.0
    execution: float = 0.0
    is_known: bool = False

    def bounded(self, call_seconds: float) -> CallOverhead:
        """This overhead, but at most `call_seconds` less one execution: a cold execution takes no less time.

        If the time of an execution is unknown, the difference counts as uncertainty: nothing else tells how
        much of the call is the execution.
        """
        seconds = min(self.seconds, max(0.0, call_seconds - self.execution))
        lowered = 0.0 if self.execution else self.seconds - seconds
        return replace(self, seconds=seconds, error=max(self.error, lowered))


def warm_overhead(single_seconds: float, call_seconds: float, repeat: int) -> CallOverhead:
    """`call_overhead`, which is unknown without the time of a single execution, or if `repeat` is too small."""
    is_known = single_seconds > 0.0 and repeat >= _MIN_REPEATS
    return CallOverhead(call_overhead(single_seconds, call_seconds, repeat), is_known=is_known)


def measure_overhead(
    single: Callable[[int], float], profile: Callable[[int], float], repeat: int
) -> CallOverhead:
    """The overhead of a call, from calls of one execution (`single`) and of `repeat` executions (`profile`)."""
    if repeat < _MIN_REPEATS:
        return CallOverhead()
    part = OVERHEAD_SECONDS / _OVERHEAD_PARTS
    pairs = [(quickest(single, part), quickest(profile, part)) for _ in range(_OVERHEAD_PARTS)]
    found = [call_overhead(one, many, repeat) for one, many in pairs]
    one, many = (min(each) for each in zip(*pairs, strict=True))
    execution = max(0.0, many - one) / (repeat - 1)
    return CallOverhead(call_overhead(one, many, repeat), max(found) - min(found), execution, True)


@dataclass(frozen=True)
class Timer:
    """How a dispatch is timed: `time(calls) -> seconds`, where a call is `repeat` executions.

    `now` is an independent second clock in seconds, or None. `run_delay` is a clock that advances only while
    our threads wait for a core, or None. `overhead(call_seconds)` is the overhead of a call of that length.
    `prepare` runs before each sample and returns the number of its place; None if several places take part.
    `skip_warmup`: after `prepare`, no further warm-up is needed.
    """

    time: Callable[[int], float]
    repeat: int
    now: Callable[[], float] | None = None
    run_delay: Callable[[], float] | None = None
    overhead: Callable[[float], CallOverhead] = lambda _: CallOverhead()
    prepare: Callable[[], int | None] = lambda: None
    skip_warmup: bool = False

    def read(self, calls: int) -> Reading:
        """Time `calls` calls with all clocks."""
        taken = self.run_delay() if self.run_delay else 0.0
        before = self.now() if self.now else None
        claimed = self.time(calls)
        waited = self.now() - before if self.now and before is not None else None
        return Reading(claimed, waited, self.run_delay() - taken if self.run_delay else 0.0)

    def undisturbed(self, calls: int, seconds: float = math.inf) -> Reading:
        """`read`, repeated a few times, for at most `seconds`, while other processes use our cores."""
        taken = 0.0
        for _ in range(_TRIES):
            reading = self.read(calls)
            taken += reading.claimed
            if not reading.is_disturbed or taken >= seconds:
                break
        return reading

    def quickest(self, most: int) -> float:
        """Seconds of the quickest of `most` calls, or of fewer if they are long."""
        found: list[float] = []
        while len(found) < most and sum(found) < _SAMPLE_SECONDS:
            found.append(self.time(1))
        return min(found)

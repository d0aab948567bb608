"""Sample batches: a few samples of one dispatch, alternating with batches of the operation's other dispatches.

Noise lasts for minutes, during which another process uses half of a core or the clock is lower. Samples taken
within such a period agree with each other and do not reveal it. So the dispatches of an operation are sampled
in turn, in many short batches, until each is precise enough: all of them are affected alike. Each batch
continues at new places in memory.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dispatch_profiler.profiler.measurement.gpu_monitor import GpuState
from dispatch_profiler.profiler.measurement.measure import (
    CallOverhead,
    Measurement,
    MeasureOptions,
    Timer,
    calls_per_sample,
    included,
)
from dispatch_profiler.profiler.statistics.stopping import (
    Ended,
    Reading,
    clock_warnings,
    drift_warning,
    load_warning,
)

#: A sample batch takes at most this part of a dispatch's budget.
BATCH_PART = 1.0 / 16.0
#: Disturbed samples are dropped for at most this part of a dispatch's remaining budget.
_DROP_PART = 1.0 / 4.0
#: This many short sample batches suffice for a steady dispatch.
_SHORT_BATCHES = 6
_SHORT = 4
#: Most samples in a sample batch, however short they are.
_LONG = 125


@dataclass(frozen=True)
class SampleBatch:
    """One sample batch: milliseconds per execution, in the order taken.

    A sample is `calls` calls, with `executions` executions in total; `overhead` is the overhead of a call.
    `places` is the place in memory of each sample, or empty. `readings` are of all samples, including
    dropped ones. `seconds` is how long the batch took, including repetitions and the samples of
    the sentinel. `disturbed` is the sentinel's warning, if any; `gpu` and `throttled` are the GPU's state
    and warning. `has_weight_conversion`: the time includes it; see `Included`.
    """

    samples_ms: tuple[float, ...]
    calls: int
    executions: int
    overhead: CallOverhead
    readings: tuple[Reading, ...]
    places: tuple[int, ...] = ()
    dropped_ms: tuple[float, ...] = ()
    kept_disturbed: int = 0
    seconds: float = 0.0
    disturbed: str = ""
    gpu: GpuState | None = None
    throttled: str = ""
    eager_ms: float = 0.0
    library_call_ms: float = 0.0
    has_weight_conversion: bool = True


@dataclass(frozen=True)
class BatchPlan:
    """Plan of the next sample batch: at most `most` samples or `seconds`.

    It begins at the place with number `place`, with calls as in `before`; None in the first sample batch. With `stays`,
    all of its samples have the same place: the first one brings the operands into the caches for the others.
    `best_ms` is the upper end of the 95 % interval of the operation's best dispatch, or its decile.
    """

    options: MeasureOptions
    most: int
    seconds: float
    #: After this time, disturbed samples are kept.
    drop_seconds: float
    #: Whether further disturbed samples are dropped once there is a sample.
    drops: bool = True
    place: int = 0
    stays: bool = False
    before: SampleBatch | None = None
    best_ms: float | None = None


def next_batch(options: MeasureOptions, batches: Sequence[SampleBatch], best_ms: float | None) -> BatchPlan:
    """The plan after these sample batches."""
    stop, taken = options.stop, sum(len(each.samples_ms) for each in batches)
    most = _SHORT if len(batches) < _SHORT_BATCHES else _LONG
    if stop.count is not None:
        left = stop.count - taken
        most = min(left, -(-stop.count // _SHORT_BATCHES))
    part, remaining = BATCH_PART * stop.seconds, stop.seconds - sum(each.seconds for each in batches)
    # One sample of a slow dispatch takes longer than `part`, and may be disturbed too.
    dropping = max(part, _DROP_PART * remaining)
    if options.keeps_disturbed and batches:
        dropping = 0.0
    drops, before = not options.keeps_disturbed, batches[-1] if batches else None
    stays = options.keeps_disturbed
    place = len(batches) if stays else taken
    return BatchPlan(options, most, part, dropping, drops, place, stays, before, best_ms)


def ended(options: MeasureOptions, batches: Sequence[SampleBatch], best_ms: float | None) -> Ended | None:
    """Why no further sample batch is needed; None while samples are missing."""
    _, end = progress(options, batches, best_ms)
    return end


def progress(
    options: MeasureOptions, batches: Sequence[SampleBatch], best_ms: float | None, is_slow: bool = False
) -> tuple[Measurement, Ended | None]:
    """All samples so far, and why no further sample batch is needed; None while samples are missing.

    While the machine is slower than when the best was measured (`is_slow`), only the budget or the count ends sampling.
    """
    found = joined(options, batches)
    seconds = sum(each.seconds for each in batches)
    end = options.stop.ended(found.samples_ms, seconds, best_ms, found.interval_ms, len(batches))
    if is_slow and end in (Ended.ABANDONED, Ended.INTERVAL):
        end = Ended.BUDGET if options.stop.is_over(len(found.samples_ms), seconds) else None
    return (found if end is None else replace(found, ended_by=end.value)), end


def take(timer: Timer, plan: BatchPlan, elapsed: Callable[[], float] = clock.monotonic) -> SampleBatch:
    """Take samples as planned. `elapsed` is the clock of the plan, in seconds.

    The first call is dropped, because the caches hold other data: in the first batch only for a timer with
    `skip_warmup`, which needs no more, and for a plan that stays at a place, since a few slow samples do not change the
    lowest decile. In the first batch, warm calls determine the length of a sample and the overhead of a call.
    """
    start, stays = elapsed(), plan.stays
    place = timer.prepare() if stays else None
    calls, known = _scale(timer, plan)
    executions, stop = calls * timer.repeat, plan.options.stop
    # A reading of the run delay takes as long as a short sample.
    watch = _Watch(timer.run_delay if stays and plan.before is not None else None)
    timer = timer if watch.run_delay is None else replace(timer, run_delay=None)
    readings: list[Reading] = []
    samples: list[float] = []
    places: list[int] = []
    dropped: list[float] = []
    kept_disturbed = 0
    while not _is_over(plan, samples, elapsed() - start):
        place = place if stays else timer.prepare()
        reading = timer.read(calls)
        readings.append(reading)
        sample = 1e3 * (reading.claimed - calls * known.seconds) / executions
        if (
            reading.is_disturbed
            and (plan.drops or not samples)
            and stop.may_drop(len(dropped), len(samples), elapsed() - start, plan.drop_seconds)
        ):
            dropped.append(sample)
            continue
        samples.append(sample)
        kept_disturbed += reading.is_disturbed
        if place is not None:
            places.append(place)
    if watch.is_disturbed(readings):
        kept_disturbed = len(samples)
    overhead = known.bounded(min(reading.claimed for reading in readings) / calls)
    less = 1e3 * calls * (known.seconds - overhead.seconds) / executions
    return SampleBatch(
        tuple(sample + less for sample in samples),
        calls,
        executions,
        overhead,
        tuple(readings),
        tuple(places),
        tuple(sample + less for sample in dropped),
        kept_disturbed,
        elapsed() - start,
    )


class _Watch:
    """Whether a whole sample batch was disturbed, by a clock of the run delay; never without one."""

    def __init__(self, run_delay: Callable[[], float] | None) -> None:
        self.run_delay = run_delay
        self._before = run_delay() if run_delay else 0.0

    def is_disturbed(self, readings: Sequence[Reading]) -> bool:
        """Whether threads waited for a core during these readings, or between them."""
        if self.run_delay is None:
            return False
        claimed = sum(reading.claimed for reading in readings)
        return Reading(claimed, taken=self.run_delay() - self._before).is_disturbed


def _scale(timer: Timer, plan: BatchPlan) -> tuple[int, CallOverhead]:
    """Calls in a sample, and the overhead of one."""
    if plan.before is not None and (timer.skip_warmup or plan.stays):
        return plan.before.calls, plan.before.overhead
    if not plan.stays:
        timer.prepare()
    timer.time(1)
    if plan.before is not None:
        return plan.before.calls, plan.before.overhead
    batch = plan.options.batch
    call = timer.quickest(3 if batch is None else 1)
    return calls_per_sample(call, timer.repeat, plan.options), timer.overhead(call)


def _is_over(plan: BatchPlan, samples: Sequence[float], seconds: float) -> bool:
    """Whether it is another dispatch's turn."""
    if len(samples) >= plan.most:
        return True
    if plan.options.stop.count is not None:
        return False
    is_hopeless = plan.options.stop.is_hopeless(samples, plan.best_ms)
    return bool(samples) and (seconds >= plan.seconds or is_hopeless)


def joined(
    options: MeasureOptions, batches: Sequence[SampleBatch], ended_by: Ended | None = None
) -> Measurement:
    """All samples of all sample batches, in the order taken, with warnings about them."""
    samples = tuple(sample for each in batches for sample in each.samples_ms)
    readings = [reading for each in batches for reading in each.readings]
    disturbed = [each.disturbed for each in batches if each.disturbed]
    throttled = [each.throttled for each in batches if each.throttled]
    warnings = (
        *clock_warnings(readings),
        drift_warning(samples),
        load_warning(len(samples), sum(each.kept_disturbed for each in batches)),
        disturbed[-1] if 4 * len(disturbed) > len(batches) else "",
        throttled[-1] if throttled else "",
    )
    last = batches[-1]
    return Measurement(
        samples_ms=samples,
        executions=last.executions,
        mode=options.mode.value,
        overhead_ms=1e3 * last.overhead.seconds * last.calls / last.executions,
        overhead_error_ms=1e3 * last.overhead.error * last.calls / last.executions,
        ended_by=(ended_by or Ended.INTERRUPTED).value,
        warnings=tuple(filter(None, warnings)),
        dropped_ms=tuple(sample for each in batches for sample in each.dropped_ms),
        places=tuple(place for each in batches for place in each.places),
        batches=tuple(len(each.samples_ms) for each in batches),
        gpu=last.gpu,
        eager_ms=max(each.eager_ms for each in batches),
        library_call_ms=max(each.library_call_ms for each in batches),
        includes=included(weights=last.has_weight_conversion, call=not last.overhead.is_known),
    )

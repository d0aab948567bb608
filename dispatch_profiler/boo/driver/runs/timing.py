"""Times launches with the profiler's sampling and stop rule."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from dispatch_profiler.boo.driver.command_lines import Timing
from dispatch_profiler.profiler.measurement.measure import Measurement, MeasureOptions, Timer
from dispatch_profiler.profiler.measurement.run_delay import run_delay
from dispatch_profiler.profiler.measurement.sample_batches import SampleBatch, ended, joined, next_batch, take
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.runtime._base import raw_clock
from dispatch_profiler.runtime.timing import seconds_of

#: Prefix of the names of IREE's worker threads.
_WORKERS = "iree-worker"


@dataclass(frozen=True)
class Work:
    """Work to time: `launch()`, then `wait()` until the device has finished, if `waits`; else `launch` itself waits."""

    launch: Callable[[], Any]
    wait: Callable[[], object] = lambda: None
    waits: bool = False

    def time(self, calls: int) -> float:
        """Seconds that `calls` launches take, each started after the previous one has finished."""
        launch, wait = self.launch, self.wait

        def launch_and_wait() -> None:
            launch()
            wait()

        wait()
        return seconds_of(launch_and_wait if self.waits else launch, repeat((), calls))


@dataclass(frozen=True)
class TimedSide:
    """One side of a comparison whose sides are timed alternately: `time(launches) -> seconds`.

    After each sample batch, `settle` waits for what would disturb the next side, such as threads that still spin.
    """

    time: Callable[[int], float]
    settle: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class LaunchTimes:
    """Statistics of the microseconds per launch, over samples.

    A sample is the mean of `launches / samples` launches; with --iter, a single launch.
    """

    min: float
    max: float
    mean: float
    stddev: float
    median: float
    p20: float
    p80: float
    samples: int
    launches: int
    warnings: tuple[str, ...] = ()

    @staticmethod
    def of(measurement: Measurement) -> LaunchTimes:
        """The statistics of a measurement."""
        samples = [1e3 * each for each in measurement.samples_ms]
        return LaunchTimes(
            min=min(samples),
            max=max(samples),
            mean=statistics.fmean(samples),
            stddev=statistics.stdev(samples) if len(samples) > 1 else 0.0,
            median=1e3 * measurement.median_ms,
            p20=1e3 * measurement.p20_ms,
            p80=1e3 * measurement.p80_ms,
            samples=len(samples),
            launches=len(samples) * measurement.executions,
            warnings=measurement.warnings,
        )


def measure_options(timing: Timing) -> MeasureOptions:
    """`timing.launches` samples of one launch each, or without a number, samples until the median is known to 1 %."""
    if timing.launches is None:
        return MeasureOptions()
    return MeasureOptions(StopRule(count=timing.launches), batch=1)


def measure_in_turn(sides: Sequence[TimedSide], options: MeasureOptions) -> list[LaunchTimes]:
    """Times of each of `sides`, in alternating sample batches, so that lasting noise affects all of them alike."""
    # Reading the run delay takes longer than a short launch, and would leave a pause before each.
    delay = run_delay(_WORKERS) if options.batch is None else None
    timers = [Timer(each.time, 1, raw_clock, delay) for each in sides]
    batches: list[list[SampleBatch]] = [[] for _ in sides]
    pending = list(range(len(sides)))
    while pending:
        for at in list(pending):
            batches[at].append(take(timers[at], next_batch(options, batches[at], None)))
            sides[at].settle()
            if ended(options, batches[at], None) is not None:
                pending.remove(at)
    return [LaunchTimes.of(joined(options, each, ended(options, each, None))) for each in batches]

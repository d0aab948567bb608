"""Paired sampling: two kernels on the same operands, alternating, on one device.

Each round uses new places in memory for code and operands: two copies of one vmfb were seen to differ by
1 %, one copy on operands at two places by 10 %. Rounds at one place would share its effect, which would
look like a difference.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from dispatch_profiler.profiler.measurement.kernels import KernelCall, Kernels, Places, warm_places
from dispatch_profiler.profiler.measurement.measure import Timer, calls_that_last
from dispatch_profiler.profiler.statistics.comparison import (
    SequentialTest,
    SequentialTestOptions,
    SequentialTestResult,
    Side,
)
from dispatch_profiler.profiler.statistics.stopping import Reading, clock_warnings
from dispatch_profiler.runtime import RunError

#: A sample lasts at least this long. Short samples are close together, so that a disturbance affects
#: neighbouring ones too.
_SAMPLE_SECONDS = 1e-3
#: A round should not last longer than this many seconds, so that enough rounds fit.
_ROUND_SECONDS = 0.1
#: But a round lasts at least this many times as long as placing its sides.
_TIMES_PLACING = 2.0


@dataclass(frozen=True)
class Timed:
    """A profile vmfb, a function in it, and the executions of the dispatch in one call."""

    vmfb: bytes
    function: str
    repeat: int


@dataclass(frozen=True)
class PairedSamples:
    """The result of the test, the median of each side in milliseconds, and the results of each side."""

    result: SequentialTestResult
    medians_ms: Mapping[Side, float]
    outputs: Mapping[Side, tuple[np.ndarray, ...]]


def take_paired_samples(
    device: Kernels,
    sides: Mapping[Side, Timed],
    places: Places,
    options: SequentialTestOptions,
    seconds: float,
    run_delay: Callable[[], float] | None = None,
) -> PairedSamples:
    """Sample until the test is decided, or for `seconds`. RunError if the clock cannot be trusted."""
    stage = _Stage(device, sides, places, options.seed)
    outputs = {side: call.run() for side, call in stage.calls.items()}
    calls, turns = _plan(stage, sides, options.turns)
    rule, end = SequentialTest(replace(options, turns=turns)), time.monotonic() + seconds
    samples: dict[Side, list[float]] = {side: [] for side in sides}
    readings: list[Reading] = []
    while not rule.finished and time.monotonic() < end:
        stage.place()
        times = []
        for side in rule.order:
            call = stage.calls[side]
            timer = Timer(call.time, sides[side].repeat, call.now, run_delay)
            reading = timer.undisturbed(calls[side])
            if reading.claimed <= 0:
                raise RunError("the clock stood still or went back: no figure can be trusted")
            readings.append(reading)
            times.append(1e3 * reading.claimed / (calls[side] * sides[side].repeat))
            samples[side].append(times[-1])
        rule.add(times)
    if doubts := clock_warnings(readings):
        raise RunError(f"{doubts[0]}: no figure can be trusted")
    medians = {side: statistics.median(each) for side, each in samples.items() if each}
    return PairedSamples(rule.result(), medians, outputs)


def _plan(stage: _Stage, sides: Mapping[Side, Timed], most_turns: int) -> tuple[dict[Side, int], int]:
    """The number of calls in a sample of each side, and of turns in a round.

    Samples have as many executions on both sides: the fastest of shorter samples would be faster.
    """
    quickest = {side: min(call.time(1) for _ in range(3)) for side, call in stage.calls.items()}
    executions = max(calls_that_last(_SAMPLE_SECONDS, quickest[s]) * sides[s].repeat for s in sides)
    calls = {side: math.ceil(executions / timed.repeat) for side, timed in sides.items()}
    turn = 2.0 * sum(calls[side] * quickest[side] for side in sides)
    if turn <= 0:
        return calls, most_turns
    fitting = min(most_turns, round(_ROUND_SECONDS / turn))
    return calls, max(1, fitting, math.ceil(_TIMES_PLACING * stage.placing_seconds / turn))


class _Stage:
    """Both sides bound to the same operands."""

    def __init__(self, device: Kernels, sides: Mapping[Side, Timed], places: Places, seed: int) -> None:
        self._device = device
        self._sides = sides
        self._spots = map(places.at, itertools.cycle(range(warm_places(places.operation))))
        self._draw = np.random.default_rng([seed, 1])
        self.calls: dict[Side, KernelCall] = {}
        self.place()
        began = time.monotonic()
        self.place()
        #: Seconds that placing takes.
        self.placing_seconds = time.monotonic() - began

    def place(self) -> None:
        """Load both sides again, at the next place of the operands, and warm them up.

        The previous programs stay alive until then, so that their memory is not reused.
        """
        spot = next(self._spots)
        order = list(self._sides) if self._draw.random() < 0.5 else list(self._sides)[::-1]
        calls: dict[Side, KernelCall] = {}
        for side in order:
            timed = self._sides[side]
            calls[side] = self._device.load(timed.vmfb).bind(timed.function, spot)
        for side in order:
            calls[side].time(1)
        self.calls = calls

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
    AB,
    ABBA,
    FAR,
    FarTest,
    Order,
    Outcome,
    SequentialTest,
    SequentialTestOptions,
    SequentialTestResult,
    Side,
)
from dispatch_profiler.profiler.statistics.stopping import Reading, clock_warnings
from dispatch_profiler.runtime import RunError

#: A sample lasts at least this long. Short samples are close together, so that a disturbance affects
#: neighbouring ones too, and they fit between disturbances: beside three busy processes on two cores, intervals of samples
#: of 0.5 ms are half as wide as those of samples of 1.6 ms.
_SAMPLE_SECONDS = 0.5e-3
#: A round should not last longer than this many seconds, so that enough rounds fit.
_ROUND_SECONDS = 0.25
#: But a round lasts at least this many times as long as placing its sides.
_TIMES_PLACING = 2.0
#: Turns of a round, as far as they fit into it. What remains after four turns is mostly the effect of the place, which only
#: further rounds average out: with twelve turns, comparisons take 2.3 times as long on a quiet machine, and as long beside
#: three busy processes on two cores.
_MOST_TURNS = 4
#: The quickest of this many calls says how long a call takes, unless the first one is long.
_CALLS, _LONG_CALL_SECONDS = 3, 0.1


@dataclass(frozen=True)
class Timed:
    """A profile vmfb, a function in it, and the executions of the dispatch in one call."""

    vmfb: bytes
    function: str
    repeat: int


@dataclass(frozen=True)
class PairLimit:
    """The time of a comparison: `seconds`, or up to `first_seconds` if the first look comes later.

    Without a look, nothing is known, and all of the time is lost.
    """

    seconds: float
    first_seconds: float = 0.0

    def of(self, has_looked: bool) -> float:
        """The limit, depending on whether the test has looked at its rounds."""
        return self.seconds if has_looked else max(self.seconds, self.first_seconds)


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
    limit: PairLimit,
    run_delay: Callable[[], float] | None = None,
) -> PairedSamples:
    """Sample until the test is decided, or up to the limit. RunError if the clock cannot be trusted.

    Sides that seem far apart are first compared by a few rounds with few executions of the slow one (`FarTest`).
    """
    began = time.monotonic()
    stage = _Stage(device, sides, places, options.seed)
    outputs = {side: call.run() for side, call in stage.calls.items()}
    quickest = {side: _quickest(call) for side, call in stage.calls.items()}
    sampling = _Sampling(stage, began, limit, run_delay)
    result = None
    if _seem_far_apart(sides, quickest):
        far = FarTest(options, _far_pattern(quickest))
        sampling.take(far, _calls_alone(quickest))
        if far.result().outcome is not Outcome.UNCLEAR or not far.finished:
            result = far.result()
    if result is None:
        calls, turns = _plan(stage, sides, quickest)
        rule = SequentialTest(replace(options, turns=turns))
        sampling.take(rule, calls)
        result = rule.result()
    if doubts := clock_warnings(sampling.readings):
        raise RunError(f"{doubts[0]}: no figure can be trusted")
    return PairedSamples(result, sampling.medians_ms, outputs)


def _quickest(call: KernelCall) -> float:
    """Seconds of the quickest of a few calls; a long call is not repeated."""
    found = [call.time(1)]
    while len(found) < _CALLS and found[0] < _LONG_CALL_SECONDS:
        found.append(call.time(1))
    return min(found)


def _seem_far_apart(sides: Mapping[Side, Timed], quickest: Mapping[Side, float]) -> bool:
    """Whether an execution of one side takes at least `FAR` times as long as an execution of the other."""
    short, long = sorted(quickest[side] / timed.repeat for side, timed in sides.items())
    return long >= FAR * short > 0.0


def _calls_alone(quickest: Mapping[Side, float]) -> dict[Side, int]:
    """The calls in a sample of each side, as many as last long enough: a slow side has fewer executions."""
    return {side: calls_that_last(_SAMPLE_SECONDS, seconds) for side, seconds in quickest.items()}


def _far_pattern(quickest: Mapping[Side, float]) -> Order:
    """The order of a round of `FarTest`: one sample of each side if they are long, else two."""
    calls = _calls_alone(quickest)
    return ABBA if 2.0 * sum(calls[side] * quickest[side] for side in calls) <= _LONG_CALL_SECONDS else AB


def _plan(
    stage: _Stage, sides: Mapping[Side, Timed], quickest: Mapping[Side, float]
) -> tuple[dict[Side, int], int]:
    """The number of calls in a sample of each side, and of turns in a round.

    Samples have as many executions on both sides: the fastest of shorter samples would be faster.
    """
    alone = _calls_alone(quickest)
    executions = max(alone[side] * sides[side].repeat for side in sides)
    calls = {side: math.ceil(executions / timed.repeat) for side, timed in sides.items()}
    turn = 2.0 * sum(calls[side] * quickest[side] for side in sides)
    if turn <= 0:
        return calls, _MOST_TURNS
    fitting = min(_MOST_TURNS, round(_ROUND_SECONDS / turn))
    return calls, max(1, fitting, math.ceil(_TIMES_PLACING * stage.placing_seconds / turn))


class _Sampling:
    """Takes the rounds of tests, and keeps all samples."""

    def __init__(
        self, stage: _Stage, began: float, limit: PairLimit, run_delay: Callable[[], float] | None
    ) -> None:
        self._stage = stage
        self._began = began
        self._limit = limit
        self._run_delay = run_delay
        self._samples: dict[Side, list[float]] = {side: [] for side in Side}
        self.readings: list[Reading] = []

    def take(self, rule: FarTest | SequentialTest, calls: Mapping[Side, int]) -> None:
        """Add rounds to `rule` until it is finished, or up to the limit; a sample has `calls` of its side."""
        while not rule.finished and time.monotonic() - self._began < self._limit.of(rule.has_looked):
            self._stage.place()
            rule.add([self._sample(side, calls[side]) for side in rule.order])

    @property
    def medians_ms(self) -> dict[Side, float]:
        """The median of all samples of each side that has samples."""
        return {side: statistics.median(each) for side, each in self._samples.items() if each}

    def _sample(self, side: Side, calls: int) -> float:
        """Milliseconds of an execution. Raises RunError if the clock did not advance."""
        call, repeat = self._stage.calls[side], self._stage.sides[side].repeat
        timer = Timer(call.time, repeat, call.now, self._run_delay)
        # Not `undisturbed`: on a loaded machine, many samples say more than a few that were waited for.
        reading = timer.read(calls)
        if reading.claimed <= 0:
            raise RunError("the clock stood still or went back: no figure can be trusted")
        self.readings.append(reading)
        sample = 1e3 * reading.claimed / (calls * repeat)
        self._samples[side].append(sample)
        return sample


class _Stage:
    """Both sides bound to the same operands."""

    def __init__(self, device: Kernels, sides: Mapping[Side, Timed], places: Places, seed: int) -> None:
        self._device = device
        self.sides = sides
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
        order = list(self.sides) if self._draw.random() < 0.5 else list(self.sides)[::-1]
        calls: dict[Side, KernelCall] = {}
        for side in order:
            timed = self.sides[side]
            calls[side] = self._device.load(timed.vmfb).bind(timed.function, spot)
        for side in order:
            calls[side].time(1)
        self.calls = calls

"""Samples: how many executions, where operands lie, which samples are dropped, and what a time includes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.operations import Distribution, Matmul
from dispatch_profiler.profiler.measurement.kernels import (
    DeviceKernels,
    Places,
    Rotation,
    Stage,
    cold_places,
    warm_places,
)
from dispatch_profiler.profiler.measurement.measure import (
    CallOverhead,
    Measurement,
    MeasureOptions,
    Timer,
    call_overhead,
    calls_per_sample,
    differences,
    included,
    included_text,
    measure_overhead,
    prefers_single,
    warm_overhead,
)
from dispatch_profiler.profiler.measurement.sample_batches import SampleBatch, ended, joined, next_batch, take
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.runtime import NullDevice, RunError

examples = settings(deadline=None, derandomize=True)


class FakeClock:
    """Answers `time(calls)` with `seconds` of a call, the calls numbered from 0 as they are asked."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[int] = []

    def __call__(self, calls: int) -> float:
        self.asked.append(calls)
        return calls * self.seconds[min(len(self.asked), len(self.seconds)) - 1]


def measure(
    timer: Timer, options: MeasureOptions, *, best_ms: float | None = None, **clock: Any
) -> Measurement:
    """Sample batches one after another until the rule stops."""
    batches: list[SampleBatch] = []
    end = None
    while end is None:
        batches.append(take(timer, next_batch(options, batches, best_ms), **clock))
        end = ended(options, batches, best_ms)
    return joined(options, batches, end)


def taken(
    clock, repeat: int = 1, *, count: int | None = None, batch: int | None = None, **more
) -> Measurement:
    """A measurement of so many samples, or of as many as the rule asks for."""
    return measure(Timer(clock, repeat), MeasureOptions(StopRule(count=count), batch), **more)


# -- taking samples --------------------------------------------------------------------------------


def test_samples_are_milliseconds_of_one_execution_in_the_order_taken():
    """4 calls of 5 executions: 0.4 s are 20 ms an execution."""
    samples = iter((0.4, 0.8, 0.2))
    measurement = taken(lambda calls: next(samples) if calls == 4 else 9.0, 5, count=3, batch=20)
    assert measurement.samples_ms == pytest.approx((20.0, 40.0, 10.0))
    assert measurement.executions == 20


def test_the_first_call_is_no_sample():
    """A first call that takes a thousand times longer leaves no trace in the figures."""
    cold = taken(FakeClock(1.0, 0.001), count=4, batch=1)
    assert cold.samples_ms == pytest.approx((1.0,) * 4)


@pytest.mark.parametrize(("skips", "keeps"), [(False, False), (True, False), (False, True)])
def test_what_skips_warmups_or_keeps_disturbed_samples_drops_its_first_call_only(skips: bool, keeps: bool):
    """Other processes disturb one sample in each batch, of which eight samples make four."""
    clock, at_once = FakeClock(0.5), skips or keeps
    options = MeasureOptions(StopRule(count=8), 3, keeps_disturbed=keeps)
    found = measure(Timer(clock, 1, skip_warmup=skips), options)

    samples = [calls for calls in clock.asked if calls == 3]
    assert len(found.samples_ms) == len(samples) == 8 and found.batches == (2, 2, 2, 2)
    first_visit = clock.asked.index(3)
    assert len(clock.asked) - 8 - first_visit == (0 if at_once else 3)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_sample_batch_stays_at_a_place_if_disturbed_samples_are_kept(keeps: bool):
    """Its first sample brings the operands into the caches for the others; each batch has another place."""
    prepared = []

    def prepare() -> int:
        prepared.append(len(prepared))
        return prepared[-1]

    options = MeasureOptions(StopRule(count=8), 3, keeps_disturbed=keeps)
    found = measure(Timer(FakeClock(0.5), 1, prepare=prepare), options)
    assert len(prepared) == (4 if keeps else 4 + 8)
    assert len(set(found.places)) == (4 if keeps else 8)


@pytest.mark.parametrize("count", [1, 2, 5, 50])
def test_there_are_as_many_samples_as_asked_for(count):
    """No more, no fewer."""
    assert len(taken(FakeClock(0.5), count=count).samples_ms) == count


def test_a_short_dispatch_is_repeated_until_a_sample_lasts_5_ms():
    """Calls of 0.3 ms: 17 of them are the fewest that last 5 ms."""
    clock = FakeClock(0.0003)
    measurement = taken(clock, 10, count=2)
    assert [calls for calls in clock.asked if calls != 1] == [17, 17]
    assert measurement.executions == 170
    assert measurement.samples_ms == pytest.approx((0.03, 0.03))


def test_a_cold_first_call_does_not_make_samples_short():
    """The first call takes 50 ms, the others 0.1 ms: a sample lasts 5 ms all the same."""
    clock = FakeClock(0.05, 0.0001)
    taken(clock, count=3)
    samples = [calls for calls in clock.asked if calls != 1]
    assert len(samples) == 3 and all(calls * 0.0001 >= 0.005 for calls in samples), clock.asked


def test_a_slow_call_is_a_sample_by_itself():
    """What lasts 5 ms or more is called once a sample."""
    clock = FakeClock(0.01)
    assert taken(clock, 3, count=2).executions == 3
    assert set(clock.asked) == {1}


@examples
@given(
    seconds=st.floats(1e-7, 10.0),
    repeat=st.integers(1, 100),
    batch=st.none() | st.integers(1, 10**6),
    count=st.none() | st.integers(1, 9),
)
def test_a_steady_dispatch_gives_its_own_time_however_it_is_sampled(seconds, repeat, batch, count):
    """Neither `repeat` nor `batch` nor the number of samples shifts the figure."""
    measurement = taken(FakeClock(seconds * repeat), repeat, count=count, batch=batch)
    assert measurement.median_ms == pytest.approx(1e3 * seconds)
    assert measurement.spread == pytest.approx(0.0, abs=1e-9)
    assert measurement.executions >= (batch or 1)
    assert measurement.ended_by == ("interval" if count is None else "count")
    assert measurement.warnings == ()


# -- what a call costs -----------------------------------------------------------------------------


@examples
@given(overhead=st.floats(0.0, 1e-4), execution=st.floats(1e-5, 1e-2), repeat=st.integers(10, 100))
def test_what_a_call_costs_is_taken_off(overhead, execution, repeat):
    """A call takes its overhead and its executions; the figure is that of the executions."""
    call = overhead + repeat * execution
    timer = Timer(
        lambda calls: calls * call,
        repeat,
        overhead=lambda seconds: CallOverhead(call_overhead(overhead + execution, seconds, repeat)),
    )
    measurement = measure(timer, MeasureOptions(StopRule(count=3)))

    known = min(overhead, 0.05 * call)  # more than that is not believed
    assert measurement.median_ms == pytest.approx(1e3 * (call - known) / repeat, rel=1e-6)
    assert measurement.overhead_ms == pytest.approx(1e3 * known / repeat, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize(
    ("single", "call", "repeat"),
    [(1.0, 2.0, 2), (1.0, 9.0, 9), (0.5, 20.0, 20), (0.0, 1.0, 100)],
    ids=["two", "nine", "a call of one that is too short", "not known"],
)
def test_nothing_is_taken_off_where_it_cannot_be_told(single, call, repeat):
    assert call_overhead(single, call, repeat) == 0.0


def test_an_overhead_that_was_measured_too_high_leaves_a_warm_execution():
    """Calls of 12 us, of which 20 us would be taken off: no sample is below 0, and the interval tells."""
    known = CallOverhead(20e-6, error=8e-6, execution=2e-6)
    timer = Timer(lambda calls: calls * 12e-6, 1, overhead=lambda _: known)

    found = measure(timer, MeasureOptions(StopRule(count=8)))

    assert found.samples_ms == pytest.approx([0.002] * 8)
    assert (found.overhead_ms, found.overhead_error_ms) == pytest.approx((0.010, 0.008))
    assert found.interval_ms == pytest.approx((0.0, 0.010))


def test_an_execution_that_cannot_be_told_from_its_call_is_not_certain_to_take_no_time():
    """Calls of 12 us, of which 20 us would be taken off, and nothing is known about an execution."""
    timer = Timer(lambda calls: calls * 12e-6, 1, overhead=lambda _: CallOverhead(20e-6, is_known=True))

    found = measure(timer, MeasureOptions(StopRule(count=1)))

    assert found.samples_ms == pytest.approx((0.0,), abs=1e-12)
    assert found.overhead_error_ms == pytest.approx(0.008)


def test_an_overhead_is_known_as_well_as_its_parts_agree():
    """It is 10 us, and 14 us in the second half of the time; an execution takes 10 us."""
    passed = 0.0

    def calls_of(executions: int) -> Callable[[int], float]:
        def time(calls: int) -> float:
            nonlocal passed
            taken = calls * ((10e-6 if passed < 0.022 else 14e-6) + executions * 10e-6)
            passed += taken
            return taken

        return time

    found = measure_overhead(calls_of(1), calls_of(100), 100)

    assert (found.seconds, found.error, found.execution) == pytest.approx((10e-6, 4e-6, 10e-6))
    assert measure_overhead(calls_of(1), calls_of(9), 9) == CallOverhead()


# -- other processes -------------------------------------------------------------------------------


class SharedMachine:
    """A dispatch of 10 ms that takes 20 ms when another process has the core, as it has in `busy` turns."""

    def __init__(self, busy: Callable[[int], bool]) -> None:
        self._busy = busy
        self._turn = 0
        self._waited = 0.0

    def time(self, calls: int) -> float:
        self._turn += 1
        taken = 0.01 if self._busy(self._turn) else 0.0
        self._waited += taken
        return calls * (0.01 + taken)

    def measured(self, *, keeps_disturbed: bool = False, **stop: Any) -> Measurement:
        timer = Timer(self.time, 1, run_delay=lambda: self._waited)
        options = MeasureOptions(StopRule(**stop), keeps_disturbed=keeps_disturbed)
        return measure(timer, options, elapsed=lambda: 0.01 * self._turn)


def test_a_sample_that_others_disturbed_is_taken_again():
    """Two of three are: the figure is that of the machine without them, and they are kept beside it."""
    found = SharedMachine(lambda turn: turn % 3 != 0).measured(count=10)
    assert found.samples_ms == pytest.approx([10.0] * 10)
    assert found.dropped_ms == pytest.approx([20.0] * len(found.dropped_ms))
    assert 10 <= len(found.dropped_ms) <= 22
    assert found.warnings == ()


def test_disturbed_samples_may_be_kept_if_the_lowest_decile_counts():
    """But the first sample is an undisturbed one: it may already be the last."""
    found = SharedMachine(lambda turn: turn % 3 != 0).measured(count=30, keeps_disturbed=True)
    assert len(found.samples_ms) == 30 and len(found.dropped_ms) <= 2
    assert any("other processes used a core" in warning for warning in found.warnings)
    assert found.samples_ms[0] == pytest.approx(10.0) and found.median_ms == pytest.approx(20.0)
    assert found.p10_ms == pytest.approx(10.0)


@pytest.mark.parametrize("stop", [{"count": 10}, {"seconds": 0.5}])
def test_on_a_machine_that_is_always_used_samples_are_taken_as_they_are(stop):
    """And the figure says so."""
    found = SharedMachine(lambda turn: True).measured(**stop)
    kept = len(found.samples_ms)
    assert kept >= 3 and found.samples_ms == pytest.approx([20.0] * kept)
    assert found.warnings == (f"other processes used a core that was needed in {kept} of {kept} samples",)


def test_a_few_disturbed_samples_are_no_reason_to_doubt():
    found = SharedMachine(lambda turn: turn == 7).measured(seconds=0.5, width=1e-9)
    assert "other processes" not in " ".join(found.warnings)


# -- two clocks ------------------------------------------------------------------------------------


def test_a_clock_that_another_one_contradicts_is_told():
    passed = 0.0

    def lying(calls: int) -> float:
        nonlocal passed
        passed += calls * 0.02
        return calls * 0.01

    measurement = measure(Timer(lying, 1, now=lambda: passed), MeasureOptions(StopRule(count=4)))

    assert measurement.warnings == ("two clocks disagree in 4 of 4 samples: 10 ms and 20 ms",)


def test_an_honest_clock_is_not_doubted():
    passed = 0.0

    def honest(calls: int) -> float:
        nonlocal passed
        passed += calls * 0.02
        return calls * 0.0199

    measurement = measure(Timer(honest, 1, now=lambda: passed), MeasureOptions(StopRule(count=4)))

    assert measurement.warnings == ()


def test_a_measurement_that_ran_out_of_time_says_so():
    samples = itertools.cycle((0.010, 0.010, 0.013, 0.013))
    seconds = itertools.count(0.0, 0.5)

    measurement = taken(lambda calls: next(samples), elapsed=lambda: next(seconds))

    assert measurement.ended_by == "budget"
    assert set(measurement.samples_ms) == {10.0, 13.0} and measurement.half_width > 0.2


# -- calls in a sample -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repeat", "batch", "calls"),
    [(1, 1, 1), (1, 7, 7), (100, 1, 1), (100, 100, 1), (100, 101, 2), (3, 10, 4)],
)
def test_a_batch_is_reached_by_the_fewest_calls(repeat, batch, calls):
    """Calls of `repeat` executions are rounded up, however long they take."""
    for seconds in (0.0, 1e-9, 100.0):
        assert calls_per_sample(seconds, repeat, MeasureOptions(batch=batch)) == calls


@pytest.mark.parametrize(
    ("seconds", "calls"), [(0.005, 1), (0.0051, 1), (0.0049, 2), (0.0025, 2), (0.0005, 10), (5.0, 1)]
)
def test_without_a_batch_a_sample_lasts_5_ms(seconds, calls):
    """The fewest calls that last so long, whatever `repeat` is."""
    found = [calls_per_sample(seconds, repeat, MeasureOptions()) for repeat in (1, 100)]
    assert found == [calls, calls]


def test_samples_may_be_shorter():
    """As many calls as last for the seconds of the options."""
    assert calls_per_sample(0.0005, 1, MeasureOptions(sample_seconds=0.002)) == 4


def test_the_lowest_decile_is_the_time_in_quiet_moments():
    """Three of four samples are disturbed."""
    measurement = Measurement((2.0, 1.01, 3.0, 4.0, 1.0, 2.5, 5.0, 2.0, 1.02, 3.0, 2.0, 4.0), executions=1)
    assert measurement.median_ms > 2.0
    assert measurement.p10_ms == pytest.approx(1.01, rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1e-9])
def test_a_clock_that_did_not_move_gives_one_call(seconds):
    """No division by zero, and no endless sample."""
    assert calls_per_sample(seconds, 1, MeasureOptions()) == 1


@examples
@given(st.floats(1e-9, 100.0))
def test_a_sample_never_lasts_less_than_5_ms_nor_a_call_longer(seconds):
    """Enough calls, and one fewer would not be."""
    calls = calls_per_sample(seconds, 1, MeasureOptions())
    assert calls * seconds >= 0.005 * (1 - 1e-9)
    assert calls == 1 or (calls - 1) * seconds < 0.005 * (1 + 1e-9)


# -- slow profile vmfbs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("single", "repeat", "prefers"),
    [(0.021, 100, True), (0.019, 100, False), (2.1, 1, True), (0.0, 100, False), (0.2, 10, False)],
)
def test_a_call_of_more_than_two_seconds_is_not_used(single, repeat, prefers):
    """`repeat` executions of a slow dispatch are too long to be a sample; exactly 2 s are not."""
    assert prefers_single(single, repeat, MeasureOptions(StopRule(count=9)).longest_call) is prefers


@pytest.mark.parametrize(("budget", "longest"), [(0.2, 0.05), (1.0, 0.25), (8.0, 2.0), (60.0, 2.0)])
def test_two_calls_and_three_samples_fit_into_twice_the_budget(budget, longest):
    """Otherwise dispatches that are slow for their FLOP would take several times their budgets."""
    assert MeasureOptions(StopRule(seconds=budget)).longest_call == longest
    assert 5 * longest <= 2 * budget


# -- what the samples say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "median", "low", "high", "spread"),
    [
        ((2.0,), 2.0, 2.0, 2.0, 0.0),
        ((1.0, 3.0), 2.0, 1.0, 3.0, 1.0),
        ((5.0, 1.0, 2.0), 2.0, 1.0, 5.0, 2.0),
        ((4.0, 4.0, 4.0, 4.0), 4.0, 4.0, 4.0, 0.0),
        ((1.0, 1.0, 1.0, 1.0, 101.0), 1.0, 1.0, 101.0, 100.0),
    ],
)
def test_known_samples_give_known_figures(samples, median, low, high, spread):
    """Median, smallest, largest, and (largest - smallest) / median."""
    m = Measurement(samples, 1)
    assert (m.median_ms, m.min_ms, m.max_ms, m.spread) == (median, low, high, spread)


def test_gflops_are_taken_at_the_median():
    """The IREE dispatch profiler's figure: 2 * 3456 * 1024 * 2048 operations in 0.062 ms."""
    m = Measurement((0.062, 0.05, 9.0), 1)
    assert f"{m.gflops(2 * 3456 * 1024 * 2048):.2f}" == "233798.62"


def test_figures_of_no_time_at_all_are_infinite_not_an_error():
    """A clock that did not move says nothing about speed, and must not end the run."""
    m = Measurement((0.0, 0.0), 1)
    assert m.spread == math.inf
    assert m.gflops(100) == math.inf


extents = st.integers(1, 5000)
operations = st.builds(Matmul, extents, extents, extents)
SMALL = Matmul(4, 6, 8)


@given(operations)
def test_warm_places_are_few_and_not_large(operation):
    places = warm_places(operation)
    assert 1 <= places <= 64
    assert places == 1 or places * operation.bytes <= 256 * 2**20


@given(operations, st.integers(1, 2**30))
def test_between_two_uses_of_a_cold_place_lie_three_times_the_caches(operation, cache_bytes):
    """What is used in between is all places but the one itself."""
    assert (cold_places(operation, cache_bytes) - 1) * operation.bytes >= 3 * cache_bytes


def test_caches_that_are_not_known_cannot_be_cold():
    with pytest.raises(RunError, match="--mode=warm"):
        cold_places(SMALL, 0)


def test_places_are_made_once_and_hold_the_same_values():
    made = []

    class Counting(DeviceKernels):
        def put(self, operation, inputs):
            made.append(inputs)
            return super().put(operation, inputs)

    inputs = draw(SMALL, Distribution.REALS, 1)
    places = Places(Counting(NullDevice()), SMALL, inputs)

    three = places.first(3)

    assert places.first(2) == three[:2] and places.at(1) is three[1]
    assert len(made) == 3
    assert all(each is inputs for each in made)


class Recorded:
    """A call that writes down when it was called."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def time(self, calls: int) -> float:
        self._log.append(f"{self._name}*{calls}")
        return 1.0


def rotation(log: list[str], places: int, begin: int = 0) -> Rotation:
    """Calls that write down at which place they are."""

    def stage(number: int) -> Stage:
        place = number % places
        return Stage(Recorded(f"{place}", log), Recorded(f"warm {place}", log))

    return Rotation(stage, places, begin)


def test_a_rotation_warms_each_place_before_it_times_there():
    log: list[str] = []
    turns = rotation(log, 2)
    for place in (0, 1, 0):
        assert turns.advance() == place
        turns.time(5)
    assert log == ["warm 0*1", "0*5", "warm 1*1", "1*5", "warm 0*1", "0*5"]


def test_a_rotation_goes_on_where_the_one_before_ended():
    assert rotation([], 64, begin=70).advance() == 6


def test_a_single_place_is_warmed_once_and_stays_warm_by_itself():
    log: list[str] = []
    turns = rotation(log, 1)
    for _ in range(2):
        assert turns.advance() == 0
        turns.time(5)
    assert log == ["warm 0*1", "0*5", "0*5"]


DISPATCH = included(weights=True, call=False)
LIBRARY = included(weights=False, call=True)


@pytest.mark.parametrize(
    ("repeat", "single", "text"),
    [
        (100, 20e-6, "kernels; fills and copies; weight conversion"),
        (9, 20e-6, "kernels; fills and copies; weight conversion; call"),
        (100, 0.0, "kernels; fills and copies; weight conversion; call"),
    ],
    ids=["subtracted", "too few repeats to separate", "time of one execution unknown"],
)
def test_a_call_is_included_unless_it_was_subtracted(repeat: int, single: float, text: str):
    """A call takes 10 us, and so does an execution."""
    timer = Timer(
        lambda calls: calls * (10e-6 + repeat * 10e-6),
        repeat,
        overhead=lambda seconds: warm_overhead(single, seconds, repeat),
    )
    options = MeasureOptions(StopRule(count=12))
    first = take(timer, next_batch(options, (), None))
    second = take(timer, next_batch(options, (first,), None))

    assert included_text(joined(options, (first, second)).includes) == text
    assert (joined(options, (first,)).overhead_ms > 0) is ("call" not in text)


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        (DISPATCH, DISPATCH, []),
        (DISPATCH, LIBRARY, ["only base includes weight conversion", "only new includes call"]),
        (included(weights=True, call=True), DISPATCH, ["only base includes call"]),
        ((), DISPATCH, ["base does not state what its time includes"]),
        (DISPATCH, (), ["new does not state what its time includes"]),
        ((), (), []),
    ],
)
def test_differences_name_what_only_one_side_includes(base, new, expected):
    assert differences(base, new) == expected

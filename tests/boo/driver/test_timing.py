"""Launches are timed as the profiler times dispatches, and their statistics are those of the documents."""

from __future__ import annotations

import itertools

import pytest

from dispatch_profiler.boo.driver.registry import Timing
from dispatch_profiler.boo.driver.runs.outcomes import (
    LaunchTimes,
    TimedSide,
    Work,
    measure_in_turn,
    measure_options,
)
from dispatch_profiler.profiler.measurement.measure import Measurement


def clock_of(*microseconds: float):
    """`time(launches)` whose single launches take these times, again and again; and the list of its arguments."""
    times, asked = itertools.cycle(microseconds), []

    def time(calls: int) -> float:
        asked.append(calls)
        return sum(1e-6 * next(times) for _ in range(calls))

    return time, asked


def test_the_statistics_are_those_of_the_samples():
    found = LaunchTimes.of(Measurement((0.001, 0.002, 0.003, 0.006), executions=5, warnings=("drifted",)))

    assert (found.min, found.max, found.mean, found.median) == pytest.approx((1.0, 6.0, 3.0, 2.5))
    assert found.stddev == pytest.approx(((4 + 1 + 0 + 9) / 3) ** 0.5)
    assert (found.p20, found.p80) == pytest.approx((1.6, 4.2))
    assert (found.samples, found.launches, found.warnings) == (4, 20, ("drifted",))


def test_a_single_sample_has_no_deviation():
    assert LaunchTimes.of(Measurement((0.001,), executions=1)).stddev == 0.0


def test_iter_times_that_many_single_launches():
    time, asked = clock_of(10.0, 20.0)

    (found,) = measure_in_turn([TimedSide(time)], measure_options(Timing(True, 25)))

    assert (found.samples, found.launches) == (25, 25)
    assert set(asked) == {1}
    assert (found.min, found.max) == pytest.approx((10.0, 20.0))


def test_without_iter_samples_last_five_milliseconds():
    time, _ = clock_of(10.0)

    (found,) = measure_in_turn([TimedSide(time)], measure_options(Timing(True)))

    assert found.launches / found.samples == pytest.approx(500, rel=0.01)
    assert found.median == pytest.approx(10.0)
    assert found.samples >= 6


def test_backends_take_turns_and_threads_settle_after_those_that_spin():
    events: list[str] = []

    def work(name: str):
        def time(calls: int) -> float:
            events.append(name)
            return 1e-4 * calls

        return time

    sides = [TimedSide(work("a")), TimedSide(work("b"), lambda: events.append("settle"))]
    measure_in_turn(sides, measure_options(Timing(True, 12)))

    order = [name for name, _ in itertools.groupby(events)]
    assert order == ["a", "b", "settle"] * 6


def test_a_device_is_waited_for_before_and_after_each_launch():
    events: list[str] = []
    work = Work(lambda: events.append("launch"), lambda: events.append("wait"), waits=True)

    assert work.time(2) > 0.0
    assert events == ["wait", "launch", "wait", "launch", "wait"]

"""When a measurement ends, when a clock is doubted, and when a machine is disturbed: rules fed numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.statistics.intervals import (
    by_place,
    median_interval,
    quantile,
    series_interval,
)
from dispatch_profiler.profiler.statistics.stopping import (
    Ended,
    Reading,
    SentinelWatch,
    StopRule,
    clock_warnings,
    drift_warning,
)

RULE = StopRule(width=0.01, seconds=2.0)
STEADY = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.001]
WILD = [1.0, 1.5, 0.7, 1.2, 0.9, 1.4, 0.8, 1.1]
TIMES = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=60)


# -- intervals -------------------------------------------------------------------------------------


@given(TIMES)
def test_the_interval_of_the_median_is_that_of_scipy(samples: list[float]):
    found = stats.quantile_test(samples, p=0.5).confidence_interval(0.95)

    assert median_interval(samples) == (found.low, found.high)


@given(TIMES, st.floats(0, 1))
def test_quantiles_are_those_of_numpy(samples: list[float], part: float):
    assert quantile(samples, part) == pytest.approx(np.quantile(samples, part), rel=1e-12)


@pytest.mark.parametrize("count", [61, 200, 1000])
def test_the_interval_of_many_samples_is_that_of_scipy(count: int):
    samples = np.random.default_rng(count).normal(size=count).tolist()
    found = stats.quantile_test(samples, p=0.5).confidence_interval(0.95)

    assert median_interval(samples) == (found.low, found.high)


def test_so_many_samples_are_enough():
    assert RULE.ended(WILD * 124, 0.1) is None
    assert RULE.ended(WILD * 125, 0.1) is Ended.BUDGET


@pytest.mark.parametrize(("batches", "ended"), [(1, None), (5, None), (6, Ended.INTERVAL)])
def test_samples_of_few_visits_agree_by_luck(batches, ended):
    assert RULE.ended([1.0] * 20, 0.1, batches=batches) is ended
    assert RULE.ended([1.0] * 20, 2.0, batches=batches) is (ended or Ended.BUDGET)


@pytest.mark.parametrize(("batches", "ended"), [(1, None), (2, Ended.ABANDONED)])
def test_nothing_is_given_up_for_one_slow_visit(batches, ended):
    """Of 1.6 times the best; three times it is enough."""
    assert RULE.ended([1.6] * 20, 0.1, best=1.0, batches=batches) is ended
    assert RULE.ended([3.1] * 20, 0.1, best=1.0, batches=batches) is Ended.ABANDONED


# -- sample batches --------------------------------------------------------------------------------


def test_the_interval_over_visits_holds_where_that_over_samples_does_not():
    """Batches differ by 5 %, samples of one by 0.1 %: 400 measurements of 8 batches, 8 samples each."""
    rng, held, naive = np.random.default_rng(4), 0, 0
    for _ in range(400):
        level = np.exp(0.05 * rng.normal(size=8))
        samples = [level[at // 8] * math.exp(0.001 * rng.normal()) for at in range(64)]
        low, high = Measurement(tuple(samples), 1, batches=(8,) * 8).interval_ms
        held += low <= 1.0 <= high
        low, high = median_interval(samples)
        naive += low <= 1.0 <= high
    assert held >= 400 * 0.93
    assert naive < 400 * 0.7


def test_runs_are_compared_by_what_their_intervals_count():
    """Medians of batches; with few batches medians of places; with few of both the samples."""
    samples = tuple(float(at) for at in range(12))
    assert Measurement(samples, 1, batches=(2,) * 6).independent_ms == (0.5, 2.5, 4.5, 6.5, 8.5, 10.5)
    found = Measurement(samples, 1, batches=(6, 6), places=tuple(range(6)) * 2).independent_ms
    assert found == (3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    assert Measurement(samples, 1).independent_ms == samples


def test_slow_spells_do_not_widen_the_interval():
    """Three of sixteen batches took three times as long: the others determine the result."""
    levels = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995, 3.0, 3.0, 1.0, 3.0, 1.002, 0.998, 1.0, 1.001, 0.999, 1.0]
    samples = tuple(level for level in levels for _ in range(4))
    found = Measurement(samples, 1, batches=(4,) * 16)
    assert found.median_ms == 1.0 and found.interval_ms == pytest.approx((0.999, 1.01))


# -- places ----------------------------------------------------------------------------------------


def test_a_place_counts_once_however_many_samples_it_has():
    """Six places, 1 to 6 ms, a hundred samples each: what is known of the median is from 1 to 6 ms."""
    samples, places = [float(p) for p in range(1, 7)] * 100, list(range(6)) * 100
    assert by_place(samples, places) == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert Measurement(tuple(samples), 1, places=tuple(places)).interval_ms == (1.0, 6.0)


@pytest.mark.parametrize("places", [(), (0,) * 8, (0, 1) * 4, tuple(range(8))])
def test_few_places_or_none_at_all_leave_samples_as_they_are(places):
    assert by_place(WILD, places) == tuple(WILD)


def test_the_interval_over_places_holds_where_that_over_samples_does_not():
    """Places differ by 5 %, samples of one place by 0.1 %: 400 machines with 16 places, 8 samples each."""
    rng, held, naive = np.random.default_rng(4), 0, 0
    places = [place for _ in range(8) for place in range(16)]
    for _ in range(400):
        level = 1.0 + 0.05 * rng.normal(size=16)
        samples = [level[place] + 0.001 * rng.normal() for place in places]
        low, high = Measurement(tuple(samples), 1, places=tuple(places)).interval_ms
        held += low <= 1.0 <= high
        low, high = median_interval(samples)
        naive += low <= 1.0 <= high
    assert held >= 400 * 0.93
    assert naive < 400 * 0.7


@pytest.mark.parametrize("part", [0.0, 0.9])
def test_the_interval_of_a_series_holds_however_its_samples_depend_on_each_other(part: float):
    """x_t = part * x_(t-1) + noise, of median 0; that of independent samples misses it at 0.9."""
    rng, held, naive = np.random.default_rng(8), 0, 0
    for _ in range(300):
        noise, series = rng.normal(size=220), [0.0]
        for each in noise:
            series.append(part * series[-1] + each)
        low, high = series_interval(series[21:])
        held += low <= 0.0 <= high
        low, high = median_interval(series[21:])
        naive += low <= 0.0 <= high
    assert held >= 300 * 0.88
    assert naive < 300 * 0.6 or part == 0.0


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_of_few_samples_the_interval_is_that_of_student_where_it_is_wider(count: int):
    samples = [float(i) for i in range(count)]
    mean = (count - 1) / 2.0
    low, high = stats.ttest_1samp(samples, mean).confidence_interval(0.95)

    assert median_interval(samples) == pytest.approx((min(low, 0.0), max(high, count - 1.0)))


def test_of_one_sample_no_interval_is_known():
    assert median_interval([3.0]) == series_interval([3.0]) == (-math.inf, math.inf)
    single = Measurement((3.0,), 1)
    assert not single.has_interval
    assert single.interval_ms == (0.0, math.inf) and single.half_width == math.inf
    assert Measurement((3.0, 3.0), 1).has_interval


def test_a_time_is_never_below_nothing():
    assert Measurement((1.0, 3.0), 1).interval_ms[0] == 0.0


@pytest.mark.parametrize("count", [8, 15, 40])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int):
    """2,000 draws of a skewed distribution whose median is known: 95 % or a little more."""
    draws = np.random.default_rng(1).lognormal(size=(2000, count))
    held = sum(low <= 1.0 <= high for low, high in map(median_interval, draws.tolist()))

    assert 0.94 <= held / 2000 <= 0.995


# -- stopping --------------------------------------------------------------------------------------


def test_a_median_that_is_known_well_enough_ends_it():
    assert RULE.ended(STEADY, 0.1) is Ended.INTERVAL
    assert RULE.ended(STEADY[:4], 0.1) is None  # four are too few to believe it


def test_a_wild_one_goes_on_until_the_time_is_over():
    assert RULE.ended(WILD, 1.9) is None
    assert RULE.ended(WILD, 2.0) is Ended.BUDGET


def test_three_samples_are_taken_however_long_they_last():
    assert RULE.ended([9.0, 9.0], 18.0) is None
    assert RULE.ended([9.0, 9.0, 9.0], 27.0) is Ended.BUDGET


def test_what_is_surely_slower_than_the_best_is_given_up():
    assert RULE.ended(WILD, 0.1, best=0.4) is Ended.ABANDONED
    assert RULE.ended(WILD, 0.1, best=0.6) is None  # its interval reaches down to 0.7 < 1.5 * 0.6


def test_what_is_far_off_needs_no_interval():
    assert RULE.ended([4.0, 4.1, 3.9], 0.1, best=1.0) is Ended.ABANDONED
    assert RULE.ended([4.0, 4.1, 2.9], 0.1, best=1.0) is None
    assert RULE.ended([4.0, 4.1], 0.1, best=1.0) is None


def test_one_sample_that_is_far_off_is_enough_where_the_rule_says_so():
    """Three times the best; the rule of searches also needs less distance from steady samples."""
    rule = StopRule(abandon=1.2, few=1)
    assert rule.ended([3.1], 0.0, 1.0, batches=1) is Ended.ABANDONED
    assert rule.ended([2.9], 0.0, 1.0, batches=1) is None
    assert rule.ended([3.1], 0.0, None, batches=1) is None
    assert StopRule().ended([3.1], 0.0, 1.0, batches=1) is None
    steady = [1.3, 1.31, 1.3, 1.29, 1.3]
    assert rule.ended(steady, 0.0, 1.0, batches=2) is Ended.ABANDONED
    assert StopRule().ended(steady, 0.0, 1.0, batches=2) is None


def test_a_count_is_a_count():
    rule = StopRule(count=3)

    assert [rule.ended(WILD[:n], 99.0, best=0.001) for n in (1, 2, 3)] == [None, None, Ended.COUNT]


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readings", "says"),
    [
        ([Reading(0.01, 0.01)], ()),
        ([Reading(0.01)], ()),
        ([Reading(10e-6, 40e-6)], ()),  # what no clock resolves
        ([Reading(0.0, 0.01)], ("the clock stood still or went back", "two clocks disagree")),
        ([Reading(-0.01)], ("the clock stood still or went back",)),
        ([Reading(0.01, 0.011)], ("two clocks disagree in 1 of 1 sample: 10 ms and 11 ms",)),
        ([Reading(0.01, 0.011), *[Reading(0.01, 0.01)] * 3], ()),  # the core was taken away once
        ([Reading(0.01, 0.011), *[Reading(0.01, 0.01)] * 2], ("two clocks disagree in 1 of 3 samples",)),
        ([Reading(0.011, 0.01), *[Reading(0.01, 0.01)] * 9], ("two clocks disagree in 1 of 10 samples",)),
        ([Reading(0.011, 0.01)], ("two clocks disagree in 1 of 1 sample: 11 ms and 10 ms",)),
    ],
)
def test_a_clock_is_doubted_for_what_it_says(readings: list[Reading], says: tuple[str, ...]):
    found = clock_warnings(readings)

    assert len(found) == len(says)
    assert all(sentence.startswith(start) for sentence, start in zip(found, says, strict=True))


def test_a_drift_is_told_and_noise_is_not():
    assert drift_warning([1.0, 1.01, 1.02, 1.05, 1.06, 1.08, 1.1, 1.12, 1.13]) == (
        "drifted by +11% during the measurement"
    )
    assert drift_warning(STEADY) == ""
    assert drift_warning(WILD * 3) == ""
    assert drift_warning([1.0, 1.2]) == ""


# -- the sentinel ----------------------------------------------------------------------------------


def test_a_machine_as_it_was_is_not_disturbed():
    watch = SentinelWatch()

    assert not any(watch.is_disturbed([x * 1.01**i for x in STEADY]) for i in range(4))


@pytest.mark.parametrize("factor", [0.9, 1.1, 3.0])
def test_a_machine_that_is_surely_another_is_disturbed(factor: float):
    watch = SentinelWatch()
    watch.is_disturbed(STEADY)

    assert watch.is_disturbed([x * factor for x in STEADY])
    assert not watch.is_disturbed(STEADY)  # what was disturbed has not become usual


def test_one_slow_sample_is_no_disturbance():
    watch = SentinelWatch()
    watch.is_disturbed(STEADY)

    assert not watch.is_disturbed([*STEADY[:-1], 50.0])


def test_a_few_samples_tell_that_all_is_well_and_nothing_else():
    """Without a usual time, and where they are off, more are asked for; a slow drift is followed."""
    watch = SentinelWatch()
    assert not watch.is_as_usual(STEADY[:3]) and watch.usual is None
    watch.is_disturbed(STEADY)
    assert not watch.is_as_usual(())

    assert watch.is_as_usual(STEADY[:3])
    assert watch.is_as_usual([*STEADY[:2], 50.0])
    assert not watch.is_as_usual([x * 1.1 for x in STEADY[:3]])
    usual = watch.usual
    assert all(watch.is_as_usual([usual * 1.01**step] * 3) for step in range(3)) and watch.usual > usual


def test_what_is_reset_is_usual_again():
    watch = SentinelWatch()
    watch.is_disturbed(STEADY)
    watch.reset()

    assert not watch.is_disturbed([x * 3 for x in STEADY])
    assert not watch.is_disturbed([x * 3 for x in STEADY])


# -- only disjoint intervals -----------------------------------------------------------------------


def test_a_dispatch_whose_interval_reaches_the_best_is_not_abandoned():
    """Three samples, each over three times the best's, that say nothing of where their median lies."""
    noisy, steady = (3.2, 9.0, 40.0), (3.2, 3.3, 3.2)
    rule = StopRule()

    assert not rule.is_hopeless(noisy, 1.0)
    assert rule.ended(noisy, 0.1, 1.0, batches=1) is None
    assert rule.is_hopeless(steady, 1.0)
    assert rule.ended(steady, 0.1, 1.0, batches=1) is Ended.ABANDONED


def test_the_interval_that_the_caller_knows_decides():
    """Over places in memory it is wider than these samples tell."""
    steady = (3.2, 3.3, 3.2)
    assert StopRule().ended(steady, 0.1, 1.0, interval=(0.5, 6.0), batches=1) is None
    assert StopRule().ended(steady, 0.1, 1.0, interval=(1.5, 6.0), batches=1) is Ended.ABANDONED


# -- lowest decile -----------------------------------------------------------------------------------

BY_DECILE = StopRule(width=0.001, seconds=10.0, abandon=1.05, few=1, by_decile=True)


def test_with_a_rule_for_deciles_samples_of_bursts_need_not_agree():
    """A third of the samples is disturbed, so that the median's interval is wide; the decile is known."""
    samples = [1.0, 1.01, 1.8] * 8
    assert BY_DECILE.ended(samples, 0.1, None, batches=6) is Ended.INTERVAL
    assert StopRule(width=0.001, seconds=10.0).ended(samples, 0.1, None, batches=6) is None


def test_a_decile_is_unknown_while_few_samples_agree_with_it():
    assert BY_DECILE.ended([1.0 + 0.05 * at for at in range(24)], 0.1, None, batches=6) is None
    assert BY_DECILE.ended([1.0, 1.01, 1.8] * 5, 0.1, None, batches=6) is None
    assert BY_DECILE.ended([1.0, 1.2] * 12, 0.1, None, batches=3) is None


def test_what_is_slower_than_the_decile_of_the_best_in_its_fastest_sample_is_abandoned():
    """By more after few sample batches: 1.25 times after two, 1.18 times after three, 1.13 times after five."""
    noisy = [1.3, 2.0, 1.9, 2.5, 2.2, 1.7, 3.0, 2.0, 1.9, 1.8, 2.2, 2.4]
    nearer = [1.15, *noisy[1:]]
    assert BY_DECILE.ended(noisy, 0.1, 1.0, batches=3) is Ended.ABANDONED
    assert BY_DECILE.ended(nearer, 0.1, 1.0, batches=3) is None
    assert BY_DECILE.ended(nearer, 0.1, 1.0, batches=5) is Ended.ABANDONED
    assert BY_DECILE.ended(noisy, 0.1, 1.0, batches=2) is Ended.ABANDONED
    assert BY_DECILE.ended([1.2, *noisy[1:]], 0.1, 1.0, batches=2) is None
    assert BY_DECILE.ended(noisy[:7], 0.1, 1.0, batches=2) is None
    assert BY_DECILE.ended(noisy, 0.1, 1.0, batches=1) is None

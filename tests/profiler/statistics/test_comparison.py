"""Ratios of medians: intervals against closed forms and against drawn samples whose truth is known."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.profiler.statistics.comparison import (
    Outcome,
    Ratio,
    dependence,
    geometric_mean,
    location,
    location_of_runs,
    needed_samples,
    percent,
    ratio,
)
from dispatch_profiler.profiler.statistics.intervals import median_interval

times = st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=40)


def between(base, new, confidence=0.95):
    return ratio(location(base, confidence), location(new, confidence))


def autoregressive(rng, count, part):
    """Normal noise of variance 1, each value keeping `part` of the one before."""
    noise = rng.standard_normal(count)
    values = np.empty(count)
    values[0] = noise[0]
    for at in range(1, count):
        values[at] = part * values[at - 1] + math.sqrt(1 - part**2) * noise[at]
    return values


NOISE = {
    "skewed": lambda rng, count: 1 + 0.1 * rng.exponential(size=count),
    "spikes": lambda rng, count: 1 + 0.01 * rng.random(count) + (rng.random(count) < 0.1),
    "two modes": lambda rng, count: (
        np.where(rng.random(count) < 0.3, 1.3, 1) * (1 + 0.01 * rng.random(count))
    ),
    "even modes": lambda rng, count: (
        np.where(rng.random(count) < 0.45, 1.3, 1) * (1 + 0.01 * rng.random(count))
    ),
    "coarse clock": lambda rng, count: np.round(1 + 0.02 * rng.standard_normal(count), 2),
    "dependent": lambda rng, count: np.exp(0.05 * autoregressive(rng, count, 0.5)),
}


# -- the interval of one median --------------------------------------------------------------------


@pytest.mark.parametrize("count", [6, 9, 10, 50, 101])
def test_independent_samples_get_the_interval_of_order_statistics(count):
    """Samples that alternate around the median show no dependence: the exact interval, and no wider."""
    ordered = [1.0 + at for at in range(count)]
    samples = [value for pair in zip(ordered, reversed(ordered), strict=True) for value in pair][:count]
    found = location(samples)
    low, high = median_interval(samples)
    assert (math.exp(found.low), math.exp(found.high)) == pytest.approx((low, high))
    assert found.independent == count


@pytest.mark.parametrize("part", [0.0, 0.5, 0.8])
def test_the_dependence_of_a_normal_series_is_that_of_the_arcsine_law(part):
    """corr(sign x_0, sign x_k) = 2/pi arcsin(part**k) for normal x."""
    truth = 1 + 2 * sum(2 / math.pi * math.asin(part**lag) for lag in range(1, 200))
    series = autoregressive(np.random.default_rng(3), 20_000, part)
    assert dependence(series) == pytest.approx(truth, rel=0.1)


def test_dependence_cannot_be_seen_in_a_few_samples_or_in_constants():
    """Then it is not made up."""
    assert dependence(np.arange(9.0)) == 1.0
    assert dependence(np.ones(50)) == 1.0
    assert dependence(np.arange(50.0)) > 5.0


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("count", [20, 60])
def test_the_interval_misses_the_truth_at_most_as_often_as_it_says(kind, count):
    """Two sides drawn from one distribution: the ratio is 1. 5 % of 300 is 15; 26 is three deviations more."""
    rng = np.random.default_rng(11)
    intervals = [between(NOISE[kind](rng, count), NOISE[kind](rng, count)) for _ in range(300)]
    assert sum(not found.low <= 1.0 <= found.high for found in intervals) <= 26


def test_the_interval_is_no_wider_than_its_method_makes_it():
    """An interval from 0 to infinity would never miss: normal noise bounds its width from above.

    The deviation of a median of n is about 1.2533 / sqrt(n); order statistics cost some more.
    """
    rng = np.random.default_rng(5)
    pairs = [rng.normal(1, 0.01, size=(2, 100)) for _ in range(100)]
    half = np.mean([math.log(found.high / found.low) / 2 for found in (between(*pair) for pair in pairs)])
    expected = 1.96 * math.sqrt(2) * 1.2533 * 0.01 / math.sqrt(100)
    assert expected < half < 1.6 * expected


def test_a_true_difference_is_found():
    """3 % at noise of 2 % and 200 samples a side."""
    rng = np.random.default_rng(7)
    draws = [(rng.normal(1, 0.02, 200), rng.normal(1.03, 0.02, 200)) for _ in range(100)]
    outcomes = Counter(between(*draw).outcome(0.01) for draw in draws)
    assert outcomes[Outcome.SLOWER] >= 95


def test_runs_that_differ_more_than_their_samples_are_no_difference():
    """Each run is shifted as a whole: its samples alone would call it, runs do not."""
    rng = np.random.default_rng(13)

    def run():
        return rng.normal(1 + 0.03 * rng.standard_normal(), 0.001, 50)

    sides = [([run() for _ in range(4)], [run() for _ in range(4)]) for _ in range(100)]
    single = [between(base[0], new[0]).outcome(0.01) for base, new in sides]
    several = [ratio(location_of_runs(base), location_of_runs(new)).outcome(0.01) for base, new in sides]
    called = (Outcome.SLOWER, Outcome.FASTER)
    assert sum(outcome in called for outcome in single) > 50
    assert sum(outcome in called for outcome in several) <= 8


def test_one_run_is_its_samples():
    assert location_of_runs([(1.0, 2.0, 3.0)]) == location((1.0, 2.0, 3.0))


@pytest.mark.parametrize("samples", [[], [0.0, 1.0], [-1.0], [math.nan], [math.inf]])
def test_what_is_no_time_is_refused(samples):
    with pytest.raises(ValueError, match="above 0"):
        location(samples)


# -- ratios ----------------------------------------------------------------------------------------


@given(base=times, new=times)
def test_exchanging_the_sides_gives_the_reciprocal(base, new):
    there, back = between(base, new), between(new, base)
    assert (back.value, back.low, back.high) == pytest.approx(
        (1 / there.value, 1 / there.high, 1 / there.low)
    )
    mirrored = {Outcome.SLOWER: Outcome.FASTER, Outcome.FASTER: Outcome.SLOWER}
    outcome = there.outcome(0.0123)
    assert back.outcome(0.0123) is mirrored.get(outcome, outcome)


@given(base=times, new=times, factor=st.floats(0.01, 100.0))
def test_the_unit_of_time_does_not_matter(base, new, factor):
    scaled = between([factor * time for time in base], [factor * time for time in new])
    there = between(base, new)
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx(
        (there.value, there.low, there.high), rel=1e-6
    )


@given(samples=times)
def test_a_side_against_itself_is_never_faster_or_slower(samples):
    assert between(samples, samples).outcome(0.0) in (Outcome.SAME, Outcome.UNCLEAR)


@given(samples=times, narrow=st.floats(0.6, 0.9))
@settings(max_examples=50)
def test_more_confidence_is_no_narrower(samples, narrow):
    inner, outer = between(samples, samples, narrow), between(samples, samples, 0.99)
    assert outer.low <= inner.low
    assert inner.high <= outer.high


@pytest.mark.parametrize(
    ("low", "high", "outcome", "reason"),
    [
        (1.02, 1.04, Outcome.SLOWER, "at least 2.0% more time"),
        (0.90, 0.95, Outcome.FASTER, "at least 5.0% less time"),
        (0.995, 1.005, Outcome.SAME, "no difference above 1%"),
        (1 / 1.01, 1.01, Outcome.SAME, "no difference above 1%"),
        (1.005, 1.02, Outcome.UNCLEAR, "the interval is too wide to tell: it may be the same or slower"),
        (0.98, 1.005, Outcome.UNCLEAR, "the interval is too wide to tell: it may be the same or faster"),
        (0.98, 1.02, Outcome.UNCLEAR, "the interval is too wide to tell: it may be faster or slower"),
    ],
)
def test_the_outcome_is_where_the_whole_interval_lies(low, high, outcome, reason):
    found = Ratio((low + high) / 2, low, high)
    assert (found.outcome(0.01), found.reason(0.01)) == (outcome, reason)


def test_a_ratio_outside_of_its_interval_is_refused():
    with pytest.raises(ValueError, match="expected low <= value <= high"):
        Ratio(1.0, 1.1, 1.2)


def test_the_geometric_mean_adds_independent_errors_at_right_angles():
    """Of 2x and 1/2x it is 1x; of n equal ones the interval is sqrt(n) times narrower."""
    assert geometric_mean([]) is None
    assert geometric_mean([Ratio(2, 2, 2), Ratio(0.5, 0.5, 0.5)]) == Ratio(1, 1, 1)
    mean = geometric_mean([Ratio(1.1, 1.1 / 1.02, 1.1 * 1.02)] * 4)
    assert mean is not None
    assert (mean.value, mean.high / mean.value) == pytest.approx((1.1, 1.02 ** (1 / 2)))


def test_so_many_samples_are_needed_that_the_extremes_enclose_the_median():
    assert [needed_samples(part) for part in (0.5, 0.95, 0.99, 0.999)] == [5, 5, 8, 11]


def test_percentages_have_no_more_digits_than_they_need():
    assert [percent(part) for part in (0.03, 0.005, 0.95, 0.0)] == ["3%", "0.5%", "95%", "0%"]

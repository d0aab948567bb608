"""Ratios of medians, sequential tests and Student's distribution, against closed forms and samples of known truth."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import wilcoxon

from dispatch_profiler.profiler.statistics.comparison import (
    AB,
    ABBA,
    BAAB,
    FAR,
    FarTest,
    Outcome,
    Ratio,
    SequentialTest,
    SequentialTestOptions,
    Side,
    dependence,
    geometric_mean,
    location,
    location_of_runs,
    log_ratio,
    needed_samples,
    percent,
    ratio,
    signed_rank_ratio,
)
from dispatch_profiler.profiler.statistics.intervals import median_interval, signed_rank_cdf, student_reach

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


@pytest.mark.slow
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


CALLED = (Outcome.SLOWER, Outcome.FASTER)


def quiet(rng, count):
    return np.exp(0.02 * rng.standard_normal(count))


def drift(rng, count):
    """20 % over the run, and waves of 10 % with three periods."""
    part = np.arange(count) / count
    return quiet(rng, count) * np.exp(0.2 * part + 0.1 * np.sin(6 * math.pi * part))


def spikes(rng, count):
    """One sample in twelve takes half as long again on average."""
    return quiet(rng, count) * (1 + (rng.random(count) < 0.08) * rng.exponential(0.5, count))


def modes(rng, count):
    """A slow mode of 12 % that lasts for about ten samples."""
    kept = np.maximum.accumulate(np.where(rng.random(count) < 0.1, np.arange(count), 0))
    return quiet(rng, count) * np.where((rng.random(count) < 0.3)[kept], 1.12, 1.0)


def ticks(rng, count):
    """A scheduler tick of 10 % that beats with the rounds: period 1 / 0.37 samples."""
    return quiet(rng, count) + 0.1 * ((0.37 * np.arange(count)) % 1 < 0.15)


def load(rng, count):
    """Another process has the core half of the time, 23 samples on and 23 off."""
    return quiet(rng, count) * np.where((np.arange(count) // 23) % 2, 1.6, 1.0)


def heavy(rng, count):
    """Tails without a mean: one sample in six takes twice as long, one in sixty eleven times."""
    return quiet(rng, count) * (1 + 0.2 * np.abs(rng.standard_cauchy(count)))


NOISE_OF_MACHINES = {each.__name__: each for each in (quiet, drift, spikes, modes, ticks, load, heavy)}


def live(noise, effect, seed, **options):
    """What the rule says of noise times `effect` for new."""
    chosen = SequentialTestOptions(seed=seed, **options)
    rule = SequentialTest(chosen)
    size = len(rule.order)
    series = noise(np.random.default_rng([seed, 1]), size * chosen.rounds)
    while not rule.finished:
        part = series[size * rule.rounds :][:size]
        rule.add(
            [
                time * (effect if side is Side.NEW else 1.0)
                for time, side in zip(part, rule.order, strict=True)
            ]
        )
    return rule.result()


def outcomes(noise, effect, count, **options):
    return Counter(live(noise, effect, seed, **options).outcome for seed in range(count))


@pytest.mark.parametrize("kind", NOISE_OF_MACHINES)
def test_a_slowdown_of_3_percent_is_found(kind):
    """At least 95 of 100, whatever the noise."""
    assert outcomes(NOISE_OF_MACHINES[kind], 1.03, 100)[Outcome.SLOWER] >= 95


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", NOISE_OF_MACHINES)
def test_the_same_against_itself_is_not_called(kind):
    """At most 2 of 100. The threshold helps here: the next test does without."""
    found = outcomes(NOISE_OF_MACHINES[kind], 1.0, 100, rounds=136)
    assert sum(found[outcome] for outcome in CALLED) <= 2


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if number % 2 else ())
        for number, kind in enumerate(NOISE_OF_MACHINES)
    ],
)
def test_looking_repeatedly_calls_no_more_than_allowed(kind):
    """At a threshold of 0 every call is an error: 10 % of 300 is 30; 45 is three deviations more."""
    found = outcomes(NOISE_OF_MACHINES[kind], 1.0, 300, threshold=0.0, confidence=0.9, rounds=68)
    assert sum(found[outcome] for outcome in CALLED) <= 45


def test_the_errors_that_are_allowed_are_nearly_used():
    """The test above could fail: looks that each have the whole error call too often."""
    rng = np.random.default_rng(2)
    looks = SequentialTestOptions(rounds=68).looks
    called = 0
    for _ in range(300):
        logs = 0.02 * rng.standard_normal(68)
        called += any(signed_rank_ratio(logs[:look], 0.9).outcome(0.0) in CALLED for look in looks)
    assert called > 45


def test_drift_that_cancels_here_fools_two_runs_in_a_row():
    """The machine gets 10 % slower: base first and new after is called, in turns it is not."""
    rng = np.random.default_rng(4)
    series = np.exp(0.1 * np.arange(400) / 400) * (1 + 0.001 * rng.random(400))
    in_a_row = ratio(location(series[:200]), location(series[200:]))
    in_turns = live(lambda _, count: series[:count], 1.0, 1, rounds=100)
    assert in_a_row.value == pytest.approx(math.exp(0.05), rel=0.01)
    assert in_turns.outcome is Outcome.SAME


@given(
    slope=st.floats(-0.5, 0.5),
    effect=st.floats(0.5, 2.0),
    order=st.sampled_from([ABBA, BAAB]),
    turns=st.integers(1, 5),
)
def test_drift_shifts_a_round_by_what_one_sample_differs_from_the_next(slope, effect, order, turns):
    """log time = slope * position + log effect for new, however long the round is."""
    order = turns * order
    times = [math.exp(slope * at) * (effect if side is Side.NEW else 1) for at, side in enumerate(order)]
    assert abs(log_ratio(order, times) - math.log(effect)) <= abs(slope) + 1e-12


def test_what_disturbs_all_but_one_sample_of_a_side_disturbs_nothing():
    order = 2 * ABBA
    times = [1.0 if at in (3, 5) else 1.7 + 0.1 * at for at in range(8)]
    assert (order[3], order[5]) == (Side.BASE, Side.NEW)
    assert log_ratio(order, times) == 0.0


def test_curved_drift_would_be_called_if_the_order_were_not_drawn():
    """Each round bends the same way: ABBA alone shows 4 % that are not there."""
    bend = [1.0, 1.04, 1.04, 1.0]
    always = signed_rank_ratio([log_ratio(ABBA, bend)] * 40, 0.98)
    drawn = live(lambda _, count: np.tile(bend, count // 4), 1.0, 3)
    assert always.outcome(0.01) is Outcome.SLOWER
    assert drawn.outcome not in CALLED


# -- the signed rank test --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_the_distribution_of_signed_ranks_is_that_of_all_signs(count):
    sums = [
        sum(itertools.compress(range(1, count + 1), signs))
        for signs in itertools.product((0, 1), repeat=count)
    ]
    expected = [sum(one <= at for one in sums) / 2**count for at in range(max(sums) + 1)]
    assert signed_rank_cdf(count) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_the_interval_is_what_scipys_test_does_not_reject(seed):
    """Just inside of an end the exact p value is above the error, just outside it is not."""
    logs = np.random.default_rng(seed).standard_normal(20)
    found = signed_rank_ratio(logs, 0.95)
    low, high = math.log(found.low), math.log(found.high)

    def p_value(shift):
        return wilcoxon(logs - shift, method="exact").pvalue

    assert min(p_value(low + 1e-9), p_value(high - 1e-9)) > 0.05
    assert max(p_value(low - 1e-9), p_value(high + 1e-9)) <= 0.05


def test_too_few_rounds_know_nothing():
    """Four rounds that agree happen by chance once in eight."""
    found = signed_rank_ratio([0.1] * 4, 0.98)
    assert (found.value, found.low, found.high) == (pytest.approx(math.exp(0.1)), 0.0, math.inf)


# -- the rule --------------------------------------------------------------------------------------


def test_looks_are_set_beforehand_and_end_with_the_last_round():
    assert SequentialTestOptions().looks == (9, 17, 24, 34, 48, 68, 96, 136, 192, 272, 384)
    assert SequentialTestOptions(first=12, rounds=12).looks == (9, 12)
    assert SequentialTestOptions(first=12, rounds=18).looks == (9, 12, 18)
    assert SequentialTestOptions(first=8, rounds=16).looks == (8, 11, 16)


def test_the_errors_of_all_looks_and_of_far_sides_are_the_error_of_the_comparison():
    """An eighth is left for sides that are far apart; the error of a usual look grows with its rounds."""
    options = SequentialTestOptions(confidence=0.9)
    errors = [1.0 - options.confidence_at(look) for look in options.looks]
    assert sum(errors) == pytest.approx(0.1 * 7 / 8)
    assert errors[0] == pytest.approx(0.1 / 5)
    assert errors[1:] == sorted(errors[1:])


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.98, 0.99, 0.999])
def test_the_early_look_is_as_early_as_its_error_allows(confidence):
    """Rounds that all agree decide at the early look, and could not one round sooner."""
    options = SequentialTestOptions(confidence=confidence)
    early, level = options.early, options.confidence_at(options.early)
    assert signed_rank_ratio([0.1] * early, level).outcome(0.01) is Outcome.SLOWER
    assert signed_rank_ratio([0.1] * (early - 1), level).outcome(0.01) is Outcome.UNCLEAR


def test_it_stops_at_the_first_look_that_decides():
    result = live(lambda _, count: np.ones(count), 1.5, 0)
    assert (result.outcome, result.rounds) == (Outcome.SLOWER, 9)
    assert result.ratio is not None
    assert result.ratio.value == pytest.approx(1.5)
    assert result.reason == "at least 50.0% more time (9 rounds)"


def test_it_ends_with_its_rounds_when_the_noise_hides_everything():
    result = live(lambda rng, count: np.exp(rng.standard_normal(count)), 1.0, 0, rounds=24)
    assert (result.outcome, result.rounds) == (Outcome.UNCLEAR, 24)


def test_stopped_early_it_answers_from_its_last_look():
    """Rounds since that look are not used: when they end may depend on what they are."""
    rule = SequentialTest(SequentialTestOptions(turns=1))
    assert rule.result().reason == "ended after 0 rounds; the first look is after 9"
    rng = np.random.default_rng(0)
    for _ in range(20):
        rule.add(np.exp(0.1 * rng.standard_normal(4)))
    result = rule.result()
    assert (result.rounds, result.looked_at) == (20, 17)
    assert result.outcome is Outcome.UNCLEAR


def test_both_orders_are_drawn_and_the_seed_says_which():
    def orders(seed):
        rule = SequentialTest(SequentialTestOptions(seed=seed, turns=2))
        found = []
        for _ in range(9):
            found.append(rule.order)
            rule.add(8 * [1.0])
        return found

    assert orders(1) == orders(1) != orders(2)
    assert set(orders(1)) == {2 * ABBA, 2 * BAAB}


@pytest.mark.parametrize(
    ("effect", "spread", "rounds", "outcome", "reason"),
    [
        (1.0, 0.005, 9, Outcome.UNCLEAR, "at most 0.5% less time"),
        (0.99, 0.005, 9, Outcome.FASTER, "at least 0.5% less time"),
        (1.03, 0.04, 9, Outcome.UNCLEAR, "at most 1.0% less time"),
        (1.0, 0.05, 24, Outcome.UNCLEAR, "the interval is too wide to tell: it may be faster or slower"),
    ],
)
def test_it_ends_once_a_gain_is_certain_or_ruled_out(effect, spread, rounds, outcome, reason):
    """A round differs from the effect by `spread`, up or down in turn; the ends of nine rounds are their extremes."""
    rule = SequentialTest(SequentialTestOptions(threshold=0.0, least_gain=0.02, rounds=24, turns=1))
    while not rule.finished:
        ratio = effect * (1.0 + spread) ** (-1) ** rule.rounds
        rule.add([ratio if side is Side.NEW else 1.0 for side in rule.order])
    result = rule.result()
    assert (result.rounds, result.outcome) == (rounds, outcome)
    assert result.reason == f"{reason} ({rounds} rounds)"


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", [*NOISE_OF_MACHINES, "wild", "walk"])
def test_giving_up_early_calls_equal_sides_no_more_often(kind):
    """Every call of equal sides is an error, at most 10 % of 400; 58 is three deviations more."""
    noise = {**NOISE_OF_MACHINES, "wild": wild, "walk": walk}[kind]
    options = {"threshold": 0.0, "least_gain": 0.02, "confidence": 0.9, "rounds": 48}
    found = [live(noise, 1.0, seed, **options) for seed in range(400)]
    assert sum(each.outcome in CALLED for each in found) <= 58
    plain = [live(noise, 1.0, seed, threshold=0.0, confidence=0.9, rounds=48) for seed in range(400)]
    faster = [sum(each.outcome is Outcome.FASTER for each in some) for some in (found, plain)]
    assert faster[0] <= faster[1]


@pytest.mark.parametrize("times", [[1.0], [1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, math.nan]])
def test_what_is_no_round_is_refused(times):
    with pytest.raises(ValueError, match=r"above 0|a round has 4"):
        SequentialTest(SequentialTestOptions(turns=1)).add(times)


def test_a_finished_rule_takes_no_more():
    rule = SequentialTest(SequentialTestOptions(turns=1))
    for _ in range(9):
        rule.add([1.0, 1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="finished"):
        rule.add([1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": -0.1},
        {"least_gain": 0.0},
        {"confidence": 1.0},
        {"first": 0},
        {"first": 9, "rounds": 8},
        {"turns": 0},
    ],
)
def test_options_that_make_no_rule_are_refused(wrong):
    with pytest.raises(ValueError, match="expected threshold >= 0"):
        SequentialTestOptions(**wrong)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.98, 0.999, 0.9999])
@pytest.mark.parametrize("freedom", [*range(1, 13), 99, 100])
def test_reach_is_that_of_scipy(confidence, freedom):
    """To ten digits, at every confidence that a command takes."""
    assert student_reach(confidence, freedom) == pytest.approx(
        stats.t.ppf((1.0 + confidence) / 2.0, freedom), rel=1e-10
    )


def test_reach_of_one_degree_is_that_of_cauchy():
    """P(|T| < t) = 2 atan(t) / pi."""
    assert student_reach(0.5, 1) == pytest.approx(1.0, rel=1e-12)
    assert student_reach(2.0 / 3.0, 1) == pytest.approx(math.sqrt(3.0), rel=1e-12)


# -- sides that are far apart ----------------------------------------------------------------------


def far_then_live(noise, effect, seed, pattern=AB, **options):
    """What both rules say, one after the other, of noise times `effect` for new, and the rounds that they took."""
    chosen = SequentialTestOptions(seed=seed, **options)
    series = noise(np.random.default_rng([seed, 1]), 16 * (chosen.rounds + chosen.far_rounds))
    rounds = at = 0
    for rule in (FarTest(chosen, pattern), SequentialTest(chosen)):
        while not rule.finished:
            part, at = series[at : at + len(rule.order)], at + len(rule.order)
            pairs = zip(part, rule.order, strict=True)
            rule.add([time * (effect if side is Side.NEW else 1.0) for time, side in pairs])
        result, rounds = rule.result(), rounds + rule.rounds
        if result.outcome is not Outcome.UNCLEAR:
            break
    return result, rounds


def wild(rng, count):
    """Noise far above that of any machine: a third of all samples differ from the next by more than a factor of 4."""
    return np.exp(rng.standard_normal(count))


def walk(rng, count):
    """The speed wanders, by a factor of e in 25 samples."""
    return np.exp(np.cumsum(0.2 * rng.standard_normal(count)))


@pytest.mark.parametrize("effect", [1 / 32, 1 / 5, 5.0, 32.0])
def test_far_sides_are_told_apart_in_five_rounds(effect):
    """Also if the machine drifts and jumps meanwhile."""
    expected = Outcome.FASTER if effect < 1.0 else Outcome.SLOWER
    for noise in (quiet, drift, spikes, modes, ticks, load):
        found = [far_then_live(noise, effect, seed) for seed in range(40)]
        assert {result.outcome for result, _ in found} == {expected}
        assert sum(rounds == 5 for _, rounds in found) >= 38
        assert sum(result.ratio.low <= effect <= result.ratio.high for result, _ in found) >= 38


def test_the_ratio_of_far_sides_has_an_interval():
    result, rounds = far_then_live(lambda _, count: np.ones(count), 6.0, 0)
    assert (result.outcome, rounds, result.looked_at) == (Outcome.SLOWER, 5, 5)
    assert result.ratio is not None
    assert (result.ratio.low, result.ratio.value, result.ratio.high) == pytest.approx((6.0, 6.0, 6.0))
    assert result.reason == "at least 500.0% more time (5 rounds)"


@pytest.mark.parametrize("effect", [1 / 1.9, 1.1, 1.9])
def test_sides_that_are_less_far_apart_are_left_to_the_sequential_test(effect):
    result, rounds = far_then_live(lambda _, count: np.ones(count), effect, 0)
    assert rounds == 5 + 9
    assert result.outcome is (Outcome.FASTER if effect < 1.0 else Outcome.SLOWER)


@pytest.mark.some(2)
@pytest.mark.parametrize("pattern", [AB, ABBA])
@pytest.mark.parametrize("kind", [*NOISE_OF_MACHINES, "wild", "walk"])
def test_noise_alone_is_never_far_apart(kind, pattern):
    """Its part of the error is 0.25 %, 10 of 4,000; 20 are three deviations more."""
    noise = {**NOISE_OF_MACHINES, "wild": wild, "walk": walk}[kind]
    called = 0
    for seed in range(4000):
        rule = FarTest(SequentialTestOptions(seed=seed), pattern)
        series = noise(np.random.default_rng([seed, 1]), 5 * len(pattern))
        while not rule.finished:
            rule.add(series[len(pattern) * rule.rounds :][: len(pattern)])
        called += rule.result().outcome in CALLED
    assert called <= 20


def test_that_noise_would_be_called_by_fewer_rounds():
    """The test above could fail: two wild rounds are far apart too often."""
    rng = np.random.default_rng(8)
    samples = wild(rng, 4 * 2000).reshape(2000, 2, 2)
    base, new = samples[..., 0], samples[..., 1]
    called = (base.min(1) >= FAR * new.max(1)) | (new.min(1) >= FAR * base.max(1))
    assert called.sum() > 2000 * 0.02


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", [*NOISE_OF_MACHINES, "wild", "walk"])
def test_both_rules_together_call_no_more_than_allowed(kind):
    """At a threshold of 0 every call is an error: 10 % of 300 is 30; 45 is three deviations more."""
    noise = {**NOISE_OF_MACHINES, "wild": wild, "walk": walk}[kind]
    found = [
        far_then_live(noise, 1.0, seed, threshold=0.0, confidence=0.9, rounds=68)[0].outcome
        for seed in range(300)
    ]
    assert sum(outcome in CALLED for outcome in found) <= 45


def test_few_rounds_say_when_the_first_look_is():
    rule = FarTest(SequentialTestOptions())
    for _ in range(3):
        rule.add([1.0, 9.0, 9.0, 1.0] if rule.order == ABBA else [9.0, 1.0, 1.0, 9.0])
    assert rule.result().reason == "ended after 3 rounds; the first look is after 5"
    assert rule.result().outcome is Outcome.UNCLEAR


def test_more_certainty_takes_more_rounds_of_far_sides():
    """2**(1 - 2 n) is at most an eighth of the error."""
    found = [SequentialTestOptions(confidence=part).far_rounds for part in (0.9, 0.98, 0.99, 0.999)]
    assert found == [4, 5, 6, 7]

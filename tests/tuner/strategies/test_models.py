"""Models of strategies, against closed forms and functions with a known minimum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dispatch_profiler.tuner.spaces.features import ABSENT
from dispatch_profiler.tuner.strategies.gaussian import (
    CONSTANT,
    FAMILY,
    NOISE,
    SMOOTH,
    Posterior,
    Process,
)


def process(
    places: list[float], families: list[int] | None = None, means: list[float] | None = None
) -> Process:
    zeros = [0] * len(places)
    return Process(np.array(places)[:, None], np.array(families or zeros), np.array(means or zeros, float))


def chosen(posterior: Posterior, count: int, known: int) -> list[int]:
    """The points with the largest promise, one after the other, but for the first `known`."""
    found: list[int] = []
    for _ in range(count):
        promise = posterior.promise.copy()
        promise[[*range(known), *found]] = -np.inf
        found.append(int(np.argmax(promise)))
        posterior.assume(found[-1])
    return found


def test_what_a_point_promises_is_its_expected_improvement():
    """By numerical integration over the posterior of three independent families, of which one was observed."""
    times = np.array([1.0, 0.4])
    center = np.median(times)
    total = CONSTANT + FAMILY + SMOOTH
    # At one place, families differ by FAMILY alone.
    prior = np.full((4, 4), CONSTANT + SMOOTH)
    families = [0, 1, 0, 2]
    prior += FAMILY * np.equal.outer(families, families)
    gram = prior[:2, :2] + NOISE * np.eye(2)
    weights = np.linalg.solve(gram, times - center)
    gains = []
    for place in (2, 3):
        mean = center + prior[place, :2] @ weights
        deviation = np.sqrt(total - prior[place, :2] @ np.linalg.solve(gram, prior[:2, place]))
        gains.append(
            quad(lambda t: (0.4 - t) * norm.pdf(t, mean, deviation), mean - 9 * deviation, 0.4)[0]  # noqa: B023
        )
    found = Posterior(process([0.0] * 4, [0, 1, 0, 2]), np.arange(2), times)
    assert found.promise[2:] == pytest.approx(gains, rel=1e-4)


def test_what_is_known_beforehand_decides_where_nothing_was_observed_nearby():
    places = process([0.0, 5.0, 5.1, 4.9], means=[0.0, 0.5, -0.5, 0.0])
    found = Posterior(places, np.arange(1), np.array([2.0]))
    assert chosen(found, 1, known=1) == [2]


def test_points_of_one_batch_differ():
    """Where one is chosen, another nearby promises less."""
    places = process([0.0, 10.0, 5.0, 5.001, 2.5, 7.5])
    found = chosen(Posterior(places, np.arange(2), np.array([1.0, 1.0])), 3, known=2)
    assert len(set(found)) == 3
    assert {2, 3} - set(found[:2])


def test_what_is_assumed_makes_its_surroundings_certain_and_changes_no_mean():
    rng = np.random.default_rng(0)
    places = process(list(rng.uniform(0, 9, 12)), [0, 1] * 6, list(rng.standard_normal(12)))
    rows, times = np.array([3, 0, 7]), np.array([0.2, 1.0, -0.4])
    assumed = Posterior(places, rows, times)
    predicted = assumed.mean.copy()
    assumed.assume(5)
    observed = Posterior(places, np.append(rows, 5), np.append(times, predicted[5]))
    assert assumed.variance == pytest.approx(observed.variance)
    assert np.array_equal(assumed.mean, predicted)
    gain, deviation = min(-0.4, predicted[5]) - predicted, np.sqrt(observed.variance)
    expected = gain * norm.cdf(gain / deviation) + deviation * norm.pdf(gain / deviation)
    assert assumed.promise == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 3])
def test_equal_observations_do_not_matter(count: int):
    places = process([0.0] * count + [1.0, 2.0])
    found = Posterior(places, np.arange(count), np.ones(count))
    assert sorted(chosen(found, 2, known=count)) == [count, count + 1]


def test_absent_sizes_do_not_make_all_others_look_alike():
    """One configuration without tiles among thirty."""
    sizes = [*np.linspace(0.0, 6.0, 30), ABSENT]
    (covariance,) = process(sizes).covariance(np.array([0]))
    assert covariance[15] - CONSTANT - FAMILY < 0.1 * SMOOTH


@pytest.mark.parametrize("factor", [1.0, 0.5, -1.0])
def test_trials_correct_a_prior_that_misleads(factor: float):
    """After 50 trials, even where no trial is near."""
    rng = np.random.default_rng(0)
    places, truth = list(rng.uniform(0, 99, 60)), rng.standard_normal(60)
    found = Posterior(process(places, means=list(factor * truth)), np.arange(50), truth[:50])
    assert np.polyfit(truth[50:], found.mean[50:], 1)[0] == pytest.approx(1.0, abs=0.1)

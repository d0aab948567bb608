"""Models of strategies, against closed forms and functions with a known minimum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from dispatch_profiler.tuner.strategies._gaussian import (
    _CONSTANT,
    _FAMILY,
    _NOISE,
    _SMOOTH,
    Posterior,
    Process,
    best_weight,
)
from dispatch_profiler.tuner.strategies.learned import _WEIGHTS


def process(places: list[float], families: list[int] | None = None) -> Process:
    return Process(np.array(places)[:, None], np.array(families or [0] * len(places)))


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
    total = _CONSTANT + _FAMILY + _SMOOTH
    # At one place, families differ by _FAMILY alone.
    prior = np.full((4, 4), _CONSTANT + _SMOOTH)
    families = [0, 1, 0, 2]
    prior += _FAMILY * np.equal.outer(families, families)
    gram = prior[:2, :2] + _NOISE * np.eye(2)
    weights = np.linalg.solve(gram, times - center)
    gains = []
    for place in (2, 3):
        mean = center + prior[place, :2] @ weights
        deviation = np.sqrt(total - prior[place, :2] @ np.linalg.solve(gram, prior[:2, place]))
        gains.append(
            quad(lambda t: (0.4 - t) * norm.pdf(t, mean, deviation), mean - 9 * deviation, 0.4)[0]  # noqa: B023
        )
    found = Posterior(process([0.0] * 4, [0, 1, 0, 2]), np.arange(2), times, np.zeros(4))
    assert found.promise[2:] == pytest.approx(gains, rel=1e-4)


def test_what_is_known_beforehand_decides_where_nothing_was_observed_nearby():
    means = np.array([0.0, 0.5, -0.5, 0.0])
    found = Posterior(process([0.0, 5.0, 5.1, 4.9]), np.arange(1), np.array([2.0]), means)
    assert chosen(found, 1, known=1) == [2]


def test_points_of_one_batch_differ():
    """Where one is chosen, another nearby promises less."""
    places = process([0.0, 10.0, 5.0, 5.001, 2.5, 7.5])
    found = chosen(Posterior(places, np.arange(2), np.array([1.0, 1.0]), np.zeros(6)), 3, known=2)
    assert len(set(found)) == 3
    assert {2, 3} - set(found[:2])


def test_what_is_assumed_makes_its_surroundings_certain_and_changes_no_mean():
    rng = np.random.default_rng(0)
    places, means = process(list(rng.uniform(0, 9, 12)), [0, 1] * 6), rng.standard_normal(12)
    rows, times = np.array([3, 0, 7]), np.array([0.2, 1.0, -0.4])
    assumed = Posterior(places, rows, times, means)
    predicted = assumed.mean.copy()
    assumed.assume(5)
    observed = Posterior(places, np.append(rows, 5), np.append(times, predicted[5]), means)
    assert assumed.variance == pytest.approx(observed.variance)
    assert np.array_equal(assumed.mean, predicted)
    gain, deviation = min(-0.4, predicted[5]) - predicted, np.sqrt(observed.variance)
    expected = gain * norm.cdf(gain / deviation) + deviation * norm.pdf(gain / deviation)
    assert assumed.promise == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 3])
def test_equal_observations_do_not_matter(count: int):
    places = process([0.0] * count + [1.0, 2.0])
    found = Posterior(places, np.arange(count), np.ones(count), np.zeros(count + 2))
    assert sorted(chosen(found, 2, known=count)) == [count, count + 1]


def test_the_most_likely_weight_is_that_of_a_normal_distribution():
    rng = np.random.default_rng(1)
    families = [0, 1, 0, 2, 2]
    gram = _CONSTANT + _SMOOTH + _FAMILY * np.equal.outer(families, families) + _NOISE * np.eye(5)
    for _ in range(20):
        means, times = rng.standard_normal((2, 5))
        likelihoods = []
        for weight in (1.0, 0.5, 0.0):
            residuals = times - weight * means
            likelihoods.append(multivariate_normal.logpdf(residuals - np.median(residuals), cov=gram))
        found = best_weight(process([0.0] * 5, families), np.arange(5), times, means, (1.0, 0.5, 0.0))
        assert found == (1.0, 0.5, 0.0)[int(np.argmax(likelihoods))]


def test_a_prior_is_trusted_as_far_as_the_trials_confirm_it():
    """In full, or not at all if it says the opposite."""
    rng = np.random.default_rng(0)
    places, truth = process(list(rng.uniform(0, 50, 40))), rng.standard_normal(40)
    times = truth + 0.05 * rng.standard_normal(40)

    def weight(means: np.ndarray) -> float:
        return best_weight(places, np.arange(40), times, means, _WEIGHTS)

    assert weight(truth) == 1.0
    assert weight(2 * truth) == 0.5
    assert weight(-truth) == 0.0

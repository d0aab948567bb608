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
    Points,
    expected_improvements,
    log_likelihood,
)
from dispatch_profiler.tuner.strategies.learned import trust


def points(
    places: list[float], means: list[float] | None = None, families: list[int] | None = None
) -> Points:
    return Points(
        np.array(places)[:, None],
        families or [0] * len(places),
        np.zeros(len(places)) if means is None else np.array(means),
    )


def test_the_choice_has_the_largest_expected_improvement():
    """By numerical integration over the posterior of three independent families, of which one was observed."""
    seen, times = points([0.0, 0.0], families=[0, 1]), np.array([1.0, 0.4])
    new = points([0.0, 0.0], families=[0, 2])
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
    assert expected_improvements(seen, times, new, 1) == [int(np.argmax(gains))]


def test_what_is_known_beforehand_decides_where_nothing_was_observed_nearby():
    seen, times = points([0.0], [0.0]), np.array([2.0])
    new = points([5.0, 5.1, 4.9], [0.5, -0.5, 0.0])
    assert expected_improvements(seen, times, new, 1) == [1]


def test_points_of_one_batch_differ():
    """Where one is chosen, another nearby promises less."""
    seen, times = points([0.0, 10.0]), np.array([1.0, 1.0])
    new = points([5.0, 5.001, 2.5, 7.5])
    chosen = expected_improvements(seen, times, new, 3)
    assert len(set(chosen)) == 3
    assert {0, 1} - set(chosen[:2])


def test_all_are_chosen_once_if_as_many_are_wanted():
    seen, times = points([0.0, 1.0]), np.array([1.0, 0.5])
    assert sorted(expected_improvements(seen, times, points([0.2, 0.4, 0.6]), 5)) == [0, 1, 2]


@pytest.mark.parametrize("places", [[0.0], [0.0, 0.0, 0.0]])
def test_equal_observations_do_not_matter(places: list[float]):
    found = expected_improvements(points(places), np.ones(len(places)), points([1.0, 2.0]), 2)
    assert sorted(found) == [0, 1]


def test_the_likelihood_is_that_of_a_normal_distribution():
    """Up to a constant that is the same for all means."""
    families = [0, 1, 0]
    gram = _CONSTANT + _SMOOTH + _FAMILY * np.equal.outer(families, families) + _NOISE * np.eye(3)
    times = np.array([1.0, 0.5, 1.5])
    found, expected = [], []
    for means in ([0.0, 0.0, 0.0], [1.0, 0.2, 1.4]):
        residuals = times - means
        found.append(log_likelihood(points([0.0] * 3, means, families), times))
        expected.append(multivariate_normal.logpdf(residuals - np.median(residuals), cov=gram))
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0])


def test_a_prior_is_trusted_as_far_as_the_trials_confirm_it():
    """In full, or not at all if it says the opposite."""
    rng = np.random.default_rng(0)
    places, truth = list(rng.uniform(0, 50, 40)), rng.standard_normal(40)
    times = truth + 0.05 * rng.standard_normal(40)
    assert trust(points(places, list(truth)), times) == 1.0
    assert trust(points(places, list(2 * truth)), times) == 0.5
    assert trust(points(places, list(-truth)), times) == 0.0

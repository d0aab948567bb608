"""A Gaussian process over configurations, and the expected improvement that it predicts.

The logarithm of a time is a mean that is known beforehand, an unknown constant, an effect of the family (the
form and kind), a smooth function of the vectors, and noise. See Rasmussen and Williams, Gaussian Processes
for Machine Learning, algorithm 2.1, and Jones et al. 1998 for expected improvement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import ndtr

#: Variances, in squared natural logarithms of times: of the constant, families, the smooth function and noise.
_CONSTANT, _FAMILY, _SMOOTH, _NOISE = 1.0, 0.3, 0.5, 0.01
#: Root mean square distance, in standard deviations of each column, over which the smooth function changes.
_LENGTH = 0.8


@dataclass(frozen=True)
class Points:
    """Rows of numbers, the family of each, and its mean that is known beforehand."""

    vectors: np.ndarray
    families: Sequence[object]
    means: np.ndarray

    def weighted(self, weight: float) -> Points:
        """With `weight` times the means."""
        return replace(self, means=weight * self.means)


def expected_improvements(observed: Points, times: np.ndarray, points: Points, count: int) -> list[int]:
    """The indices of `count` of `points` where the shortest of `times` is expected to be improved most.

    Each is chosen as if those before it had been observed to be what is predicted. `times` are logarithms.
    """
    count = min(count, len(points.means))
    gram = _covariance(observed, points)
    size = len(observed.means)
    known = list(range(size))
    residuals = list(times - observed.means)
    constant = float(np.median(residuals)) if residuals else 0.0
    means = np.concatenate([observed.means, points.means])
    chosen: list[int] = []
    for _ in range(count):
        mean, deviation = _predict(gram, known, np.array(residuals) - constant)
        mean += means + constant
        shortest = float((means[known] + residuals).min())
        gain = shortest - mean
        z = gain / deviation
        improvement = gain * ndtr(z) + deviation * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
        improvement[known] = -np.inf
        at = int(np.argmax(improvement))
        chosen.append(at - size)
        known.append(at)
        residuals.append(float(mean[at] - means[at]))
    return chosen


def log_likelihood(observed: Points, times: np.ndarray) -> float:
    """How well the known means explain the times, up to a constant."""
    empty = Points(observed.vectors[:0], [], observed.means[:0])
    gram = _covariance(observed, empty) + _NOISE * np.eye(len(times))
    residuals = times - observed.means
    residuals -= np.median(residuals)
    factor = cho_factor(gram, lower=True)
    return float(-0.5 * residuals @ cho_solve(factor, residuals) - np.log(np.diag(factor[0])).sum())


def _covariance(observed: Points, points: Points) -> np.ndarray:
    vectors = np.concatenate([observed.vectors, points.vectors])
    spread = vectors.std(0)
    varied = spread > 1e-9
    scaled = (vectors[:, varied] - vectors[:, varied].mean(0)) / spread[varied]
    squares = (scaled**2).sum(1)
    distances = np.maximum(squares[:, None] + squares - 2 * scaled @ scaled.T, 0) / max(1, varied.sum())
    numbers: dict[object, int] = {}
    families = np.array(
        [numbers.setdefault(each, len(numbers)) for each in (*observed.families, *points.families)]
    )
    same = families[:, None] == families
    return _CONSTANT + _FAMILY * same + _SMOOTH * np.exp(-distances / (2 * _LENGTH**2))


def _predict(gram: np.ndarray, known: list[int], residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation at every row of `gram`, given the residuals at `known`."""
    cross = gram[:, known]
    factor = cho_factor(gram[np.ix_(known, known)] + _NOISE * np.eye(len(known)), lower=True)
    half = solve_triangular(factor[0], cross.T, lower=True)
    variance = np.diag(gram) - (half**2).sum(0)
    return cross @ cho_solve(factor, residuals), np.sqrt(np.maximum(variance, 1e-9))

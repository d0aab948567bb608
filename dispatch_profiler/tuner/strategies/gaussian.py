"""A Gaussian process over configurations, and the expected improvement that it predicts.

The logarithm of a time is a sum: a prediction that is known beforehand, times an unknown factor near 1; an
unknown constant; an effect of the family (the form and kind); a smooth function of the vectors; and noise.
See Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1, and Jones et al. 1998 for
expected improvement.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import ndtr

#: Variances, in squared natural logarithms of times: of the constant, families, the smooth function and noise.
CONSTANT, FAMILY, SMOOTH, NOISE = 1.0, 0.05, 0.1, 0.01
#: Variance of the factor of the predictions: a prior that misleads is corrected.
_TRUST = 0.06
#: Root mean square distance, in standard deviations of each column, over which the smooth function changes.
_LENGTH = 0.6
#: Smaller numbers count as this one: absent sizes of a few configurations would make all others look alike.
_LEAST = -4.0
_LEAST_VARIANCE = 1e-9


class Process:
    """The process at some points, before anything is observed.

    Each point has a row of numbers, a family, and the logarithm of its time as it is predicted, up to a constant.
    """

    def __init__(self, vectors: np.ndarray, families: np.ndarray, means: np.ndarray) -> None:
        vectors = np.maximum(vectors, _LEAST)
        spread = vectors.std(0)
        varied = spread > 1e-9
        scale = spread[varied] * np.sqrt(max(1, varied.sum()))
        self._scaled = (vectors[:, varied] - vectors[:, varied].mean(0)) / scale
        self._squares = (self._scaled**2).sum(1)
        self._families = families
        self.means = means - means.mean()
        self.variance = CONSTANT + FAMILY + SMOOTH + _TRUST * self.means**2

    def covariance(self, rows: np.ndarray) -> np.ndarray:
        """Between the points `rows` and all points: an array of len(rows) x points."""
        products = self._scaled[rows] @ self._scaled.T
        distances = np.maximum(self._squares[rows, None] + self._squares - 2 * products, 0.0)
        same = self._families[rows, None] == self._families
        smooth = SMOOTH * np.exp(-distances / (2 * _LENGTH**2))
        return CONSTANT + FAMILY * same + smooth + _TRUST * np.outer(self.means[rows], self.means)


class Posterior:
    """The process given the times of the points `rows`, as logarithms.

    `mean`, `variance` and `promise` have a value for each point; `promise` is its expected improvement over
    the shortest time.
    """

    def __init__(self, process: Process, rows: np.ndarray, times: np.ndarray) -> None:
        residuals = times - process.means[rows]
        center = float(np.median(residuals)) if len(residuals) else 0.0
        self._process = process
        self._shortest = float(times.min())
        cross = process.covariance(rows)
        factor = np.linalg.cholesky(cross[:, rows] + NOISE * np.eye(len(rows)))
        #: The rows of a triangular solution: their squares are what the observations take from the variance.
        self._half = solve_triangular(factor, cross, lower=True)
        corrections = solve_triangular(factor, residuals - center, lower=True) @ self._half
        self.mean = process.means + center + corrections
        self.variance = process.variance - (self._half**2).sum(0)
        self.promise = self._improvement()

    def assume(self, at: int) -> None:
        """Continue as if the point `at` had been observed to be what is predicted. No mean changes."""
        covariance = self._process.covariance(np.array([at]))[0] - self._half[:, at] @ self._half
        row = covariance / np.sqrt(max(self.variance[at], _LEAST_VARIANCE) + NOISE)
        self._half = np.concatenate([self._half, row[None]])
        self.variance = self.variance - row**2
        self._shortest = min(self._shortest, float(self.mean[at]))
        self.promise = self._improvement()

    def _improvement(self) -> np.ndarray:
        deviation = np.sqrt(np.maximum(self.variance, _LEAST_VARIANCE))
        gain = self._shortest - self.mean
        z = gain / deviation
        return gain * ndtr(z) + deviation * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

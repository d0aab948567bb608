"""Strategies with a model of speed: a prior that the trials correct, and a forest that is trained on the trials."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import ndtr

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.tuner.packages import import_ensembles
from dispatch_profiler.tuner.spaces.space import Point, SearchSpace, family
from dispatch_profiler.tuner.strategies._base import BaseStrategy
from dispatch_profiler.tuner.strategies.prior import Prior, shipped_prior
from dispatch_profiler.tuner.strategies.speed_model import SMOOTH, SpeedModel

# -- model -----------------------------------------------------------------------------------------

# The base of these strategies: it chooses the configurations that the model ranks.


#: Spaces with at most this many points are ranked whole.
_SMALL = 1000
#: Random points that are ranked: how many at first, and how many more in each round.
_RANDOM, _MORE_RANDOM = 300, 40
#: Draws for each of them until one is valid.
_TRIES = 10
#: Trials whose neighbours are ranked beside them.
_STARTS = 3
#: Steps in which the neighbours of the best ranked points are ranked too, and how many points these are.
_CLIMBS = 2
_CLIMBERS = 2
#: How many of the best ranked configurations are ranked again in the next round.
_KEPT = 600
#: A larger expected gain, as a logarithm, is no different.
_LARGEST_GAIN = 10.0
#: Times longer than this multiple of the shortest count as this multiple, so that they do not decide the fit.
_LONGEST = 16.0


@dataclass
class Ranking:
    """Which rows of the pool to measure: the larger its `promise`, the earlier a row is measured.

    `gain` is how much the rows that are being measured are expected to shorten the time, as a difference of
    logarithms; infinite if the model does not say.
    """

    promise: np.ndarray
    gain: float = math.inf

    def assume(self, at: int) -> None:
        """Row `at` is being measured; a subclass changes `promise` as far as this matters."""


class ModelStrategy(BaseStrategy):
    """Proposes the points that a model ranks first, among random points and neighbours of the best points."""

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        seeds: Sequence[Configuration] = (),
        descend_after: int | None = None,
    ) -> None:
        super().__init__(space, seed, seeds, descend_after)
        self._pool = Pool(space, self._predict)
        #: Points whose neighbours were ranked.
        self._expanded: set[Point] = set()

    @abc.abstractmethod
    def _is_fitted(self) -> bool:
        """Whether there is enough to rank by."""

    @abc.abstractmethod
    def _ranking(self, rows: np.ndarray, times: np.ndarray) -> Ranking:
        """The ranking of the pool, of which `rows` have `times`: logarithms of times, very long for failures."""

    def _predict(
        self, configurations: Sequence[Configuration], vectors: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(logarithms of times up to a constant, variances of their smooth errors), known before the first trial."""
        return np.zeros(len(vectors)), np.full(len(vectors), SMOOTH)

    def _propose(self, count: int, rng: np.random.Generator) -> Iterator[Point | Configuration]:
        if self._is_fitted():
            yield from self._best_ranked(count, rng)
        yield from self._random_points(rng)

    def _best_ranked(self, count: int, rng: np.random.Generator) -> list[Point | Configuration]:
        pool = self._pool
        pool.withdraw(self._asked)
        if not self._expanded:
            pool.add_likely()
            pool.add_points(self._space.points(_SMALL))
        pool.add_points(self._drawn(_MORE_RANDOM if self._expanded else _RANDOM, rng))
        self._expand(self._fastest(_STARTS))
        for _ in range(_CLIMBS):
            self._expand(pool.points[row] for row in self._choose(_CLIMBERS, self._ranked()))
        ranking = self._ranked()
        promise = ranking.promise.copy()
        chosen = [pool.points[row] or pool.configurations[row] for row in self._choose(count, ranking)]
        if len(chosen) == count:
            self._expected_gain = math.expm1(min(ranking.gain, _LARGEST_GAIN))
        pool.shrink(promise, _KEPT)
        return chosen

    def _drawn(self, count: int, rng: np.random.Generator) -> Iterator[Point]:
        """New valid points of the spaces that are not ranked whole: `count`, or fewer if most points are invalid."""
        large = [index for index in self._open if self._space.spaces[index].size > _SMALL]
        for _ in range(count if large else 0):
            index = large[int(rng.integers(len(large)))]
            points = (self._space.draw(rng, index) for _ in range(_TRIES))
            yield from itertools.islice(
                (point for point in points if self._is_new(self._space.configuration(point))), 1
            )

    def _expand(self, points: Iterable[Point | None]) -> None:
        """Add the neighbours of `points` to the pool."""
        new = [point for point in dict.fromkeys(points) if point is not None and point not in self._expanded]
        self._expanded.update(new)
        self._pool.add_points(near for point in new for near in self._space.neighbours(point))

    def _ranked(self) -> Ranking:
        """The model's ranking, with no promise for rows that are not candidates."""
        told = [each for each in self._asked if each in self._outcomes]
        timed = [time for each in told if (time := self._outcomes[each])]
        longest = _LONGEST * min(timed, default=1.0)
        times = [math.log(min(self._outcomes[each] or longest, longest)) for each in told]
        return self._ranking(self._pool.rows(told), np.array(times))

    def _choose(self, count: int, ranking: Ranking) -> list[int]:
        """Rows of `count` valid candidates, the best first; all of them if there are fewer."""
        chosen: list[int] = []
        while len(chosen) < count:
            promise = np.where(self._pool.is_candidate, ranking.promise, -np.inf)
            promise[chosen] = -np.inf
            row = int(np.argmax(promise)) if len(promise) else -1
            if row < 0 or promise[row] == -np.inf:
                break
            if self._pool.is_valid(row):
                chosen.append(row)
                ranking.assume(row)
        return chosen


# -- pool ------------------------------------------------------------------------------------------

# The configurations that a model ranks, with their points and vectors, kept from one proposal to the next.
#
# Mapping a point to a configuration and describing it by numbers takes longer than ranking it.


#: Two numbers for each of some configurations, with their vectors.
Rating = Callable[[Sequence[Configuration], np.ndarray], tuple[np.ndarray, np.ndarray]]


class Pool:
    """Distinct configurations in the order in which they were added.

    `points` has the point of each, None without one. `vectors` has a row for each (see `SearchSpace.vectors`), `families`
    a number for its family, and `means` and `variances` what `predict` says of it. `is_candidate` is False for configurations that were asked or are invalid.
    """

    def __init__(self, space: SearchSpace, predict: Rating) -> None:
        self._space = space
        self._predict = predict
        self._families: dict[tuple[str, str, str, bool], int] = {}
        self._rows: dict[Configuration, int] = {}
        self.configurations: list[Configuration] = []
        self.points: list[Point | None] = []
        self.vectors = np.empty((0, 0))
        self.families = np.empty(0, int)
        self.means, self.variances = np.empty(0), np.empty(0)
        self.is_candidate = np.empty(0, bool)

    def add_points(self, points: Iterable[Point]) -> None:
        """Add the configurations of `points` as candidates, unless they are known or excluded from the space."""
        new: dict[Configuration, Point] = {}
        for point in points:
            configuration = self._space.configuration(point)
            if configuration not in self._rows and self._space.is_admitted(configuration):
                new.setdefault(configuration, point)
        self._add(list(new), list(new.values()), True)

    def add_likely(self) -> None:
        """Add `SearchSpace.likely` as candidates."""
        likely = filter(self._space.is_admitted, dict.fromkeys(self._space.likely))
        new = [each for each in likely if each not in self._rows]
        self._add(new, [None] * len(new), True)

    def withdraw(self, configurations: Iterable[Configuration]) -> None:
        """Mark configurations as no longer candidates; unknown configurations are added, without points."""
        withdrawn = list(configurations)
        new = [each for each in withdrawn if each not in self._rows]
        self._add(new, [None] * len(new), False)
        self.is_candidate[self.rows(withdrawn)] = False

    def rows(self, configurations: Iterable[Configuration]) -> np.ndarray:
        """The rows of configurations that are in the pool."""
        return np.array([self._rows[each] for each in configurations], int)

    def is_valid(self, row: int) -> bool:
        """Whether the configuration of `row` may be proposed. If not, it is no longer a candidate."""
        if not self._space.is_valid(self.configurations[row]):
            self.is_candidate[row] = False
        return bool(self.is_candidate[row])

    def shrink(self, promise: np.ndarray, most: int) -> None:
        """Forget all candidates except the `most` with the largest `promise`."""
        candidates = np.flatnonzero(self.is_candidate)
        if len(candidates) <= most:
            return
        order = np.argsort(-promise[candidates], kind="stable")
        kept = ~self.is_candidate
        kept[candidates[order[:most]]] = True
        rows = np.flatnonzero(kept)
        self.configurations = [self.configurations[row] for row in rows]
        self.points = [self.points[row] for row in rows]
        self.vectors, self.families = self.vectors[rows], self.families[rows]
        self.means, self.variances = self.means[rows], self.variances[rows]
        self.is_candidate = self.is_candidate[rows]
        self._rows = {each: row for row, each in enumerate(self.configurations)}

    def _add(
        self, configurations: list[Configuration], points: list[Point] | list[None], is_candidate: bool
    ) -> None:
        if not configurations:
            return
        vectors = self._space.vectors(configurations)
        numbers = [self._families.setdefault(family(each), len(self._families)) for each in configurations]
        self._rows.update(zip(configurations, itertools.count(len(self._rows)), strict=False))
        self.configurations += configurations
        self.points += points
        self.vectors = np.concatenate([self.vectors, vectors]) if self.vectors.size else vectors
        self.families = np.concatenate([self.families, np.array(numbers)])
        means, variances = self._predict(configurations, vectors)
        self.means = np.concatenate([self.means, means])
        self.variances = np.concatenate([self.variances, variances])
        self.is_candidate = np.concatenate([self.is_candidate, np.full(len(vectors), is_candidate)])


#: Trials before the first proposals without a prior.
_INITIAL = 6


class Learned(ModelStrategy):
    """Expected improvement of a Gaussian process whose mean is what a model of speed predicts (`SpeedModel`).

    `prior` replaces the shipped prior of the target's backend. Without either, the mean of what no rule knows is constant. The
    default strategy: its mean regret on recorded sweeps is 2.9 % after 16 evaluations and 0.8 % after 64,
    compared with 20 % and 7 % for random search (benchmarks/search.py, docs/tuning.md).
    """

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        seeds: Sequence[Configuration] = (),
        descend_after: int | None = None,
        prior: Prior | None = None,
    ) -> None:
        self._prior = prior or shipped_prior(space.limits.backend)
        self._speed = SpeedModel(space.operation, space.cores, self._prior)
        super().__init__(space, seed, seeds, descend_after)

    def _is_fitted(self) -> bool:
        return self._prior is not None or len(self._outcomes) >= _INITIAL

    def _predict(
        self, configurations: Sequence[Configuration], vectors: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._speed.predict(configurations, vectors)

    def _ranking(self, rows: np.ndarray, times: np.ndarray) -> Ranking:
        pool = self._pool
        if not len(rows):
            return Ranking(-pool.means)
        return Posterior(Process(pool.vectors, pool.families, pool.means, pool.variances), rows, times)


# -- surrogate -------------------------------------------------------------------------------------

# A random forest, trained on the trials, ranks configurations.


#: Random trials before the first model.
_INITIAL_TREES = 8
_TREES = 50


class Surrogate(ModelStrategy):
    """Proposes where the mean logarithm of the time, less its spread over the trees of a forest, is lowest."""

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        seeds: Sequence[Configuration] = (),
        descend_after: int | None = None,
    ) -> None:
        super().__init__(space, seed, seeds, descend_after)
        self._ensembles = import_ensembles()
        #: The times that the forest was fitted to, and the forest.
        self._fitted: tuple[np.ndarray, Any] | None = None

    def _is_fitted(self) -> bool:
        return sum(time is not None for time in self._outcomes.values()) >= _INITIAL_TREES

    def _ranking(self, rows: np.ndarray, times: np.ndarray) -> Ranking:
        vectors = self._pool.vectors.astype(np.float32)
        each = np.stack([tree.predict(vectors) for tree in self._forest(rows, times).estimators_])
        return Ranking(each.std(0) - each.mean(0))

    def _forest(self, rows: np.ndarray, times: np.ndarray) -> Any:
        """A forest fitted to all trials; the previous one if there are no new trials."""
        if self._fitted is None or not np.array_equal(self._fitted[0], times):
            forest = self._ensembles.RandomForestRegressor(
                _TREES, min_samples_leaf=2, max_features=0.5, random_state=self._seed % 2**32
            )
            forest.fit(self._pool.vectors[rows], times)
            self._fitted = times, forest
        return self._fitted[1]


# -- Gaussian process ------------------------------------------------------------------------------

# A Gaussian process over configurations, and the expected improvement that it predicts.
#
# The logarithm of a time is a sum: a prediction that is known beforehand, times an unknown factor near 1; an
# unknown constant; an effect of the family (the form and kind); a smooth function of the vectors; and noise.
# See Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1, and Jones et al. 1998 for
# expected improvement.


#: Variances, in squared natural logarithms of times: of the constant, families and noise.
CONSTANT, FAMILY, NOISE = 1.0, 0.05, 0.01
#: Variance of the factor of the predictions: a prior that misleads is corrected.
_TRUST = 0.06
#: Root mean square distance, in standard deviations of each column, over which the smooth function changes.
_LENGTH = 0.6
#: Smaller numbers count as this one: absent sizes of a few configurations would make all others look alike.
_LEAST = -4.0
_LEAST_VARIANCE = 1e-9


class Process:
    """The process at some points, before anything is observed.

    Each point has a row of numbers, a family, the logarithm of its time as it is predicted, up to a constant, and the variance
    of the smooth function there.
    """

    def __init__(
        self, vectors: np.ndarray, families: np.ndarray, means: np.ndarray, variances: np.ndarray
    ) -> None:
        vectors = np.maximum(vectors, _LEAST)
        spread = vectors.std(0)
        varied = spread > 1e-9
        scale = spread[varied] * np.sqrt(max(1, varied.sum()))
        self._scaled = (vectors[:, varied] - vectors[:, varied].mean(0)) / scale
        self._squares = (self._scaled**2).sum(1)
        self._families = families
        self.means = means - means.mean()
        self._deviations = np.sqrt(variances)
        self.variance = CONSTANT + FAMILY + variances + _TRUST * self.means**2

    def covariance(self, rows: np.ndarray) -> np.ndarray:
        """Between the points `rows` and all points: an array of len(rows) x points."""
        products = self._scaled[rows] @ self._scaled.T
        distances = np.maximum(self._squares[rows, None] + self._squares - 2 * products, 0.0)
        same = self._families[rows, None] == self._families
        both = np.outer(self._deviations[rows], self._deviations)
        smooth = both * np.exp(-distances / (2 * _LENGTH**2))
        return CONSTANT + FAMILY * same + smooth + _TRUST * np.outer(self.means[rows], self.means)


class Posterior(Ranking):
    """The process given the times of the points `rows`, as logarithms.

    `mean`, `variance` and `promise` have a value for each point; `promise` is its expected improvement over
    the shortest time.
    """

    def __init__(self, process: Process, rows: np.ndarray, times: np.ndarray) -> None:
        residuals = times - process.means[rows]
        center = float(np.median(residuals)) if len(residuals) else 0.0
        self._process = process
        self.gain = 0.0
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
        self.gain += float(self.promise[at])
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

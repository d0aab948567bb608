"""The base of strategies with a model of speed: it chooses the configurations that the model ranks."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.tuner.spaces.space import Point, SearchSpace
from dispatch_profiler.tuner.strategies._base import BaseStrategy
from dispatch_profiler.tuner.strategies._pool import Pool

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
#: Times longer than this multiple of the shortest count as this multiple, so that they do not decide the fit.
_LONGEST = 16.0


class Ranking(Protocol):
    """Which rows of the pool to measure: the larger its `promise`, the earlier a row is measured."""

    promise: np.ndarray

    def assume(self, at: int) -> None:
        """Row `at` is being measured; change `promise` as far as this matters."""


@dataclass
class Fixed:
    """A `Ranking` that does not change."""

    promise: np.ndarray

    def assume(self, at: int) -> None:
        """See `Ranking`."""


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

    def _predict(self, vectors: np.ndarray) -> np.ndarray:
        """Logarithms of times up to a constant, known before the first trial."""
        return np.zeros(len(vectors))

    def _propose(self, count: int, rng: np.random.Generator) -> Iterator[Point]:
        if self._is_fitted():
            yield from self._best_ranked(count, rng)
        yield from self._random_points(rng)

    def _best_ranked(self, count: int, rng: np.random.Generator) -> list[Point]:
        pool = self._pool
        pool.withdraw(self._asked)
        if not self._expanded:
            pool.add_points(self._space.points(_SMALL))
        pool.add_points(self._drawn(_MORE_RANDOM if self._expanded else _RANDOM, rng))
        self._expand(self._fastest(_STARTS))
        for _ in range(_CLIMBS):
            self._expand(pool.points[row] for row in self._choose(_CLIMBERS, self._ranked()))
        ranking = self._ranked()
        promise = ranking.promise.copy()
        chosen = [pool.points[row] for row in self._choose(count, ranking)]
        pool.shrink(promise, _KEPT)
        return [point for point in chosen if point is not None]

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

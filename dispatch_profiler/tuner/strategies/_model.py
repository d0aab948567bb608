"""What strategies with a model of speed share: which configurations the model ranks."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Iterator

import numpy as np

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.tuner.space import Point
from dispatch_profiler.tuner.strategies._base import BaseStrategy

#: Random points, and trials whose neighbours are ranked beside them.
_RANDOM = 200
_STARTS = 3
#: Rounds in which the neighbours of the best ranked points are ranked too, and how many points these are.
_CLIMBS = 2
_CLIMBERS = 4
#: Times longer than this multiple of the shortest count as this multiple, so that they do not decide the fit.
_LONGEST = 16.0


class ModelStrategy(BaseStrategy):
    """Proposes what a model ranks first among random points, neighbours of the fastest trials, and theirs."""

    def _propose(self, count: int, rng: np.random.Generator) -> Iterator[Point]:
        if self._is_fitted():
            ranked = self._candidates(rng)
            for _ in range(_CLIMBS):
                best = self._choose(list(ranked), _CLIMBERS, rng)
                near = (p for each in best for p in self._space.neighbours(ranked[each]))
                ranked.update(self._new(near))
            for configuration in self._choose(list(ranked), count, rng):
                yield ranked[configuration]
        yield from self._random_points(rng)

    @abc.abstractmethod
    def _is_fitted(self) -> bool:
        """Whether there is enough to rank by."""

    @abc.abstractmethod
    def _choose(
        self, among: list[Configuration], count: int, rng: np.random.Generator
    ) -> list[Configuration]:
        """The `count` of `among` to measure, the best first; all of them if there are fewer."""

    def _candidates(self, rng: np.random.Generator) -> dict[Configuration, Point]:
        near = (p for point in self._fastest(_STARTS) for p in self._space.neighbours(point))
        return self._new(itertools.chain(itertools.islice(self._random_points(rng), _RANDOM), near))

    def _new(self, points: Iterator[Point]) -> dict[Configuration, Point]:
        """Those of `points` that are valid and new, by their configurations."""
        found = ((self._space.configuration(point), point) for point in points)
        return {each: point for each, point in found if self._is_new(each)}

    def _observed(self) -> tuple[list[Configuration], np.ndarray]:
        """Configurations of all trials, with the logarithms of their times; failed ones count as very slow."""
        trials = self._trials()
        shortest = min((trial.milliseconds for trial in trials if trial.milliseconds), default=1.0)
        longest = _LONGEST * shortest
        times = [min(trial.milliseconds or longest, longest) for trial in trials]
        return [trial.configuration for trial in trials], np.array([math.log(time) for time in times])

"""Strategies that do not learn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dispatch_profiler.tuner.spaces.space import Point
from dispatch_profiler.tuner.strategies._base import BaseStrategy


class RandomSearch(BaseStrategy):
    """Random configurations. Every space is equally likely; a form has one or several spaces."""

    def _propose(self, count: int, rng: np.random.Generator) -> Iterator[Point]:
        return self._random_points(rng)


class Exhaustive(BaseStrategy):
    """Every configuration, in the order of the spaces and their axes."""

    _remaining: Iterator[Point] | None = None

    def _propose(self, count: int, rng: np.random.Generator) -> Iterator[Point]:
        if self._remaining is None:
            self._remaining = self._space.points()
        return self._remaining

"""The configurations that a model ranks, with their points and vectors, kept from one proposal to the next.

Mapping a point to a configuration and describing it by numbers takes longer than ranking it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.tuner.spaces.space import Point, SearchSpace, family

#: A number for each row of vectors.
Rating = Callable[[np.ndarray], np.ndarray]


class Pool:
    """Distinct configurations in the order in which they were added.

    `vectors` has a row for each (see `SearchSpace.vectors`), `families` a number for its family, and `means` what
    `predict` says of its vector. `is_candidate` is False for configurations that were asked or are invalid.
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
        self.means = np.empty(0)
        self.is_candidate = np.empty(0, bool)

    def add_points(self, points: Iterable[Point]) -> None:
        """Add the configurations of `points` as candidates, unless they are known or excluded from the space."""
        new: dict[Configuration, Point] = {}
        for point in points:
            configuration = self._space.configuration(point)
            if configuration not in self._rows and self._space.is_admitted(configuration):
                new.setdefault(configuration, point)
        self._add(list(new), list(new.values()), True)

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
        self.means, self.is_candidate = self.means[rows], self.is_candidate[rows]
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
        self.means = np.concatenate([self.means, self._predict(vectors)])
        self.is_candidate = np.concatenate([self.is_candidate, np.full(len(vectors), is_candidate)])

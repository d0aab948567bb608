"""The base of all strategies: it proposes seeds first, nothing invalid, and nothing twice."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.tuner.spaces.space import Point, SearchSpace

#: Draws without a new valid configuration before a small space is enumerated.
_FEW_TRIES = 64
#: Draws without a new valid configuration before a space that is too large to enumerate counts as exhausted.
_MANY_TRIES = 20_000


@dataclass(frozen=True)
class Trial:
    """The outcome of one proposal. `milliseconds` is None if it failed; approximate if it was abandoned as too slow."""

    configuration: Configuration
    milliseconds: float | None

    def __post_init__(self) -> None:
        if self.milliseconds is not None and not (math.isfinite(self.milliseconds) and self.milliseconds > 0):
            raise ValueError(
                f"milliseconds must be positive and finite, or None, but got {self.milliseconds}"
            )


class Strategy(Protocol):
    """Chooses what to measure next. The same seed and the same history give the same proposals."""

    def ask(self, count: int) -> Sequence[Configuration]:
        """Up to `count` valid configurations that were never asked before; empty when nothing is left."""
        ...

    def tell(self, trials: Sequence[Trial]) -> None:
        """Receive the outcomes of proposals, in any order. Configurations that were not asked for count as asked."""
        ...

    @property
    def expected_gain(self) -> float:
        """How much faster the last proposals are expected to make the fastest: 0.02 for 2 %. Infinite if unknown."""
        ...


class BaseStrategy(abc.ABC):
    """Implements `Strategy`; a subclass proposes points.

    `seeds` are proposed first, in their order, if they are valid. They need not belong to the space.
    After `descend_after` proposals, neighbours of the fastest trial come first: every configuration that
    differs from it in one axis, the nearest choices first. The subclass proposes again when all are known.
    """

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        seeds: Sequence[Configuration] = (),
        descend_after: int | None = None,
    ) -> None:
        self._space = space
        self._descend_after = math.inf if descend_after is None else descend_after
        self._seed = seed
        self._seeds = tuple(dict.fromkeys(each for each in seeds if space.is_valid(each)))
        #: Proposals and other outcomes, in order, each with its point. Configurations that were not proposed as points have
        #: None until `point_of` needs their nearest point.
        self._asked: dict[Configuration, Point | None] = {}
        self._outcomes: dict[Configuration, float | None] = {}
        self._expected_gain = math.inf
        #: Spaces with configurations that were not asked yet.
        self._open = list(range(len(space.spaces)))

    # -- the protocol -------------------------------------------------------------------------

    @property
    def expected_gain(self) -> float:
        """See `Strategy`. Only models expect anything, of proposals that are all theirs."""
        return self._expected_gain

    def ask(self, count: int) -> Sequence[Configuration]:
        """See `Strategy`."""
        # Seeded by how much was asked, so that proposals depend on nothing but the history.
        rng = np.random.default_rng((self._seed, len(self._asked)))
        asked: list[Configuration] = []
        self._expected_gain = math.inf
        for configuration in self._seeds:
            if len(asked) < count and configuration not in self._asked:
                self._asked[configuration] = None
                asked.append(configuration)
        if len(asked) < count:
            for each in self._points(count - len(asked), rng):
                configuration, point = (
                    (self._space.configuration(each), each) if isinstance(each, Point) else (each, None)
                )
                if self._is_new(configuration):
                    self._asked[configuration] = point
                    asked.append(configuration)
                if len(asked) == count:
                    break
        return asked

    def _points(self, count: int, rng: np.random.Generator) -> Iterator[Point | Configuration]:
        near = self._neighbours_of_fastest() if len(self._asked) >= self._descend_after else ()
        return itertools.chain(near, self._propose(count, rng))

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy`."""
        for trial in trials:
            self._asked.setdefault(trial.configuration, None)
            self._outcomes[trial.configuration] = trial.milliseconds

    # -- for subclasses -----------------------------------------------------------------------

    @abc.abstractmethod
    def _propose(self, count: int, rng: np.random.Generator) -> Iterator[Point | Configuration]:
        """Points to ask, or configurations without one, the best first; invalid and known ones are skipped.

        Each is asked before the next is generated. Ends only when nothing is left in the space.
        """

    def _is_new(self, configuration: Configuration) -> bool:
        return configuration not in self._asked and self._space.is_valid(configuration)

    def _trials(self) -> list[Trial]:
        """Outcomes in the order of proposals, whatever the order in which they arrived."""
        return [Trial(each, self._outcomes[each]) for each in self._asked if each in self._outcomes]

    def point_of(self, configuration: Configuration) -> Point | None:
        """The point that was proposed, or else the nearest point; None if the space has none."""
        point = self._asked.get(configuration)
        if point is None:
            point = self._space.nearest_point(configuration)
            if point is not None and configuration in self._asked:
                self._asked[configuration] = point
        return point

    def _fastest(self, count: int) -> list[Point]:
        """The points of the fastest trials, the fastest first."""
        timed = [(trial.milliseconds, trial.configuration) for trial in self._trials() if trial.milliseconds]
        timed.sort(key=lambda each: each[0])
        points = (self.point_of(configuration) for _, configuration in timed[:count])
        return [point for point in points if point is not None]

    def _neighbours_of_fastest(self) -> Iterator[Point]:
        for point in self._fastest(1):
            near = self._space.neighbours(point)
            yield from sorted(near, key=lambda each: self._steps(each, point))

    def _steps(self, one: Point, other: Point) -> int:
        """How many choices lie between two points, over all axes."""
        axes = self._space.spaces[one.space].axes
        return sum(
            abs(axis.choices.index(a) - axis.choices.index(b))
            for axis, a, b in zip(axes, one.choices, other.choices, strict=True)
        )

    def _random_points(self, rng: np.random.Generator) -> Iterator[Point]:
        """New valid points, at random, until nothing is left.

        Spaces are drawn from with equal probability, so that a form with few tiles is not missed among
        forms with many.
        """
        while self._open:
            index = self._open[int(rng.integers(len(self._open)))]
            point = self._random_point(index, rng)
            if point is None:
                self._open.remove(index)
            else:
                yield point

    def _random_point(self, index: int, rng: np.random.Generator) -> Point | None:
        """A new valid point of one space; None if it has none left."""
        is_enumerable = self._space.is_enumerable(index)
        for _ in range(_FEW_TRIES if is_enumerable else _MANY_TRIES):
            point = self._space.draw(rng, index)
            if self._is_new(self._space.configuration(point)):
                return point
        if not is_enumerable:
            return None
        left = [
            point for each, point in self._space.enumerate_valid(index).items() if each not in self._asked
        ]
        return left[int(rng.integers(len(left)))] if left else None


# -- simple ----------------------------------------------------------------------------------------

# Strategies that do not learn.


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

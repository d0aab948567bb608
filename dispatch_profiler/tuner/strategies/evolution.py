"""Strategies of Optuna: a genetic algorithm, and tree-structured Parzen estimators (TPE).

Their parameters are the index of a space and then, for this space alone, a choice for each of its axes.
Optuna knows no rules of validity: an invalid or known point is replaced by a valid one nearby, found by a
random walk along the axes.
"""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.tuner.packages import import_optuna
from dispatch_profiler.tuner.spaces.space import Point, SearchSpace
from dispatch_profiler.tuner.strategies._base import BaseStrategy

if TYPE_CHECKING:
    import optuna

#: Individuals of a generation; TPE's random trials before its first model.
_POPULATION = 16
_RANDOM_TRIALS = 8
#: Steps of a random walk from an invalid point, and walks before random points are proposed.
_STEPS = 12
_WALKS = 3
#: How much slower than the slowest trial a failed one counts.
_FAILURE = 2.0


class _OptunaStrategy(BaseStrategy):
    """Feeds a study in memory. Its values are logarithms of milliseconds."""

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        seeds: Sequence[Configuration] = (),
        descend_after: int | None = None,
    ) -> None:
        super().__init__(space, seed, seeds, descend_after)
        self._optuna = import_optuna(f"the strategy {type(self).__name__.lower()}")
        before = self._optuna.logging.get_verbosity()
        # Optuna reports each study that is created.
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Options of TPE that Optuna calls experimental.
            self._study = self._optuna.create_study(sampler=self._sampler(seed))
        self._optuna.logging.set_verbosity(before)
        self._pending: dict[Configuration, Any] = {}
        self._told: set[Configuration] = set()

    @abc.abstractmethod
    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """The algorithm."""

    def _propose(self, count: int, rng: np.random.Generator) -> Iterator[Point]:
        self._tell_study()
        if self._space.spaces:
            for _ in range(_WALKS * count):
                trial = self._study.ask()
                wanted = self._suggest(trial)
                point = self._new_point_near(wanted, rng)
                if point is None or point != wanted:
                    self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                    trial = None if point is None else self._ask_for(point)
                if point is not None:
                    self._pending[self._space.configuration(point)] = trial
                    yield point
        yield from self._random_points(rng)

    def _new_point_near(self, point: Point, rng: np.random.Generator) -> Point | None:
        for _ in range(_STEPS):
            if self._is_new(self._space.configuration(point)):
                return point
            near = list(self._space.neighbours(point))
            if not near:
                return None
            point = near[int(rng.integers(len(near)))]
        return None

    # -- the study ----------------------------------------------------------------------------

    def _tell_study(self) -> None:
        """Pass on the outcomes received since the last proposals, in the order of proposals."""
        trials = self._trials()
        slowest = max((trial.milliseconds for trial in trials if trial.milliseconds), default=1.0)
        for trial in trials:
            if trial.configuration in self._told:
                continue
            self._told.add(trial.configuration)
            asked = self._pending.pop(trial.configuration, None)
            if asked is None:
                point = self.point_of(trial.configuration)
                asked = None if point is None else self._ask_for(point)
            if asked is not None:
                self._study.tell(asked, math.log(trial.milliseconds or _FAILURE * slowest))

    def _ask_for(self, point: Point) -> optuna.Trial:
        """A trial with the parameters of `point`."""
        self._study.enqueue_trial(self._parameters(point))
        trial = self._study.ask()
        self._suggest(trial)
        return trial

    def _suggest(self, trial: optuna.Trial) -> Point:
        index = trial.suggest_categorical("space", tuple(range(len(self._space.spaces))))
        choices = []
        for axis in self._space.spaces[index].axes:
            name, last = f"{index} {axis.name}", len(axis.choices) - 1
            if last == 0:
                choices.append(axis.choices[0])
            elif type(axis.choices[0]) is int:
                choices.append(axis.choices[trial.suggest_int(name, 0, last)])
            else:
                choices.append(axis.choices[trial.suggest_categorical(name, tuple(range(last + 1)))])
        return Point(index, tuple(choices))

    def _parameters(self, point: Point) -> dict[str, int]:
        axes = self._space.spaces[point.space].axes
        places = {
            f"{point.space} {axis.name}": axis.choices.index(choice)
            for axis, choice in zip(axes, point.choices, strict=True)
            if len(axis.choices) > 1
        }
        return {"space": point.space, **places}


class Genetic(_OptunaStrategy):
    """A genetic algorithm: parents by tournament, uniform crossover, mutation, survival of the fastest."""

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        return self._optuna.samplers.NSGAIISampler(population_size=_POPULATION, seed=seed % 2**32)


class Tpe(_OptunaStrategy):
    """Tree-structured Parzen estimators: densities of fast and of slow choices, for each axis."""

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        return self._optuna.samplers.TPESampler(
            n_startup_trials=_RANDOM_TRIALS,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed % 2**32,
        )

"""The search for one operation: what to evaluate next, replayed from what is known. Uses no clock, device or file.

    proposals -> evaluations -> proposals -> ... until the budget is spent or nothing is left

A search that is started again gets its earlier evaluations as `known`. It asks its strategy for the same
proposals, tells it the known outcomes, and requests only what is missing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dispatch_profiler.configurations import Configuration, Default
from dispatch_profiler.operations import Operation
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.storage.parameters import ParameterSpace
from dispatch_profiler.tuner.strategies import DEFAULT_STRATEGY, Trial, make_strategy

#: Configurations that a strategy proposes at once. The same everywhere, because proposals depend on it.
ROUND_SIZE = 8
#: Seconds of an evaluation before any is known; on two cores, it usually takes half of that.
_LIKELY_SECONDS = 1.0
#: A search ends if its seconds are not enough for this part of an evaluation: a round for a single one leaves cores idle.
_LEAST_PART = 0.5


@dataclass(frozen=True)
class SearchTask:
    """What to search for one operation, and for how long.

    `baselines` are evaluated first, with the first of the valid configurations of `seeds`, which are at most half of
    `evaluations`. Then the strategy proposes; after `descend_after` of its proposals, neighbours of the
    fastest trial come first. The search ends after `evaluations` configurations, baselines included, after
    `seconds` of compiling and measuring, when the space has nothing left, or when the strategy has twice expected a
    round to make the fastest faster by less than `least_gain` (0.02 for 2 %). It may have expected too little once.

    With `follows`, an operation that differs in its epilogue only and is searched beside it, the search is brief: the
    baselines and the likeliest seed, and then the fastest configurations of that operation (`following`).
    """

    space: SearchSpace
    baselines: tuple[Configuration, ...] = (Default(),)
    seeds: tuple[Configuration, ...] = ()
    strategy: str = DEFAULT_STRATEGY
    seed: int = 0
    evaluations: int | None = 64
    seconds: float | None = None
    descend_after: int | None = None
    least_gain: float = 0.0
    follows: Operation | None = None

    @property
    def operation(self) -> Operation:
        return self.space.operation

    @property
    def parameters(self) -> ParameterSpace:
        """The fields of its configurations, as a storage keeps them."""
        return ParameterSpace.of(self.space, (*self.baselines, *self.seeds))

    @property
    def chosen_seeds(self) -> tuple[Configuration, ...]:
        """Baselines, and as many seeds as leave the strategy half of the evaluations."""
        most = len(self.seeds) if self.evaluations is None else self.evaluations // 2
        return tuple(dict.fromkeys((*self.baselines, *self.seeds[:most])))

    @property
    def first_round(self) -> tuple[Configuration, ...]:
        """The baselines, and valid seeds up to the size of a round: more to compile at once."""
        baselines = tuple(dict.fromkeys(self.baselines))
        others = (each for each in self.chosen_seeds if each not in baselines and self.space.is_valid(each))
        return (*baselines, *itertools.islice(others, max(0, ROUND_SIZE - len(baselines))))

    def limited_to(self, configurations: Sequence[Configuration]) -> SearchTask:
        """The search that evaluates `configurations` only, as many as the budget allows."""
        several = tuple(dict.fromkeys(configurations))
        count = len(several) if self.evaluations is None else min(self.evaluations, len(several))
        return replace(self, baselines=several, seeds=(), evaluations=count)


#: Configurations that an operation takes from the search for the same operation with another epilogue.
FOLLOWED = 3


def beside_leader(task: SearchTask) -> SearchTask:
    """What is evaluated of an operation while the operation that it follows is searched; `task` if it follows none.

    The likeliest seed is what launches use without tuning if they pack the weight.
    """
    return task.limited_to((*task.baselines, *task.seeds[:1])) if task.follows else task


def following(task: SearchTask, leader: Sequence[Evaluation]) -> SearchTask:
    """The search for an operation whose sums were searched with another epilogue: what was evaluated, and the fastest there.

    `task` itself if none of these is verified there and valid here.
    """
    first = beside_leader(task).baselines
    fastest = finalists(leader, FOLLOWED + len(first))
    others = [each.configuration for each in fastest if each.configuration not in first]
    chosen = [each for each in others if task.space.is_valid(each)][:FOLLOWED]
    return task.limited_to((*first, *chosen)) if chosen else task


class OperationSearch:
    """The state of one search. `known` are evaluations of an earlier run, in any order."""

    def __init__(self, task: SearchTask, known: Sequence[Evaluation] = ()) -> None:
        self.task = task
        self._known = {each.configuration: each for each in known}
        self._strategy = make_strategy(
            task.strategy, task.space, task.seed, task.chosen_seeds, task.descend_after
        )
        #: Evaluations that the strategy has received, in the order of its proposals.
        self._told: list[Evaluation] = []
        #: Proposals of the current round: the strategy receives their outcomes together.
        self._round: tuple[Configuration, ...] = task.first_round
        self._is_exhausted = False
        #: The gain that the strategy expected of the current round.
        self._gain = math.inf
        self._is_settled = False
        # How many seeds come first depends on the budget, so that a run with a smaller budget proposes otherwise.
        has_baselines = all(each in self._known for each in task.baselines)
        #: Whether earlier runs have spent the budget: nothing is evaluated, whatever they proposed.
        self._knows_enough = has_baselines and len(self._known) >= (task.evaluations or math.inf)
        #: Whether it was spent by them, and more would have been evaluated.
        self._is_spent = False

    @property
    def operation(self) -> Operation:
        return self.task.operation

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Everything that is known, the evaluated proposals first."""
        proposed = {each.configuration: each for each in self.proposed}
        return tuple({**proposed, **self._known}.values())

    @property
    def proposed(self) -> list[Evaluation]:
        """The evaluated proposals, in order, as many as the budget allows."""
        current = [self._known[each] for each in self._round if each in self._known]
        return [*self._told, *current][: self.task.evaluations]

    @property
    def default(self) -> Evaluation | None:
        """The evaluation of the compiler's choice, if it has a time."""
        evaluation = self._known.get(Default())
        return evaluation if evaluation is not None and evaluation.milliseconds is not None else None

    @property
    def best(self) -> Evaluation | None:
        """The fastest verified evaluation; None if no evaluation is verified."""
        return fastest(self.evaluations)

    @property
    def ended_by(self) -> str:
        """Why there are no more proposals: `evaluations`, `seconds`, `gain` or `exhausted`; empty before."""
        task, proposed = self.task, self.proposed
        if task.evaluations is not None and (self._is_spent or len(proposed) >= task.evaluations):
            return "evaluations"
        if proposed and self._fitting < _LEAST_PART:
            return "seconds"
        return "gain" if self._is_settled else "exhausted" if self._is_exhausted else ""

    @property
    def round(self) -> tuple[Configuration, ...]:
        """What is evaluated now."""
        return self._round

    @property
    def is_last_round(self) -> bool:
        """Whether the current round is all that the budget allows."""
        budget = self.task.evaluations
        missing = sum(each not in self._known for each in self._round)
        is_timely = bool(self.proposed) and self._fitting - missing < _LEAST_PART
        return is_timely or (budget is not None and len(self._told) + len(self._round) >= budget)

    def next_configurations(self) -> list[Configuration]:
        """The configurations to evaluate now: a round, or the rest of a round; empty if the search is done.

        Pass each outcome to `add`, and then call this again.
        """
        while not self.ended_by:
            missing = [each for each in self._round if each not in self._known]
            if missing and self._knows_enough:
                self._is_spent = True
                return []
            if missing:
                return missing[: self._affordable()]
            self._finish_round()
        return []

    def add(self, evaluation: Evaluation) -> None:
        """Receive the outcome of a configuration that was requested."""
        self._known[evaluation.configuration] = evaluation

    def _finish_round(self) -> None:
        """Tell the strategy the outcomes of the round, and ask for the next one."""
        outcomes = [self._known[each] for each in self._round]
        self._told += outcomes
        self._strategy.tell([Trial(each.configuration, each.milliseconds) for each in outcomes])
        self._round = tuple(self._strategy.ask(ROUND_SIZE))
        self._is_exhausted = not self._round
        before, self._gain = self._gain, self._strategy.expected_gain
        self._is_settled = bool(self._round) and max(before, self._gain) < self.task.least_gain

    def _affordable(self) -> int:
        """How many more evaluations the budget allows, at least 1."""
        count = ROUND_SIZE if self.task.evaluations is None else self.task.evaluations - len(self.proposed)
        if math.isfinite(fitting := self._fitting):
            count = min(count, int(fitting + _LEAST_PART))
        return max(1, count)

    @property
    def _fitting(self) -> float:
        """How many evaluations like the last ones fit into the seconds that are left; infinite without a limit.

        Before any is known, the baselines fit.
        """
        task, proposed = self.task, self.proposed
        if task.seconds is None:
            return math.inf
        if not (spent := sum(each.seconds for each in proposed)):
            return max(len(task.baselines), task.seconds / _LIKELY_SECONDS)
        last = proposed[-ROUND_SIZE:]
        seconds = sum(each.seconds for each in last) / len(last) or spent / len(proposed)
        return (task.seconds - spent) / seconds


def fastest(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """The fastest verified evaluation that was measured to the end; the first of equally fast evaluations."""
    times = [
        (each.milliseconds, place)
        for place, each in enumerate(evaluations)
        if each.milliseconds is not None and not each.was_abandoned
    ]
    return evaluations[min(times)[1]] if times else None


def finalists(evaluations: Sequence[Evaluation], count: int) -> tuple[Evaluation, ...]:
    """The `count` fastest verified evaluations with different kernels, the fastest first."""
    distinct = [each for each in evaluations if each.milliseconds and not each.same_kernel_as]
    return tuple(sorted(distinct, key=lambda each: each.milliseconds or 0.0)[:count])

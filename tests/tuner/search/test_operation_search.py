"""The search for one operation, fed with invented times: what it requests, in which order, and when it ends."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from search_samples import OPERATION, evaluation, failure

from dispatch_profiler.configurations import Axis, Configuration, CpuTiles, Default, Space
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.targets import NullTarget
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.search import operation_search
from dispatch_profiler.tuner.search.operation_search import ROUND_SIZE, OperationSearch, SearchTask, fastest
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.strategies import STRATEGIES

AXES = (
    Axis("distribution_m", (16,), "distribution"),
    Axis("distribution_n", (16, 32), "distribution"),
    Axis("vector_m", (1, 2, 4, 8, 16), "vector"),
    Axis("vector_n", (1, 2, 4, 8, 16), "vector"),
    Axis("vector_k", (1,), "vector"),
)
TILES: Space[Configuration] = Space(CpuTiles, AXES)
EVERY = [TILES.to_configuration(point) for point in TILES.points()]


def task(**options: object) -> SearchTask:
    return SearchTask(
        SearchSpace(OPERATION, NullTarget().limits, [TILES]), **{"strategy": "random", **options}
    )


def milliseconds(configuration: Configuration) -> float:
    """An invented time, with a minimum inside the space."""
    if not isinstance(configuration, CpuTiles):
        return 3.0
    m, n, _ = configuration.vector
    return 1.0 + abs(m - 4) / 10 + abs(n - 8) / 20 + configuration.distribution[1] / 100


def outcome(configuration: Configuration) -> Evaluation:
    """Some have no time."""
    if configuration in EVERY[3::7]:
        return replace(failure(configuration, Verdict.FAILED, "wrong"), seconds=1.0)
    return replace(evaluation(configuration, milliseconds(configuration)), seconds=1.0)


def rounds(search: OperationSearch, most: int = 1000) -> list[list[Configuration]]:
    """What is requested until the search is done, or for `most` rounds."""
    found = []
    while len(found) < most and (requested := search.next_configurations()):
        for configuration in requested:
            search.add(outcome(configuration))
        found.append(requested)
    return found


def test_the_first_round_has_the_baselines_and_seeds():
    """Seeds that do not fit are in the second one, and seeds are left out."""
    invalid = CpuTiles((16, 32), (8, 8, 8, 1))
    search = OperationSearch(
        task(baselines=(Default(), EVERY[9]), seeds=(EVERY[5], invalid, EVERY[9], EVERY[4]))
    )
    first, second, *_ = rounds(search)
    assert first == [Default(), EVERY[9], EVERY[5], EVERY[4]]
    assert len(second) == ROUND_SIZE and not {*first} & {*second}

    many = OperationSearch(task(seeds=tuple(EVERY[:10]), evaluations=None))
    first, second, *_ = rounds(many)
    assert first == [Default(), *EVERY[: ROUND_SIZE - 1]]
    assert second[:3] == EVERY[ROUND_SIZE - 1 : 10] and len(second) == ROUND_SIZE


def test_seeds_leave_the_strategy_half_of_the_evaluations():
    chosen = task(seeds=tuple(EVERY), evaluations=16).chosen_seeds
    assert chosen == (Default(), *EVERY[:8])
    assert task(seeds=tuple(EVERY), evaluations=None).chosen_seeds == (Default(), *EVERY)


def test_a_search_ends_when_nothing_is_left():
    """Everything was requested once."""
    search = OperationSearch(task(evaluations=None))
    requested = [each for group in rounds(search) for each in group]
    assert sorted(requested, key=repr) == sorted([Default(), *EVERY], key=repr)
    assert search.ended_by == "exhausted"
    assert search.best is not None and search.best.milliseconds == min(map(milliseconds, EVERY))


@pytest.mark.parametrize("evaluations", [1, 2, 9, 10, 20])
def test_a_search_ends_after_its_evaluations(evaluations: int):
    search = OperationSearch(task(evaluations=evaluations))
    assert sum(map(len, rounds(search))) == evaluations
    assert search.ended_by == "evaluations"
    assert search.next_configurations() == []


def test_a_search_ends_after_its_seconds():
    """Each evaluation takes 1 s: a round is cut short where the time is used up."""
    search = OperationSearch(task(evaluations=None, seconds=12.0))
    rounds(search)
    assert search.ended_by == "seconds"
    assert sum(each.seconds for each in search.proposed) == 12.0


@pytest.mark.parametrize(("seconds", "spent"), [(12.4, 12.0), (12.6, 13.0)])
def test_less_than_half_an_evaluation_is_not_worth_a_round(seconds: float, spent: float):
    search = OperationSearch(task(evaluations=None, seconds=seconds))
    rounds(search)
    assert sum(each.seconds for each in search.proposed) == spent


def test_before_any_time_is_known_a_search_with_enough_of_it_begins_with_a_whole_round():
    """One second for each, but the baselines in any case."""
    known = replace(task(evaluations=None), baselines=tuple(EVERY[:2]), seeds=tuple(EVERY[2:10]))
    for seconds, count in ((1.0, 2), (5.0, 5), (60.0, 8)):
        search = OperationSearch(replace(known, seconds=seconds))
        assert search.next_configurations() == EVERY[:count]


def test_the_last_evaluations_say_how_many_more_fit():
    """The first eight take 2 s each, others half a second: of the 9 s that are left of 25, 18 of these use all."""
    search = OperationSearch(task(evaluations=None, seeds=tuple(EVERY[:7]), seconds=25.0))
    sizes, is_last = [], []
    while configurations := search.next_configurations():
        seconds = 0.5 if sizes else 2.0
        sizes.append(len(configurations))
        is_last.append(search.is_last_round)
        for each in configurations:
            search.add(replace(outcome(each), seconds=seconds))
    assert sizes[0] == 8 and sum(sizes) == 8 + 18
    assert not is_last[0] and is_last[-1]


class Expecting:
    """A strategy that expects a gain of each of its rounds."""

    def __init__(self, *gains: float) -> None:
        self._gains = iter(gains)
        self._left = iter(EVERY)
        self.expected_gain = math.inf

    def ask(self, count: int) -> list[Configuration]:
        self.expected_gain = next(self._gains)
        return list(itertools.islice(self._left, count))

    def tell(self, trials: object) -> None:
        pass


@pytest.mark.parametrize(
    ("gains", "rounds_of_the_strategy", "ended_by"),
    [
        # The second round in a row that promises less than 2 % is not evaluated.
        ((0.5, 0.01, 0.019), 2, "gain"),
        ((0.01, 0.001), 1, "gain"),
        # One may be an error of the model, as a larger promise after it says.
        ((0.01, 0.1, 0.01, 0.03), 7, "exhausted"),
        # A strategy that expects nothing in particular.
        ((math.inf, math.inf), 7, "exhausted"),
    ],
)
def test_a_search_ends_when_little_more_is_expected(monkeypatch, gains, rounds_of_the_strategy, ended_by):
    monkeypatch.setattr(operation_search, "make_strategy", lambda *_: Expecting(*gains, *[math.inf] * 20))
    search = OperationSearch(task(evaluations=None, least_gain=0.02))
    baselines, *others = rounds(search)
    assert baselines == [Default()] and len(others) == rounds_of_the_strategy
    assert search.ended_by == ended_by


def test_without_a_least_gain_a_search_continues(monkeypatch):
    monkeypatch.setattr(operation_search, "make_strategy", lambda *_: Expecting(*[0.0] * 20))
    search = OperationSearch(task(evaluations=None))
    assert sum(map(len, rounds(search))) == 1 + len(EVERY) and search.ended_by == "exhausted"


@pytest.mark.some(14)
@pytest.mark.parametrize("known", [0, 1, 5, 9, 10, 23, 40])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_a_search_continues_as_if_it_had_not_been_interrupted(strategy: str, known: int):
    """Whatever is known of it, in any order: the rest of a round is requested, then the same rounds follow."""
    whole = OperationSearch(task(strategy=strategy, evaluations=40))
    order = [each for group in rounds(whole) for each in group]

    again = OperationSearch(
        task(strategy=strategy, evaluations=40), list(map(outcome, reversed(order[:known])))
    )
    assert [each for group in rounds(again) for each in group] == order[known:]
    assert [each.configuration for each in again.proposed] == order
    assert again.best == whole.best and again.ended_by == whole.ended_by


def test_a_larger_budget_continues_the_same_sequence():
    whole = [each for group in rounds(OperationSearch(task(evaluations=33))) for each in group]
    known: list[Evaluation] = []
    for budget in (1, 5, 6, 20, 33):
        search = OperationSearch(task(evaluations=budget), known)
        rounds(search)
        known = list(search.evaluations)
    assert [each.configuration for each in known] == whole


@pytest.mark.parametrize(("first", "second"), [(17, 10), (17, 17), (33, 16), (33, 1)])
def test_nothing_is_evaluated_if_earlier_runs_have_spent_the_budget(first: int, second: int):
    """How many seeds come first depends on the budget, so that the second run would propose others."""
    seeds = tuple(EVERY[:30])
    known = OperationSearch(task(evaluations=first, seeds=seeds))
    rounds(known)
    again = OperationSearch(task(evaluations=second, seeds=seeds), known.evaluations)
    assert rounds(again) == []
    assert len(again.evaluations) == first
    assert again.ended_by == "evaluations"
    assert again.best == fastest(again.evaluations)


def test_what_is_known_but_not_proposed_again_counts_for_the_best():
    """A search of other seeds measured it."""
    best = evaluation(CpuTiles((8, 8), (8, 8, 1)), 0.1)
    search = OperationSearch(task(evaluations=3), [best])
    assert sum(map(len, rounds(search))) == 3
    assert search.best == best and search.evaluations[-1] == best
    assert len(search.proposed) == 3


def test_only_verified_evaluations_that_were_measured_to_the_end_can_win():
    slow, quick = evaluation(EVERY[0], 2.0), evaluation(EVERY[1], 1.0)
    measurement = quick.record.measurement
    assert measurement is not None
    others = [
        replace(quick, record=replace(quick.record, **change))
        for change in (
            {"verdict": Verdict.FAILED},
            {"verdict": Verdict.NOT_VERIFIED},
            {"measurement": replace(measurement, ended_by="abandoned")},
            {"measurement": replace(measurement, ended_by="interrupted")},
            {"measurement": None},
        )
    ]
    assert [each.milliseconds for each in others] == [None, None, 1.0, None, None]
    assert fastest([*others, slow]) == slow
    assert fastest([*others, slow, quick]) == quick
    assert fastest(others) is None


def test_a_search_ends_with_the_neighbours_of_the_fastest():
    """Those that are not known yet, before anything else."""
    search = OperationSearch(task(evaluations=33, descend_after=17))
    *before, last = [*rounds(search, 3), search.next_configurations()]
    known = {each: outcome(each).milliseconds for group in before for each in group}
    assert len(known) == 17
    best = min((each for each in known if known[each]), key=lambda each: known[each] or 0.0)
    point = search.task.space.nearest_point(best)
    assert point is not None
    near = {search.task.space.configuration(each) for each in search.task.space.neighbours(point)}
    assert set(last[: len(near - known.keys())]) == near - known.keys()

"""What holds for every strategy: nothing invalid, nothing twice, seeds first, and the same again."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_spaces import CONVOLUTION, CPU, MATMUL, SEEDS, every_valid, invented_time, run, search_spaces

from dispatch_profiler.configurations import Configuration, CpuTiles, Default
from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.strategies import DEFAULT_STRATEGY, STRATEGIES, Trial, make_strategy

NAMES = pytest.mark.parametrize("name", STRATEGIES)
COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@NAMES
@settings(max_examples=4)
@given(space=search_spaces(), counts=COUNTS, seed=st.integers(0, 2**32 - 1))
def test_nothing_invalid_is_proposed_and_nothing_twice(name: str, space: SearchSpace, counts, seed: int):
    asked = run(make_strategy(name, space, seed, SEEDS), counts)
    assert len(set(asked)) == len(asked)
    assert all(map(space.is_valid, asked))


@NAMES
@settings(max_examples=3)
@given(space=search_spaces(), seed=st.integers(0, 99))
def test_a_small_space_is_exhausted_and_then_nothing_is_proposed(name: str, space: SearchSpace, seed: int):
    strategy = make_strategy(name, space, seed, SEEDS)
    valid = every_valid(space) | {each for each in SEEDS if space.is_valid(each)}
    asked = run(strategy, [1 + len(valid) // 3] * 5)
    assert set(asked) == valid
    assert strategy.ask(3) == []


@NAMES
@settings(max_examples=4)
@given(space=search_spaces(), counts=COUNTS, kept=st.integers(0, 5), seed=st.integers(0, 99))
def test_a_history_that_is_told_again_up_to_any_round_continues_alike(
    name: str, space: SearchSpace, counts, kept: int, seed: int
):
    """Even if the outcomes of a round arrive in another order."""
    whole = run(make_strategy(name, space, seed, SEEDS), counts)
    again = make_strategy(name, space, seed, SEEDS)
    head = []
    for count in counts[:kept]:
        batch = list(again.ask(count))
        head += batch
        random.Random(seed).shuffle(batch)
        again.tell([Trial(each, invented_time(each)) for each in batch])
    assert head + run(again, counts[kept:]) == whole


@NAMES
@settings(max_examples=4)
@given(space=search_spaces(), counts=COUNTS, seed=st.integers(0, 99))
def test_proposals_do_not_depend_on_what_was_asked_of_the_space_before(
    name: str, space: SearchSpace, counts, seed: int
):
    """Searches of one operation share a space, which remembers what is valid."""
    first = run(make_strategy(name, space, seed, SEEDS), counts)
    every_valid(space)
    assert run(make_strategy(name, space, seed, SEEDS), counts) == first


@NAMES
def test_seeds_come_first_and_invalid_ones_are_left_out(name: str):
    invalid = CpuTiles((7, 7), (5, 3, 1))
    space = SearchSpace(MATMUL, CPU)
    strategy = make_strategy(name, space, 0, [Default(), invalid, SEEDS[1], Default()])
    assert list(strategy.ask(1)) == [Default()]
    assert strategy.ask(2)[0] == SEEDS[1]


@NAMES
def test_a_large_space_of_many_forms_is_searched(name: str):
    space = SearchSpace(CONVOLUTION, CPU)
    assert space.size > 10**6
    assert len(run(make_strategy(name, space, 3, SEEDS), [8, 8, 8])) == 24


@pytest.mark.parametrize("name", ["prior", "surrogate"])
def test_models_propose_nothing_invalid_where_most_points_are(name: str):
    """They rank points before they ask for reasons to reject them."""
    space = SearchSpace(CONVOLUTION, parse_target("cuda:sm_80").limits)
    asked = run(make_strategy(name, space, 1), [8, 8, 8])
    assert len(set(asked)) == 24
    assert all(map(space.is_valid, asked))


@NAMES
def test_proposals_continue_when_every_trial_failed(name: str):
    strategy = make_strategy(name, SearchSpace(MATMUL, CPU), 0, SEEDS)
    for _ in range(3):
        batch = strategy.ask(6)
        assert len(batch) == 6
        strategy.tell([Trial(each, None) for each in batch])


@NAMES
def test_trials_that_were_not_asked_are_not_proposed(name: str):
    """Those of an earlier search, for example."""
    space = SearchSpace(MATMUL, CPU)
    told = run(make_strategy(name, space, 0), [12])
    strategy = make_strategy(name, space, 0)
    strategy.tell([Trial(each, invented_time(each)) for each in told])
    assert not set(told) & set(run(strategy, [6, 6]))


@NAMES
def test_what_is_asked_before_the_last_round_is_told_is_new(name: str):
    strategy = make_strategy(name, SearchSpace(MATMUL, CPU), 0, SEEDS)
    first, second = strategy.ask(5), strategy.ask(5)
    strategy.tell([Trial(each, invented_time(each)) for each in first])
    third = strategy.ask(5)
    assert len({*first, *second, *third}) == 15


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "exhaustive"])
def test_another_seed_proposes_others(name: str):
    space = SearchSpace(MATMUL, CPU)
    assert run(make_strategy(name, space, 1), [20]) != run(make_strategy(name, space, 2), [20])


# -- by name -----------------------------------------------------------------------------------------


def test_an_unknown_strategy_is_rejected_with_the_nearest_name():
    with pytest.raises(UsageError, match="unknown strategy 'radom'") as raised:
        make_strategy("radom", SearchSpace(MATMUL, CPU))
    assert "did you mean 'random'?" in raised.value.hint


def test_the_default_is_one_of_them():
    assert DEFAULT_STRATEGY in STRATEGIES


@pytest.mark.parametrize("milliseconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_trial_that_failed_has_no_time(milliseconds: float):
    with pytest.raises(ValueError, match="positive and finite, or None"):
        Trial(Default(), milliseconds)


# -- the descent at the end --------------------------------------------------------------------------


@NAMES
def test_a_strategy_ends_with_the_neighbours_of_the_fastest_trial(name: str):
    """All that differ in one axis, the nearest choices first; and those of a faster one once it is found."""
    space = SearchSpace(MATMUL, CPU)
    strategy = make_strategy(name, space, 0, SEEDS, descend_after=10)
    times: dict[Configuration, float | None] = {}

    def evaluate(count: int) -> list[Configuration]:
        batch = list(strategy.ask(count))
        for each in batch:
            times[each] = invented_time(each)
        strategy.tell([Trial(each, times[each]) for each in batch])
        return batch

    evaluate(10)
    for _ in range(5):
        # Of equally fast ones, the first that was proposed.
        fastest = min((each for each in times if times[each] is not None), key=times.__getitem__)
        point = space.nearest_point(fastest)
        assert point is not None
        # Several points map to one configuration; the strategy keeps the one that it proposed.
        before = set(times)
        batch = evaluate(4)
        left = [each for each in neighbours_of(strategy, space, fastest) if each not in before]
        assert set(batch[: len(left)]) <= set(left)


def neighbours_of(strategy, space: SearchSpace, configuration: Configuration) -> list[Configuration]:
    near = space.neighbours(strategy.point_of(configuration))
    return list(dict.fromkeys(each for each in map(space.configuration, near) if space.is_valid(each)))


@settings(max_examples=10)
@given(space=search_spaces(), counts=COUNTS, seed=st.integers(0, 99))
def test_a_descent_proposes_nothing_invalid_and_nothing_twice(space: SearchSpace, counts, seed: int):
    asked = run(make_strategy("random", space, seed, SEEDS, descend_after=5), counts)
    assert len(set(asked)) == len(asked)
    assert all(map(space.is_valid, asked))


# -- what they require -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("genetic", "optuna", "optuna>=4.0,<5"), ("tpe", "optuna", "optuna>=4.0,<5"), ("surrogate", "sklearn", "scikit-learn>=1.4")],
)  # fmt: skip
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    name: str, module: str, package: str, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency) as raised:
        make_strategy(name, SearchSpace(MATMUL, CPU))
    assert raised.value.hint == f"python -m pip install '{package}'"

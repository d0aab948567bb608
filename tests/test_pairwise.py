"""The choice of combinations: no pair is lost, and it is a small part of all."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pairwise import covering, groups_of, pairwise, parametrize_pairwise

ROWS = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(0, 3)] * width), min_size=1, max_size=60)
)


@given(ROWS, st.integers(1, 2))
def test_every_group_that_occurs_is_chosen_in_the_order_of_the_rows(rows: list[tuple[int, ...]], size: int):
    chosen = covering(rows, size)

    every, held = (set().union(*(groups_of(row, size) for row in each)) for each in (rows, chosen))
    assert held == every
    assert sorted(chosen, key=rows.index) == chosen
    assert len(set(chosen)) == len(chosen)


def test_pairs_are_groups_of_two():
    assert groups_of(("a", 1, "a"), 2) == {((0, "a"), (1, 1)), ((0, "a"), (2, "a")), ((1, 1), (2, "a"))}
    assert pairwise([(1, 1), (1, 2), (2, 1), (2, 2)]) == covering([(1, 1), (1, 2), (2, 1), (2, 2)], 2)
    assert covering([(1, 1), (1, 2), (2, 1), (2, 2)], 1) == [(1, 1), (2, 2)]


def test_two_parameters_have_only_pairs():
    rows = list(itertools.product(range(3), "ab"))

    assert pairwise(rows) == rows


def test_many_parameters_need_few_rows():
    """Ten of two values: 1,024 combinations. 6 rows are the fewest possible; greedy needs a few more."""
    rows = list(itertools.product([0, 1], repeat=10))

    assert 6 <= len(pairwise(rows)) <= 12


def test_the_same_rows_give_the_same_choice():
    rows = [row for row in itertools.product("abcde", range(4), [True, False]) if row[1] or row[2]]

    assert pairwise(rows) == pairwise(list(rows))


def test_a_value_means_another_thing_in_another_place():
    assert pairwise([(1, 2, 3), (3, 2, 1)]) == [(1, 2, 3), (3, 2, 1)]


def test_what_is_left_out_is_slow():
    rows = list(itertools.product([0, 1], repeat=4))

    mark = parametrize_pairwise(("a", "b", "c", "d"), rows).mark

    by_default = [p.values for p in mark.args[1] if not p.marks]
    assert by_default == pairwise(rows)
    assert sorted(p.values for p in mark.args[1]) == rows
    assert {m.name for p in mark.args[1] for m in p.marks} == {pytest.mark.slow.name}

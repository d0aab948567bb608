"""How the time of a search is divided among problems."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.operations import LayerNorm, Matmul
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.commands.arguments import duration
from dispatch_profiler.tuner.tunings.time_limit import allotted
from dispatch_profiler.tuner.tunings.tuning_file import SharedTime, Tuning

CPU = parse_target("llvm-cpu")


def tuning(size: int, count: int = 1, evaluations: int | None = 64) -> Tuning:
    return Tuning(
        f"P{size}_{count}", Matmul(size, size, size), CPU, "local-task", count, evaluations=evaluations
    )


def counts(*tunings: Tuning, seconds: float, cores: int = 2) -> list[int | None]:
    return [each.evaluations for each in allotted(tunings, seconds, cores).tunings]


def test_all_evaluations_together_fit_into_the_time():
    """One a second on two cores, four on sixteen, as measured."""
    several = [tuning(size) for size in (256, 512, 768, 1024)]
    assert 95 <= sum(filter(None, counts(*several, seconds=100.0))) <= 100
    assert 80 <= sum(filter(None, counts(*several, seconds=20.0, cores=16))) <= 85


def test_more_work_has_more_evaluations_but_not_in_proportion():
    """Whether it is a larger operation or one that runs more often. Eight times the work has nearly three times as many."""
    small, large, frequent = tuning(256), tuning(512), tuning(256, count=8)
    few, many, often = counts(small, large, frequent, seconds=60.0)
    assert few is not None and many is not None and often is not None
    assert 2 * few <= many <= 3 * few and 2 * few <= often <= 3 * few


def test_the_limits_of_files_and_options_hold():
    assert counts(tuning(512, evaluations=3), tuning(512), seconds=1000.0) == [3, 64]
    assert counts(tuning(512, evaluations=None), seconds=1000.0) == [64]


def test_problems_with_the_least_work_are_left_out():
    found = allotted([tuning(64), tuning(512), tuning(128), tuning(256)], 8.0, 2)
    assert [each.name for each in found.tunings] == ["P512_1", "P256_1"]
    assert [each.name for each in found.left_out] == ["P64_1", "P128_1"]


def test_one_problem_is_always_searched():
    assert counts(tuning(64), tuning(512), seconds=1e-3) == [4]


def test_operations_without_products_have_work_too():
    norm = Tuning("N", LayerNorm(4096, 768), CPU, "local-task")
    few, many = counts(tuning(64), norm, seconds=60.0)
    assert few is not None and many is not None and few < many


@given(
    st.lists(st.tuples(st.integers(1, 2048), st.integers(1, 100)), min_size=1, max_size=40),
    st.floats(0.1, 1e4),
    st.integers(1, 256),
)
def test_no_problem_is_lost_and_each_has_a_chance(shapes, seconds: float, cores: int):
    tunings = [tuning(size, count) for size, count in shapes]
    found = allotted(tunings, seconds, cores)
    assert sorted(each.name for each in (*found.tunings, *found.left_out)) == sorted(
        each.name for each in tunings
    )
    assert found.tunings and all(4 <= (each.evaluations or 0) <= 64 for each in found.tunings)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1.5m", 90), ("1h", 3600), (" 2 m ", 120)],
)
def test_a_time_has_a_unit(text: str, seconds: float):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-3", "5 minutes", "1d", "m", "1e3", "inf", "nan", "1:30", "٣"])
def test_other_times_are_errors(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a time such as 90s, 5m or 1h, but got"):
        duration(text)


def test_targets_that_are_searched_one_after_the_other_share_the_time():
    """In proportion to their evaluations; what one leaves goes to the next."""
    now = [100.0]
    shared = SharedTime(60.0, [10, 20, None, 6], lambda: now[0])
    assert shared.next_part([10, 20]) == pytest.approx(60.0 * 30 / 100)
    now[0] += 10.0
    assert shared.next_part([None]) == pytest.approx(50.0 * 64 / 70)
    now[0] += 50.0
    assert shared.next_part([6]) == 0.0
    assert SharedTime(None, [10]).next_part([10]) is None

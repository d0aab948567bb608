"""Shares of a workload, on numbers with known answers, and the summary that holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.tuner.tunings.problems import TuningProblem
from dispatch_profiler.tuner.tunings.shares import (
    FLOPS,
    TIME,
    DefaultTime,
    Weighed,
    read_summary,
    shares_of,
    summary_text,
)


def weighed(number: int, count: int, milliseconds: float | None) -> Weighed:
    problem = TuningProblem(f"SSS_NN_{number}", Matmul(number + 1, 4, 4), count, f'a "log", {number}')
    if milliseconds is None:
        return Weighed(problem, None, reason="no untuned configuration is correct (FAILED: x, y)")
    time = DefaultTime(milliseconds, 0.9 * milliseconds, 1.1 * milliseconds, "tile_config_default")
    return Weighed(problem, milliseconds, time)


#: 60 + 30 + 10 ms.
WORKLOAD = (weighed(0, 6, 10.0), weighed(1, 30, 1.0), weighed(2, 1, 10.0))


def test_a_share_is_count_times_time_of_the_whole():
    assert [each.percent for each in shares_of(WORKLOAD)] == [60.0, 30.0, 10.0]


@pytest.mark.parametrize(
    ("threshold", "kept"), [(0, [0, 1, 2]), (10, [0, 1, 2]), (10.1, [0, 1]), (30.1, [0]), (61, [])]
)
def test_problems_of_at_least_the_threshold_are_kept(threshold: float, kept: list[int]):
    shares = shares_of(WORKLOAD, threshold)
    assert [at for at, each in enumerate(shares) if each.is_kept] == kept
    reasons = {each.reason for each in shares if not each.is_kept}
    assert reasons <= {f"its share is below {threshold:g} %"}


def test_one_without_a_time_changes_no_other_share_and_is_not_kept():
    shares = shares_of((*WORKLOAD, weighed(3, 99, None)))
    assert [each.percent for each in shares] == [60.0, 30.0, 10.0, None]
    assert (shares[3].is_kept, shares[3].reason) == (False, weighed(3, 99, None).reason)


def test_nothing_but_unknown_times_gives_no_shares():
    assert [each.percent for each in shares_of([weighed(0, 1, None)])] == [None]
    assert shares_of([]) == ()


@pytest.mark.parametrize("weighed_by", [TIME, FLOPS])
def test_a_summary_is_read_back(weighed_by: str):
    shares = shares_of((*WORKLOAD, weighed(3, 99, None)), 20.0)
    Path("summary.csv").write_text(summary_text(shares, weighed_by))
    found = read_summary(Path("summary.csv"))
    assert [(each.problem, each.operation, each.count) for each in found] == [
        (each.problem.name, each.problem.operation.name, each.problem.count) for each in shares
    ]
    assert [each.percent for each in found] == [each.percent for each in shares]
    assert [each.milliseconds for each in found] == [10.0, 1.0, 10.0, None]
    assert [each.is_kept for each in found] == [True, True, False, False]
    assert {each.weighed_by for each in found} == {weighed_by}


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("problem,operation", "problem,name", "is not a summary: it has no column operation"),
        ("SSS_NN_1,", "SSS_NN_0,", "line 3: SSS_NN_0 is listed twice"),
        ("SSS_NN_1,", ",", "line 3: problem is missing"),
        (",30,", ",-3,", "line 3: count: expected a whole number, but got '-3'"),
        (",60.0,", ",nan,", "line 2: share(%): expected a number of at least 0, but got 'nan'"),
        (",60.0,", ",inf,", "line 2: share(%): expected a number of at least 0"),
        (",yes,", ",maybe,", "line 2: kept: expected yes or no, but got 'maybe'"),
        (",time,", ",mass,", "line 2: weighed_by: expected time or flops, but got 'mass'"),
    ],
)
def test_a_damaged_summary_is_rejected_with_its_line(before: str, after: str, reason: str):
    text = summary_text(shares_of(WORKLOAD), TIME)
    assert before in text
    Path("summary.csv").write_text(text.replace(before, after, 1))
    with pytest.raises(UsageError) as caught:
        read_summary(Path("summary.csv"))
    assert reason in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"problem", b"a,b\n" * 10])
def test_other_files_are_no_summaries(content: bytes):
    Path("summary.csv").write_bytes(content)
    with pytest.raises(UsageError, match=r"summary\.csv"):
        read_summary(Path("summary.csv"))


def test_a_line_with_too_few_values_is_rejected():
    text = summary_text(shares_of(WORKLOAD), TIME)
    Path("summary.csv").write_text(text + "SSS_NN_9,matmul\n")
    with pytest.raises(UsageError, match="line 5: count: expected a whole number"):
        read_summary(Path("summary.csv"))

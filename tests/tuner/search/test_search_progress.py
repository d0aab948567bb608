"""What a search shows of itself while it runs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from search_samples import OPERATION, TILES, evaluation

from dispatch_profiler.configurations import Configuration, Default
from dispatch_profiler.console import progress_line
from dispatch_profiler.console.terminal import fitting
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Matmul
from dispatch_profiler.tuner.commands import live_view
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.search.events import (
    Compiling,
    DeviceJoined,
    DeviceLost,
    Evaluated,
    Following,
    Measuring,
    Resumed,
    SearchEnded,
    Sharing,
    Warned,
)
from dispatch_profiler.tuner.search.operation_search import ROUND_SIZE
from dispatch_profiler.tuner.search.progress import SearchProgress, announcement

OTHER = Matmul(8, 8, 8)


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def evaluated(configuration: Configuration, milliseconds: float | None, done: int, best: Evaluation | None = None) -> Evaluated:  # fmt: skip
    found = evaluation(configuration, milliseconds)
    return Evaluated(found, done, 20, found if best is None else best, evaluation(Default(), 1.0))


def begun(
    clock: Clock, seconds: float | None = None, budgets: tuple[int | None, ...] = (20, 10)
) -> SearchProgress:
    progress = SearchProgress(dict(zip((OPERATION, OTHER), budgets, strict=True)), seconds, clock)
    progress.add(Compiling(1, 2, 16))
    return progress


def test_before_anything_is_known_only_the_counts_are_shown(clock: Clock):
    assert (
        begun(clock).line
        == "[Searching]: round 1: compiling 16 candidates of 2 operations; 0 of at most 30 candidates"
    )


def test_the_rate_is_that_of_this_run_and_the_rest_takes_as_long(clock: Clock):
    """Stored evaluations are done, but took no time now."""
    progress = SearchProgress({OPERATION: 20, OTHER: 10}, None, clock)
    progress.add(Resumed(OTHER, 4))
    progress.add(Compiling(1, 2, 8))
    clock.now += 6.0
    progress.add(Measuring(1, 8, 0))
    for number, tiles in enumerate(TILES[:4], 1):
        clock.now += 0.5
        progress.add(evaluated(tiles, 2.0 / number, number))
    assert progress.rate == pytest.approx(0.5)
    # 4 are to be measured in 0.5 s each, and 18 also to be compiled in 0.75 s each.
    assert (progress.done, progress.total, progress.seconds_left) == (8, 30, pytest.approx(2.0 + 22.5))
    assert progress.figures == "8 of at most 30 candidates, 0.5 a second, about 0:00:24 left"


def test_a_limited_time_is_what_is_left_unless_the_candidates_end_before(clock: Clock):
    progress = begun(clock, seconds=60.0)
    assert progress.seconds_left == 60.0
    clock.now += 10.0
    progress.add(evaluated(TILES[0], 1.0, 1))
    assert progress.seconds_left == 50.0  # 29 candidates would take 290 s
    progress.add(SearchEnded(OPERATION))
    progress.add(SearchEnded(OTHER))
    assert progress.seconds_left == 0.0


def test_where_rounds_overlap_the_rest_follows_from_the_rate(clock: Clock):
    """As on GPUs: the next round of an operation is compiled while another is measured."""
    progress = begun(clock)
    progress.add(Measuring(1, 8, 0))
    progress.add(Compiling(2, 1, 8))
    clock.now += 20.0
    for number in range(1, 11):
        progress.add(evaluated(TILES[0], 1.0, number))
    assert progress.seconds_left == pytest.approx(40.0)


#: Evaluations after which searches of recorded sweeps expected less than 2 % more.
STOPS = (32, 24, 32, 32, 32, 40, 32, 24, 24, 24, 16)


@pytest.mark.parametrize("part", [None, 0.7])
@pytest.mark.parametrize("costs", [(0.8, 0.2), (0.3, 0.5), (2.0, 0.1)])
@pytest.mark.parametrize("stops", [STOPS, STOPS[::2], STOPS[1::2], (64, 64, 64), (64,)])
def test_the_time_left_is_within_30_percent(
    clock: Clock, stops: tuple[int, ...], costs: tuple[float, float], part: float | None
):
    """From the second round on, in rounds of all searches, as on CPUs. Times vary by a half.

    Near the end, 5 % of the whole time are allowed: whether a search takes one more round is unknown.
    """
    seconds = None if part is None else part * sum(stops) * sum(costs)
    operations = [Matmul(8, 8, 8 * at) for at in range(1, 1 + len(stops))]
    by_operation = dict(zip(operations, stops, strict=True))
    drawn, start = random.Random(1), clock.now
    progress = SearchProgress(dict.fromkeys(operations, 64), seconds, clock, ends_early=64 not in stops)
    done, said = dict.fromkeys(operations, 0), list[tuple[float, float]]()
    for number in itertools.count(1):
        left = [each for each in operations if done[each] < by_operation[each]]
        for each in set(operations) - set(left):
            progress.add(SearchEnded(each))
        if not left or clock.now - start >= (seconds or math.inf):
            break
        count = ROUND_SIZE * len(left)
        progress.add(Compiling(number, len(left), count))
        clock.now += count * costs[0] * drawn.uniform(0.75, 1.25)
        progress.add(Measuring(number, count, 0))
        for operation in left:
            for _ in range(ROUND_SIZE):
                clock.now += costs[1] * drawn.uniform(0.5, 1.5)
                done[operation] += 1
                found = replace(evaluation(TILES[0], 1.0), dispatch=Dispatch(operation, TILES[0]))
                progress.add(Evaluated(found, done[operation], 64, found, None))
                if (
                    number > 1
                    and progress.seconds_left is not None
                    and clock.now < start + (seconds or math.inf)
                ):
                    said.append((clock.now, progress.seconds_left))
    end = min(clock.now, start + (seconds or math.inf))
    wrong = [
        (left, end - now)
        for now, left in said
        if abs(left - (end - now)) > 0.3 * (end - now) + 0.05 * (end - start)
    ]
    assert said and not wrong


def test_without_limits_nothing_is_promised(clock: Clock):
    progress = begun(clock, budgets=(None, 10))
    clock.now += 2.0
    progress.add(evaluated(TILES[0], 1.0, 1))
    assert progress.figures == "1 candidate, 0.5 a second"


def test_operations_that_follow_have_fewer_candidates(clock: Clock):
    progress = begun(clock)
    progress.add(Following(OTHER, OPERATION, 5))
    assert progress.total == 25


def test_the_latest_improvement_is_the_last(clock: Clock):
    progress = begun(clock)
    first, second = evaluation(TILES[0], 0.5), evaluation(TILES[1], 0.25)
    progress.add(evaluated(TILES[0], 0.5, 1, first))
    progress.add(evaluated(TILES[2], 0.7, 2, first))
    assert [each.configuration for each in progress.improvements.values()] == [TILES[0].name]
    progress.add(evaluated(TILES[1], 0.25, 3, second))
    (improvement,) = progress.improvements.values()
    assert (
        improvement.texts[:2] == ("0.25 ms", "4x the default") and improvement.configuration == TILES[1].name
    )
    assert progress.line.endswith(": 0.25 ms, 4x the default")


def test_operations_of_a_model_have_the_path_of_their_module(clock: Clock):
    progress = SearchProgress({OPERATION: 20}, None, clock, {OPERATION: ("head.0", "head.1")})
    progress.add(evaluated(TILES[0], 0.5, 1))
    assert "(head.0 +1 more): 0.5 ms" in progress.line
    assert progress.label(OTHER) == "matmul 8x8x8"


@pytest.mark.parametrize(("width", "columns"), [(128, 5), (127, 4), (100, 3), (80, 2), (30, 2)])
def test_names_have_their_room_before_other_columns_of_the_view(width: int, columns: int):
    name = "  conv 3x3 256->256 14x14 s1 +residual relu (layer3.1.conv2)"
    rows = [
        (name, "0.685 ms", "28.3x the default", "39 % of the peak", "tile_config_64"),
        ("  matmul 8x8x8", "1 ms", "", "", "tile_config_default"),
    ]
    assert fitting(rows, width) == [row[:columns] for row in rows]
    assert fitting([], width) == []


def test_the_default_is_not_compared_with_itself(clock: Clock):
    progress = begun(clock)
    default = evaluation(Default(), 1.0)
    progress.add(Evaluated(default, 1, 20, default, default))
    (improvement,) = progress.improvements.values()
    assert improvement.texts[:2] == ("1 ms", "")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Sharing(12, ("cuda://0", "cuda://1"), ("cuda://2",)), "[Devices]: cuda://0, cuda://1 share 12 operations; unlike cuda://0, and therefore not used: cuda://2 (--devices names others)"),
        (Sharing(1, ("cuda://0",)), "[Devices]: cuda://0"),
        (DeviceLost("cuda://1", "no memory"), "cuda://1 failed (no memory); its operations continue on the other devices"),
        (DeviceJoined("cuda://0@node"), "cuda://0@node takes part"),
        (Warned("anyone may use the cluster"), "anyone may use the cluster"),
        (Compiling(1, 2, 3), ""),
    ],
)  # fmt: skip
def test_what_the_user_should_know_is_said_at_once(event, text: str):
    assert announcement(event) == text


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lines follow each other at once."""
    monkeypatch.setattr(progress_line, "LOG_SECONDS", 0.01)
    return None


def test_a_log_has_a_line_from_the_first_round_on(
    clock: Clock, brief: None, capsys: pytest.CaptureFixture[str]
):
    progress = SearchProgress({OPERATION: 20}, None, clock)
    with live_view.shown(progress) as listen:
        assert not capsys.readouterr().err
        listen(Compiling(1, 1, 8))
        said = ""
        while said.count("[Searching]: round 1: compiling 8 candidates of 1 operation") < 3:
            said += capsys.readouterr().err
    capsys.readouterr()
    assert not capsys.readouterr().err


def test_an_error_ends_the_lines(clock: Clock, brief: None):
    with pytest.raises(KeyboardInterrupt), live_view.shown(SearchProgress({}, None, clock)):
        raise KeyboardInterrupt


def test_failures_are_listed_by_their_reasons(clock: Clock, capsys: pytest.CaptureFixture[str]):
    progress = SearchProgress({OPERATION: 20}, None, clock)
    progress.failures.update({"Not compiled: too large": 3, "FAILED: 2 of 9 elements": 1})
    progress.failures.update({f"Not compiled: {number}": 1 for number in range(5)})
    with live_view.shown(progress):
        pass
    said = capsys.readouterr().err
    assert "9 candidates failed; the search went on without them:" in said
    assert "3 x  Not compiled: too large" in said and "and 2 other reasons: search.jsonl has them all" in said

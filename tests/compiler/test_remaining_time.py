"""The time left is within a factor of two after a tenth of a run, whatever the modules and the workers."""

from __future__ import annotations

import heapq
import random
from datetime import timedelta

import pytest

from dispatch_profiler.compiler.console import CompileTally
from dispatch_profiler.compiler.tree import Progress, representative
from dispatch_profiler.configurations import Default
from dispatch_profiler.console.remaining_time import RemainingTime
from dispatch_profiler.dispatches import Dispatch, DispatchEntry, State
from dispatch_profiler.operations import Matmul


def run_of(costs: list[float], sizes: list[int], workers: int) -> list[tuple[float, int, int]]:
    """(when, dispatches, dispatches in flight) of each module that `workers` compile, as they finish."""
    order = representative(len(costs))
    busy: list[tuple[float, int]] = []
    events = []
    for index in order:
        begin = heapq.heappop(busy)[0] if len(busy) == workers else 0.0
        heapq.heappush(busy, (begin + costs[index], index))
        events.append((begin + costs[index], index))
    done: set[int] = set()
    found = []
    for when, index in sorted(events):
        done.add(index)
        begun = order[: len(done) + workers]
        found.append((when, sizes[index], sum(sizes[i] for i in begun if i not in done)))
    return found


def small_then_large(draw: random.Random) -> tuple[list[float], list[int]]:
    """Products of ten tiles, then convolutions that take five times as long."""
    sizes = [12, 1, 1] * 100
    return [(0.4 + 0.1 * size) * (1 if i < 150 else 5) for i, size in enumerate(sizes)], sizes


def every_third_large(draw: random.Random) -> tuple[list[float], list[int]]:
    """A front end of half a second, then tiles at 0.2 s each; two flows an operation."""
    sizes = [40, 1, 1] * 60
    return [0.5 + 0.2 * size for size in sizes], sizes


def scattered(draw: random.Random) -> tuple[list[float], list[int]]:
    """Costs that differ by a factor of ten either way."""
    return [10 ** draw.uniform(-1, 1) for _ in range(400)], [1] * 400


@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("kind", [small_then_large, every_third_large, scattered])
def test_the_estimate_is_within_a_factor_of_two_after_a_tenth(kind, workers: int):
    costs, sizes = kind(random.Random(3))
    done = run_of(costs, sizes, workers)
    end = done[-1][0]
    estimate, compiled, checked = RemainingTime([None] * (2 * sum(sizes)), 0.0), 0, 0

    for now, size, in_flight in done:
        compiled += size
        estimate.advance(2 * compiled + in_flight, 0, now)
        if end / 10 <= now <= end / 2:
            checked += 1
            assert (end - now) / 2 <= estimate.left(now) <= 2 * (end - now)
    assert checked > 10


class Compilation:
    """A run of `total` dispatches, each a module of its own, on a clock that the test sets."""

    def __init__(self, total: int) -> None:
        self.now = 0.0
        self.tally = CompileTally(total, lambda: self.now)

    def add(self, now: float, dispatches: int = 1, in_flight: int = 0, kept: bool = False) -> None:
        """Finish a module at time `now`."""
        self.now = now
        entries = (DispatchEntry(Dispatch(Matmul(4, 6, 8), Default()), State.COMPILED),) * dispatches
        self.tally.add(Progress(Matmul(4, 6, 8), "", entries, kept, in_flight=in_flight))


def test_what_is_up_to_date_takes_no_time():
    """Nine tenths of a tree are up to date and listed in 3 s; the rest takes 1 s each."""
    run = Compilation(1000)
    run.add(3.0, dispatches=900, kept=True)

    for second in range(10):
        run.add(4.0 + second, in_flight=1)

    assert run.tally.left() == str(timedelta(seconds=round(10 * (90 - 0.5) / 10.5)))
    assert run.tally.rate == pytest.approx(1.0)


def test_equal_modules_are_known_exactly_but_for_those_in_flight():
    """Two workers, modules of one dispatch and 1 s: a module in flight counts as half done."""
    run = Compilation(1000)
    for at in range(100):
        run.add((at + 1) / 2, in_flight=2)

    assert run.tally.left() == str(timedelta(seconds=round(50.0 * (900 - 1) / (100 + 1))))


def test_nothing_is_known_before_the_first_module_and_nothing_left_after_the_last():
    run = Compilation(3)
    assert run.tally.left() == "-:--:--"

    run.add(1.0, dispatches=3)

    assert run.tally.left() == "0:00:00"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 1000])
def test_a_representative_order_has_every_number_once(count: int):
    assert sorted(representative(count)) == list(range(count))


def test_every_beginning_is_spread_evenly():
    """Of the first tenth, each tenth of the numbers has its share, and so has each remainder modulo 3."""
    first = representative(1000)[:100]

    assert [sum(i // 100 == tenth for i in first) for tenth in range(10)] == pytest.approx([10] * 10, abs=1)
    assert all(32 <= sum(i % 3 == r for i in first) <= 35 for r in range(3))

"""Taking turns on the null device: who is called on what, how often, and what is made of the answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dispatch_profiler.compiler import BuildRequest, NullCompiler
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Distribution, Matmul
from dispatch_profiler.profiler.measurement import paired_sampling
from dispatch_profiler.profiler.measurement.kernels import DeviceKernels, Places
from dispatch_profiler.profiler.measurement.paired_sampling import PairLimit, Timed, take_paired_samples
from dispatch_profiler.profiler.statistics.comparison import Outcome, SequentialTestOptions, Side
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.runtime import NullDevice, RunError
from dispatch_profiler.runtime.null import NullCall

OPERATION = Matmul(4, 6, 8)
NAME = Dispatch(OPERATION, Default()).name


class Watched(DeviceKernels):
    """Writes down which vmfb is loaded."""

    def __init__(self) -> None:
        super().__init__(NullDevice())
        self.loaded: list[bytes] = []

    def load(self, vmfb):
        self.loaded.append(vmfb)
        return super().load(vmfb)


def compared(base: dict, new: dict, *, repeats: tuple[int, int] = (10, 10), **options):
    """What turns say of two rules of the null compiler, and the device that they were taken on."""
    device, sides = Watched(), {}
    for side, rule, repeat in zip(Side, (base, new), repeats, strict=True):
        job = BuildRequest("", (Dispatch(OPERATION, Default()),), (), repeat)
        sides[side] = Timed(NullCompiler((Rule("*", **rule),)).build(job).profile, NAME, repeat)
    places = Places(device, OPERATION, draw(OPERATION, Distribution.REALS, 1))
    limit = options.pop("limit", PairLimit(20.0))
    return take_paired_samples(device, sides, places, SequentialTestOptions(**options), limit), device


def test_the_ratio_is_that_of_the_two_sides():
    found, _ = compared({"time_ms": 1.0}, {"time_ms": 1.05})
    assert found.result.outcome is Outcome.SLOWER
    assert found.result.ratio is not None
    assert found.result.ratio.value == pytest.approx(1.05)
    assert (found.medians_ms[Side.BASE], found.medians_ms[Side.NEW]) == pytest.approx((1.0, 1.05))


def test_code_is_placed_anew_for_each_round():
    """Both sides together, in both orders; two times before the first round to see what it takes."""
    found, device = compared({"time_ms": 1.0}, {"time_ms": 1.05})
    pairs = list(zip(device.loaded[::2], device.loaded[1::2], strict=True))
    assert len(pairs) == found.result.rounds + 2
    assert len(set(pairs)) == 2 and all(one != other for one, other in pairs)


def test_a_sample_has_as_many_executions_on_both_sides(monkeypatch):
    """Also if one side is faster, and its vmfb repeats a dispatch less often."""
    counted: set[int] = set()
    whole = NullCall.time

    def count(call, calls):
        if calls > 1:
            counted.add(calls)
        return whole(call, calls)

    monkeypatch.setattr(NullCall, "time", count)
    compared({"time_ms": 0.0019}, {"time_ms": 0.0011}, repeats=(10, 50))
    assert counted == {10, 50}  # of 50 and of 10 executions


@pytest.mark.parametrize(
    ("milliseconds", "calls", "samples"),
    [
        # Two samples of each side; the slow side has one call in each, not four as the fast one.
        ((2.9, 0.14), {Side.BASE: 1, Side.NEW: 4}, 2),
        # One sample of each side.
        ((3000.0, 100.0), {Side.BASE: 1, Side.NEW: 1}, 1),
    ],
)
def test_a_far_slower_side_is_called_a_few_times(monkeypatch, milliseconds, calls, samples):
    """Five rounds say that an entry is 20 or 30 times as fast as a default of 3 ms or of 3 s."""
    made: dict[float, list[int]] = {each: [] for each in milliseconds}
    whole = NullCall.time

    def count(call, number):
        seconds = whole(call, number)
        made[min(milliseconds, key=lambda each: abs(1e3 * seconds / number - each))].append(number)
        return seconds

    monkeypatch.setattr(NullCall, "time", count)
    base, new = milliseconds
    found, _ = compared({"time_ms": base}, {"time_ms": new}, repeats=(1, 1))
    assert (found.result.outcome, found.result.rounds) == (Outcome.FASTER, 5)
    assert found.result.ratio is not None
    assert found.result.ratio.value == pytest.approx(new / base)
    first = 3 if base < 100.0 else 1  # calls that say how long a call takes
    for side, each in zip(Side, milliseconds, strict=True):
        warm = 2 + 5  # a call at each place
        expected = (
            calls[side] * samples * 5 + warm + (first if side is Side.BASE else (3 if new < 100.0 else 1))
        )
        assert sum(made[each]) == expected


def test_sides_that_only_seemed_far_apart_are_compared_anew(monkeypatch):
    """The first calls of one side take long, as beside another process: the rounds of `FarTest` do not count."""
    whole, begun = NullCall.time, []

    def slow_at_first(call, calls):
        begun.append(calls)
        return whole(call, calls) * (10.0 if len(begun) in (5, 6, 7) else 1.0)

    monkeypatch.setattr(NullCall, "time", slow_at_first)
    found, device = compared({"time_ms": 1.0}, {"time_ms": 1.05}, repeats=(1, 1))
    assert (found.result.outcome, found.result.rounds) == (Outcome.SLOWER, 9)
    assert len(device.loaded) == 2 * (2 + 5 + 9)


@pytest.mark.parametrize(("milliseconds", "turns_of_a_round"), [(0.1, 4), (2.0, 3), (100.0, 1)])
def test_rounds_of_long_calls_have_fewer_turns(monkeypatch, milliseconds, turns_of_a_round):
    """A call is ten executions. A round lasts up to a quarter of a second, but has one turn at least."""
    sizes = []
    whole = paired_sampling.SequentialTest.add
    monkeypatch.setattr(
        paired_sampling.SequentialTest,
        "add",
        lambda rule, times: (sizes.append(len(times)), whole(rule, times)),
    )
    compared({"time_ms": milliseconds}, {"time_ms": milliseconds})
    assert set(sizes) == {4 * turns_of_a_round}


@pytest.mark.parametrize("fault", ["clock_zero", "clock_back", "clock_stalls"])
def test_a_clock_that_lies_gives_no_ratio(fault):
    with pytest.raises(RunError, match="no figure can be trusted"):
        compared({"time_ms": 1.0}, {"time_ms": 1.0, "fault": fault})


@pytest.mark.parametrize(
    ("limit", "rounds"),
    [
        (PairLimit(0.5, 30.0), 9),  # the first look comes after the limit, and decides
        (PairLimit(0.5), 1),
        (PairLimit(5.0, 2.0), 10),
    ],
)
def test_a_comparison_waits_for_its_first_look(monkeypatch, limit, rounds):
    """Rounds take half a second by the clock; noise hides the difference until it ends."""
    now = [0.0]
    monkeypatch.setattr(paired_sampling.time, "monotonic", lambda: now[0])
    whole, noise = paired_sampling.SequentialTest.add, np.random.default_rng(4)

    def add(rule, times):
        now[0] += 0.5
        whole(rule, [time * math.exp(noise.normal()) for time in times])

    monkeypatch.setattr(paired_sampling.SequentialTest, "add", add)
    found, _ = compared({"time_ms": 1.0}, {"time_ms": 1.0}, limit=limit)
    assert (found.result.outcome, found.result.rounds) == (Outcome.UNCLEAR, rounds)

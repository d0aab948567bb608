"""The speedups of an entry over the compiler's default, and over what a launch without it runs."""

from __future__ import annotations

import math

import pytest
from search_samples import OPERATION, TILES, evaluation

from dispatch_profiler.boo.kernels.variants import LaunchTuning
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Estimate
from dispatch_profiler.operations import Conv2d, LayerNorm, Matmul
from dispatch_profiler.targets import NullTarget, fastest_form, parse_target
from dispatch_profiler.tuner.results.entries import SAME, entry_speedups, launched, search_ratio

TARGET = NullTarget("times.yaml")
CONV = Conv2d(1, 16, 16, 32, 32, 3, 3, layout="nhwc_fhwc_nhwc")
EXACT = 1e-12


def test_an_entry_that_was_compared_with_the_default_has_that_speedup():
    """On the null target, a product without an entry runs the default."""
    speedup = Estimate(2.0, 1.9, 2.1)
    found = entry_speedups(Dispatch(OPERATION, TILES[0]), "tile_config_default", speedup, (), TARGET)
    assert (found.over_default, found.over_launch) == (speedup, speedup)
    assert not found.is_launched_anyway


def test_what_a_launch_runs_anyway_is_as_fast_as_the_launch():
    form = fastest_form(CONV, TARGET)
    assert form is not None
    speedup = Estimate(32.0, 31.0, 33.0)
    found = entry_speedups(Dispatch(CONV, form), "tile_config_default", speedup, (), TARGET)
    assert (found.over_default, found.over_launch) == (speedup, SAME)
    assert found.is_launched_anyway


def test_a_ratio_of_the_search_leads_from_the_reference_to_the_default():
    """The entry is 1.5 times as fast as tiles that take a quarter of the default's time: six times as fast."""
    evaluations = (evaluation(Default(), 4.0), evaluation(TILES[1], 1.0))
    speedup = Estimate(1.5, 1.5, 1.5)
    found = entry_speedups(Dispatch(OPERATION, TILES[0]), TILES[1].name, speedup, evaluations, TARGET)
    assert found.over_default is not None
    assert found.over_default.value == pytest.approx(6.0, rel=EXACT)
    assert 0.0 <= found.over_default.low <= 6.0 <= found.over_default.high


def test_without_a_time_of_the_search_the_speedup_is_unknown():
    speedup = Estimate(1.5, 1.4, 1.6)
    found = entry_speedups(
        Dispatch(OPERATION, TILES[0]), TILES[1].name, speedup, (evaluation(TILES[1]),), TARGET
    )
    assert (found.over_default, found.over_launch) == (None, None)


def test_a_ratio_has_all_ratios_of_the_two_intervals():
    slow, fast = evaluation(Default(), 3.0), evaluation(TILES[0], 1.5)
    found = search_ratio((slow, fast), Default().name, TILES[0].name)
    one, other = slow.record.measurement, fast.record.measurement
    assert found is not None and one is not None and other is not None
    assert found.value == one.median_ms / other.median_ms == pytest.approx(2.0, rel=EXACT)
    assert found.low == min(found.value, one.interval_ms[0] / other.interval_ms[1])
    least = other.interval_ms[0]
    assert found.high == (max(found.value, one.interval_ms[1] / least) if least else math.inf)
    assert search_ratio((), "a", "a") == SAME and search_ratio((slow,), Default().name, "a") is None


@pytest.mark.parametrize(
    "operation", [Matmul(64, 64, 64), CONV, LayerNorm(128, 768), Matmul(2, 512, 512, rhs_layout="n")]
)
@pytest.mark.parametrize("target", ["null:times.yaml", "llvm-cpu:x86-64-v4", "llvm-cpu:znver4", "cuda:sm_90"])
def test_the_kernel_of_a_launch_is_the_first_that_the_launch_itself_would_try(operation, target):
    target = parse_target(target)
    first = next(iter(LaunchTuning().variants(operation, target)))
    assert launched(Dispatch(operation, TILES[0]), target) == first.dispatch.configuration

"""What is expected of a configuration before anything is measured, and what a search does with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dispatch_profiler.configurations import (
    Configuration,
    DotMicrokernel,
    Microkernel,
    PackedInCalls,
    WinogradMicrokernel,
    spaces,
)
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import (
    Target,
    expected_cycles,
    likely_kernels,
    parse_target,
    ranked_amx,
    ranked_microkernels,
    ranked_winograd,
)
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.strategies import make_strategy
from dispatch_profiler.tuner.strategies.prior import shipped_prior
from dispatch_profiler.tuner.strategies.speed_model import RULED, SMOOTH, SpeedModel

CONVOLUTION = Conv2d(1, 28, 28, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
PRODUCT = Matmul(128, 512, 256, rhs_layout="n")


@pytest.fixture
def target(host_has: Callable[..., None]) -> Target:
    """A CPU with AVX-512."""
    host_has("avx512f")
    return parse_target("llvm-cpu")


def points(operation: Operation, target: Target, count: int) -> list[Configuration]:
    """Configurations of all spaces with packed weights, valid ones or not."""
    rng = np.random.default_rng(1)
    return [
        space.to_configuration(space.draw(rng))
        for space in spaces(operation, target.limits, packed_weights=True)
        for _ in range(count)
    ]


def predicted(operation: Operation, target: Target, given: list[Configuration], threads: int) -> np.ndarray:
    space = SearchSpace(operation, target.limits, cores=threads)
    return SpeedModel(operation, threads, shipped_prior("llvm-cpu")).predict(given, space.vectors(given))[0]


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("operation", [CONVOLUTION, PRODUCT], ids=["convolution", "product"])
def test_microkernels_are_ranked_as_the_rules_rank_them(operation: Operation, target: Target, threads: int):
    """For so many threads, and Winograd microkernels among themselves."""
    direct = list(ranked_microkernels(operation, target, threads))
    winograd = [each for _, each in ranked_winograd(operation, target, threads)]
    found = predicted(operation, target, [*direct, *winograd], threads)
    assert list(found[: len(direct)]) == sorted(found[: len(direct)])
    assert list(found[len(direct) :]) == sorted(found[len(direct) :])


def test_differences_are_those_of_cycles(target: Target):
    """As logarithms, whatever configurations come first."""
    one, *_, other = ranked_microkernels(PRODUCT, target, 2)
    cycles = [expected_cycles(each, PRODUCT, 2) for each in (one, other)]
    assert cycles[0] and cycles[1]
    found = predicted(PRODUCT, target, [other, one], 2)
    assert found[0] - found[1] == pytest.approx(math.log(cycles[1] / cycles[0]))


def test_other_configurations_keep_the_order_of_the_prior(target: Target):
    prior = shipped_prior("llvm-cpu")
    assert prior is not None
    given = points(CONVOLUTION, target, 5)
    others = [each for each in given if expected_cycles(each, CONVOLUTION, 2) is None]
    assert 50 < len(others) < len(given)
    vectors = SearchSpace(CONVOLUTION, target.limits, cores=2).vectors(given)
    found, variances = SpeedModel(CONVOLUTION, 2, prior).predict(given, vectors)
    is_other = np.array([each in others for each in given])
    difference = found[is_other] - prior.predict(vectors[is_other])
    assert difference == pytest.approx(np.full(len(difference), difference[0]))
    assert set(variances[is_other]) == {SMOOTH} and set(variances[~is_other]) == {RULED}


def test_rules_know_valid_microkernels_only(target: Target):
    for each in points(CONVOLUTION, target, 20):
        if expected_cycles(each, CONVOLUTION, 2) is not None:
            assert isinstance(each, (Microkernel, WinogradMicrokernel))
            assert each.plan(CONVOLUTION).invalid_reason() is None


@pytest.mark.parametrize(
    "kernel",
    [
        Microkernel((64, 64), (8, 1, 32), 4),
        Microkernel((64, 64), (8, 1, 32), 4, packed=True),
        PackedInCalls(Microkernel((64, 64), (8, 1, 32), 4, packed=True)),
        DotMicrokernel((64, 64), (4, 4)),
    ],
    ids=lambda kernel: kernel.name,
)
def test_more_threads_take_less_time(target: Target, kernel: Configuration):
    assert kernel.invalid_reason(PRODUCT, target.limits) is None
    few, many = (expected_cycles(kernel, PRODUCT, threads) or 0 for threads in (2, 4))
    assert few > many > 0


def test_a_weight_that_is_not_packed_at_load_time_costs_time(target: Target):
    packed = Microkernel((64, 64), (8, 1, 32), 4, packed=True)
    least = expected_cycles(packed, PRODUCT, 2) or 0
    for each in (PackedInCalls(packed), replace(packed, packed=False)):
        assert (expected_cycles(each, PRODUCT, 2) or 0) > least > 0


def test_a_margin_and_an_unusual_unrolling_are_expected_to_cost_time(target: Target):
    best, *_ = ranked_microkernels(CONVOLUTION, target, 2)
    cycles = expected_cycles(best, CONVOLUTION, 2)
    for other in (replace(best, margin=16), replace(best, unroll=2)):
        assert cycles is not None and cycles < (expected_cycles(other, CONVOLUTION, 2) or 0)


def test_cycles_of_amx_microkernels_are_known():
    target = parse_target("llvm-cpu:sapphirerapids")
    operation = replace(PRODUCT, types=ElementTypes("bf16", "bf16", "bf16"))
    ranked = ranked_amx(operation, target, packs_weight=True)
    cycles = [expected_cycles(each, operation, usable_threads()) for each in ranked]
    assert len(ranked) > 2 and None not in cycles
    assert cycles == sorted(cycles, key=lambda each: each or 0)


def test_a_search_proposes_the_likely_configurations_that_are_no_points_of_the_space(target: Target):
    """In the order of the model, without any seed; a strategy without a model never proposes them."""
    listed = likely_kernels(CONVOLUTION, target)
    forms = [each for each in spaces(CONVOLUTION, target.limits) if "microkernel" not in each.kind.kind]
    space = SearchSpace(CONVOLUTION, target.limits, forms, cores=2, likely=listed)
    asked = make_strategy("prior", space).ask(4)
    expected = sorted(listed, key=lambda each: expected_cycles(each, CONVOLUTION, 2) or math.inf)
    assert list(asked) == expected[:4]
    assert not set(make_strategy("random", space).ask(30)) & set(listed)

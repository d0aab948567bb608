"""The statistics of errors, and which kernel they say deviates, on arrays with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dispatch_profiler.boo.driver.numerics.check import (
    ComparedKernel,
    Deviates,
    ErrorSpread,
    Precision,
    judge,
)
from dispatch_profiler.operations.element_types import element_type

F32 = element_type("f32")
BF16 = element_type("bf16")
#: A narrow result of sums of 64 terms in f32.
PRECISION = Precision.of(BF16, F32, 64)


def values(seed: int = 0, count: int = 4096) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, count)


def rounded(expected: np.ndarray) -> np.ndarray:
    return expected.astype(BF16.dtype)


def spread(actual: np.ndarray, expected: np.ndarray, bound: float = 0.01) -> ErrorSpread:
    return ErrorSpread.of(actual, expected, np.full(expected.shape, bound))


def test_a_spread_has_mean_deviation_and_extremes_of_the_errors():
    expected = np.array([1.0, -2.0, 4.0, -8.0])
    actual = np.array([1.5, -1.5, 3.5, -6.5])  # errors 0.5, 0.5, -0.5, 1.5

    found = ErrorSpread.of(actual, expected, np.array([1.0, 0.25, 1.0, 3.0]))

    assert (found.elements, found.beyond, found.not_finite) == (4, 1, 0)
    assert found.mean == 0.5
    assert found.stddev == pytest.approx(math.sqrt(0.5))  # of 0, 0, -1, 1
    assert found.inward_mean == pytest.approx((-0.5 + 0.5 + 0.5 + 1.5) / 4)
    assert (found.worst, found.worst_part) == (1.5, 2.0)
    assert found.scale == pytest.approx(math.sqrt(85 / 4))


def test_spreads_of_parts_add_up_to_that_of_the_whole():
    expected = values()
    actual, bound = expected + 1e-3 * values(1), np.full(expected.shape, 5e-4)

    parts = ErrorSpread.of(actual[:1000], expected[:1000], bound[:1000])
    parts += ErrorSpread.of(actual[1000:], expected[1000:], bound[1000:])

    whole = ErrorSpread.of(actual, expected, bound)
    assert parts.beyond == whole.beyond > 0
    for name in ("elements", "mean", "stddev", "inward_mean", "scale", "worst", "worst_part"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name)), name


def test_without_a_bound_every_difference_counts():
    exact = np.arange(5)

    assert ErrorSpread.of(exact, exact, None).beyond == 0
    found = ErrorSpread.of(np.array([0, 1, 3, 3, 4]), exact, None)
    assert (found.beyond, found.worst_part) == (1, math.inf)


@pytest.mark.parametrize(
    ("actual", "expected", "not_finite"),
    [
        (math.nan, 1.0, 1),
        (math.nan, math.nan, 1),
        (math.inf, 1.0, 1),
        (math.inf, -math.inf, 1),
        (math.inf, math.inf, 0),
    ],
)
def test_nan_never_passes_and_infinity_only_where_it_is_expected(actual, expected, not_finite):
    found = ErrorSpread.of(np.array([actual, 2.0]), np.array([expected, 2.0]), np.array([math.inf, 1.0]))

    assert found.not_finite == not_finite
    verdict = judge("result", {ComparedKernel.IREE: found}, PRECISION)
    assert verdict.deviates is (Deviates.IREE if not_finite else Deviates.NEITHER)


def test_a_bound_that_is_nan_is_exceeded():
    assert ErrorSpread.of(np.array([1.0]), np.array([1.0]), np.array([math.nan])).beyond == 1


def test_correct_rounding_does_not_deviate():
    expected = values()
    sides = {side: spread(rounded(expected), expected) for side in ComparedKernel}

    verdict = judge("result", sides, PRECISION)

    assert verdict.deviates is Deviates.NEITHER
    assert set(verdict.reasons.values()) == {""}


def noisy(expected: np.ndarray) -> np.ndarray:
    """As from sums in a narrow type: within the bound, but with larger errors."""
    return expected + 0.009 * values(1)


def truncated(expected: np.ndarray) -> np.ndarray:
    """Rounded towards zero: drops the low half of the bits of an f32."""
    return (expected.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda expected: np.where(np.arange(expected.size) == 7, math.nan, expected), "1 of 4096 elements are NaN"),
        (lambda expected: np.where(np.arange(expected.size) == 7, 3.0, expected), "1 of 4096 elements exceed their error bound"),
        (noisy, "the standard deviation of its errors"),
        (truncated, "its results are off towards zero"),
        (lambda expected: rounded(expected) + 0.002, "its errors have a mean of 0.002"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("side", list(ComparedKernel))
def test_the_side_that_deviates_is_named_with_the_reason(damage, reason, side):
    expected = values()
    other = ComparedKernel.TORCH if side is ComparedKernel.IREE else ComparedKernel.IREE
    sides = {side: spread(damage(expected), expected), other: spread(rounded(expected), expected)}

    verdict = judge("result", sides, PRECISION)

    assert verdict.deviates.value == side.value
    assert reason in verdict.reasons[side]
    assert verdict.reasons[other] == ""


def test_both_may_deviate():
    expected = values()

    verdict = judge("result", {side: spread(expected + 1.0, expected) for side in ComparedKernel}, PRECISION)

    assert verdict.deviates is Deviates.BOTH


def test_a_spread_like_that_of_the_other_kernel_is_accepted():
    """Both may sum in another order than is expected; a wrong kernel is no measure for it, though."""
    expected = values()
    noise = spread(noisy(expected), expected)

    assert judge("result", dict.fromkeys(ComparedKernel, noise), PRECISION).deviates is Deviates.NEITHER
    assert judge("result", {ComparedKernel.IREE: noise}, PRECISION).deviates is Deviates.IREE
    wrong = spread(expected + values(2), expected)
    assert (
        judge("result", {ComparedKernel.IREE: noise, ComparedKernel.TORCH: wrong}, PRECISION).deviates
        is Deviates.BOTH
    )


def test_the_expected_deviation_grows_with_the_root_of_the_terms():
    short, long = (Precision.of(F32, F32, terms).largest_stddev(1.0) for terms in (100, 10000))

    assert long - short == pytest.approx(90 * 2.0**-24)

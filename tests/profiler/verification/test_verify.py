"""Comparing a result with its reference: every element counts, and a NaN never passes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import ELEMENT_TYPES, Distribution, ElementTypes, Matmul, Reference
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.verification.inputs import draw, poison
from dispatch_profiler.profiler.verification.verify import Comparison, ShapeMismatch, compare_result

#: result type -> an input type whose products give it
INPUTS = {"f64": "f64", "f32": "f32", "f16": "f16", "bf16": "bf16", "f8E4M3FN": "f8E4M3FN", "i32": "i8"}
RESULTS = list(INPUTS)
BOTH = [Distribution.INTEGERS, Distribution.REALS]
M, N = 5, 7

examples = settings(deadline=None, derandomize=True, max_examples=40)
places = st.tuples(st.integers(0, M - 1), st.integers(0, N - 1))


def operation_of(result: str) -> Matmul:
    return Matmul(M, N, 24, ElementTypes(INPUTS[result], INPUTS[result], result))


def right_result(operation: Matmul, distribution: Distribution) -> tuple[np.ndarray, Reference]:
    """The product by numpy in float64, rounded once, beside the reference for the same inputs."""
    inputs = draw(operation, distribution, 11)
    lhs, rhs = (a.astype(np.float64) for a in inputs)
    return (lhs @ rhs).astype(operation.result.type.dtype), reference(operation, inputs)


def just_wrong(operation: Matmul, expected: Reference, index: tuple[int, ...]) -> np.generic:
    """The least wrong value of the result's type at `index`: one step, or a step beyond the tolerance."""
    dtype = operation.result.type.dtype
    value = expected.expected[index]
    if expected.tolerance is None:
        return value + dtype.type(1) if dtype.kind == "i" else np.nextafter(value, dtype.type(400))
    tolerance, step = expected.tolerance[index], dtype.type(value)
    while not abs(float(step) - value) > tolerance:
        step = np.nextafter(step, dtype.type(400))
    return step


# -- the claim of the room: one wrong element anywhere is found, in every type ---------------------


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("result", RESULTS)
def test_a_right_result_passes(result, distribution):
    """numpy's own product, rounded once, is right in every type."""
    operation = operation_of(result)
    actual, expected = right_result(operation, distribution)
    comparison = compare_result(operation.result, actual, expected)
    assert comparison.passed and comparison.message == ""
    assert (comparison.wrong, comparison.elements) == (0, M * N)


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("result", RESULTS)
@examples
@given(place=places)
def test_one_element_that_is_just_wrong_fails_anywhere(result, distribution, place):
    """One step outside what is allowed, at any one place, is found, and it alone is counted."""
    operation = operation_of(result)
    actual, expected = right_result(operation, distribution)
    actual[place] = just_wrong(operation, expected, place)
    comparison = compare_result(operation.result, actual, expected)
    assert not comparison.passed
    assert (comparison.wrong, comparison.elements, comparison.index) == (1, M * N, place)


@pytest.mark.parametrize("place", [(0, 0), (2, 3), (M - 1, N - 1)], ids=["first", "middle", "last"])
@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("result", RESULTS)
def test_the_message_names_index_actual_and_expected(result, distribution, place):
    """The message holds the place, both values and the count, as the comparison does."""
    operation = operation_of(result)
    actual, expected = right_result(operation, distribution)
    actual[place] = just_wrong(operation, expected, place)
    comparison = compare_result(operation.result, actual, expected)
    assert (comparison.actual, comparison.expected) == (float(actual[place]), float(expected.expected[place]))
    said = re.fullmatch(
        r"1 of 35 elements are wrong; the worst: result\[(\d), (\d)\] = (\S+), but should be (\S+) .+",
        comparison.message,
    )
    assert said and (int(said[1]), int(said[2])) == place
    assert float(said[3]) == pytest.approx(comparison.actual)
    assert float(said[4]) == pytest.approx(comparison.expected)


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("result", RESULTS)
def test_the_message_never_prints_one_number_for_two(result, distribution):
    """However near the wrong value is, what it is and what it should be read differently."""
    operation = operation_of(result)
    actual, expected = right_result(operation, distribution)
    actual[2, 3] = just_wrong(operation, expected, (2, 3))
    message = compare_result(operation.result, actual, expected).message
    is_, should = re.search(r"= (\S+), but should be (\S+) ", message).groups()
    assert float(is_) != float(should), message


def test_large_integers_are_printed_in_full():
    """Sums of i8 need ten digits."""
    operation = operation_of("i32")
    expected = np.full((M, N), 2_000_000_001, np.int32)
    actual = expected.copy()
    actual[1, 1] = 2_000_000_002
    message = compare_result(operation.result, actual, Reference(expected, None)).message
    assert "2000000002" in message and "2000000001" in message, message


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("distribution", BOTH)
def test_another_result_altogether_fails_everywhere(result, distribution):
    """The checker of right results can fail: zeros are no product."""
    operation = operation_of(result)
    _, expected = right_result(operation, distribution)
    comparison = compare_result(operation.result, np.zeros((M, N), operation.result.type.dtype), expected)
    assert not comparison.passed and comparison.wrong > M * N // 2


# -- values that are no numbers --------------------------------------------------------------------


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("result", [r for r in RESULTS if r != "i32"])
@examples
@given(place=places, value=st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]))
def test_nan_and_infinity_fail_anywhere(result, distribution, place, value):
    """One NaN or infinity fails, and it is the one that is named (f8 has no infinity: it becomes NaN)."""
    operation = operation_of(result)
    actual, expected = right_result(operation, distribution)
    actual[place] = operation.result.type.dtype.type(value)
    comparison = compare_result(operation.result, actual, expected)
    assert not comparison.passed
    assert (comparison.wrong, comparison.index) == (1, place)
    assert not np.isfinite(comparison.actual)


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("result", RESULTS)
@examples
@given(place=places)
def test_an_element_that_was_not_written_fails_anywhere(result, distribution, place):
    """What memory holds before a run is right for no element."""
    operation = operation_of(result)
    actual, expected = right_result(operation, distribution)
    actual[place] = poison(operation.result.type, (1,))[0]
    comparison = compare_result(operation.result, actual, expected)
    assert not comparison.passed and comparison.index == place


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_that_was_not_written_at_all_fails_in_every_element(result):
    """No element of untouched memory passes."""
    operation = operation_of(result)
    _, expected = right_result(operation, Distribution.INTEGERS)
    untouched = poison(operation.result.type, operation.result.shape)
    assert compare_result(operation.result, untouched, expected).wrong == M * N


@pytest.mark.parametrize("tolerance", [None, 1e300])
def test_nan_is_not_even_equal_to_nan(tolerance):
    """A reference that is NaN itself passes nothing, whatever the tolerance."""
    operation, nan = operation_of("f32"), np.full((M, N), np.nan, np.float32)
    bound = None if tolerance is None else np.full((M, N), tolerance)
    assert compare_result(operation.result, nan, Reference(nan, bound)).wrong == M * N


# -- what passes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [r for r in RESULTS if r != "i32"])
@pytest.mark.parametrize("tolerance", [None, 0.0])
def test_negative_zero_is_zero(result, tolerance):
    """The sign of zero depends on the order of summation: it counts for nothing."""
    operation = operation_of(result)
    zeros = np.zeros((M, N), operation.result.type.dtype)
    bound = None if tolerance is None else np.full((M, N), tolerance)
    assert compare_result(operation.result, -zeros, Reference(zeros, bound)).passed
    assert compare_result(operation.result, zeros, Reference(-zeros, bound)).passed


def test_a_deviation_of_exactly_the_tolerance_passes_and_one_step_more_fails():
    """The bound belongs to what is allowed, on both sides."""
    operation = operation_of("f64")
    expected = Reference(np.zeros((M, N)), np.full((M, N), 0.25))
    for sign in (1.0, -1.0):
        assert compare_result(operation.result, np.full((M, N), sign * 0.25), expected).passed
        outside = compare_result(operation.result, np.full((M, N), sign * np.nextafter(0.25, 1.0)), expected)
        assert outside.wrong == M * N and outside.tolerance == 0.25


def test_each_element_has_its_own_tolerance():
    """A deviation that is allowed at one place is not at another."""
    operation, tolerance = operation_of("f64"), np.full((M, N), 0.1)
    tolerance[4, 6] = 1.0
    actual = np.full((M, N), 0.5)
    comparison = compare_result(operation.result, actual, Reference(np.zeros((M, N)), tolerance))
    assert comparison.wrong == M * N - 1 and comparison.tolerance == 0.1


# -- the worst element -----------------------------------------------------------------------------


@examples
@given(st.lists(places, min_size=1, max_size=8, unique=True), st.randoms(use_true_random=False))
def test_the_worst_of_several_is_reported(wrong, random):
    """The largest excess over the tolerance is named, and all that are wrong are counted."""
    operation = operation_of("f32")
    expected = Reference(np.zeros((M, N)), np.full((M, N), 0.5))
    sizes = random.sample(range(1, 100), len(wrong))
    actual = np.full((M, N), 0.25, np.float32)
    for place, size in zip(wrong, sizes, strict=True):
        actual[place] = random.choice([-1, 1]) * size
    comparison = compare_result(operation.result, actual, expected)
    assert comparison.wrong == len(wrong)
    assert comparison.index == wrong[sizes.index(max(sizes))]


def test_the_worst_is_measured_by_what_exceeds_the_tolerance():
    """A deviation of 3 where 0.1 is allowed is worse than one of 5 where 4.9 is."""
    operation, tolerance = operation_of("f64"), np.full((M, N), 0.1)
    tolerance[0, 1] = 4.9
    actual = np.zeros((M, N))
    actual[0, 1], actual[3, 2] = 5.0, 3.0
    assert compare_result(operation.result, actual, Reference(np.zeros((M, N)), tolerance)).index == (3, 2)


def test_nan_is_worse_than_any_number():
    """NaN before infinity before a number, wherever they stand."""
    operation, actual = operation_of("f64"), np.zeros((M, N))
    actual[0, 0], actual[1, 1], actual[2, 2] = 1e308, np.inf, np.nan
    exact = Reference(np.zeros((M, N)), None)
    assert compare_result(operation.result, actual, exact).index == (2, 2)
    actual[2, 2] = 0.0
    assert compare_result(operation.result, actual, exact).index == (1, 1)


def test_an_exact_comparison_says_exactly_and_a_bounded_one_its_bound():
    """The message tells which rule the element broke."""
    assert "but should be 1 exactly" in Comparison(False, 1, 4, (0, 1), 1.0, 2.5, 0.0).message
    assert "but should be 1 within 0.125" in Comparison(False, 1, 4, (0, 1), 1.0, 2.5, 0.125).message


# -- other shapes and types ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(N, M), (M * N,), (M, N, 1), (M, N - 1), (0, N), ()])
def test_another_shape_is_refused(shape):
    """The message gives both shapes."""
    operation = operation_of("f32")
    _, expected = right_result(operation, Distribution.REALS)
    with pytest.raises(ShapeMismatch, match=re.escape(f"float32 {shape}, but should be float32 (5, 7)")):
        compare_result(operation.result, np.zeros(shape, np.float32), expected)


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("other", sorted(ELEMENT_TYPES))
def test_another_type_is_refused(result, other):
    """Equal values in another type are no result."""
    operation = operation_of(result)
    actual, expected = right_result(operation, Distribution.INTEGERS)
    if other == result:
        assert compare_result(operation.result, actual, expected).passed
    else:
        with pytest.raises(ShapeMismatch, match=r"result is .*, but should be"):
            compare_result(operation.result, actual.astype(ELEMENT_TYPES[other].dtype), expected)


def test_a_mismatch_is_an_error_of_ours():
    """It crosses the border of a worker process as itself."""
    assert issubclass(ShapeMismatch, ToolError)

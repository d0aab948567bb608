"""References of whole numbers: equal to the definition, bit by bit, and nothing else passes."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from naive_operations import (
    DTYPES,
    FLOAT_PAIRS,
    PROPERTY,
    activated,
    activation_of,
    bias_at,
    convolutions,
    element_types,
    exact_sum,
    kernel_value,
    matmuls,
    operations,
    output_shape,
    products,
    reals,
    rounded,
    seeds,
    whole_numbers,
    wrapped,
)

from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Epilogue, Matmul
from dispatch_profiler.operations.contraction.reference import reference

I8 = ElementTypes("i8", "i8", "i32")
EXACT = ("none", "relu")


def by_definition(operation, inputs):
    """The result of whole numbers: summed without rounding, then rounded once (i32: wrapped)."""
    result = np.zeros(output_shape(operation), DTYPES[operation.types.result])
    for index, pairs in products(operation, *inputs[:2]).items():
        total = exact_sum(pairs) + Fraction(bias_at(operation, inputs, index))
        if operation.types.result == "i32":
            result[index] = activated(activation_of(operation), wrapped(int(total)))
        else:
            result[index] = activated(activation_of(operation), rounded(total, operation.types.result))
    return result


def assert_equal_exactly(expected, actual):
    """Type, shape and every value, with no tolerance."""
    assert actual.tolerance is None
    assert (expected.dtype, expected.shape) == (actual.expected.dtype, actual.expected.shape)
    assert expected.tolist() == actual.expected.tolist()


@PROPERTY
@given(matmuls(FLOAT_PAIRS, EXACT), seeds())
def test_matrix_products_of_whole_numbers_are_exact_and_rounded_once(operation, seed):
    """Every type, layout and bias: the sum of the definition, rounded to the result's type."""
    inputs = whole_numbers(operation, seed)
    assert_equal_exactly(by_definition(operation, inputs), reference(operation, inputs))


@PROPERTY
@given(convolutions(FLOAT_PAIRS, EXACT), seeds())
def test_convolutions_of_whole_numbers_are_exact_and_rounded_once(operation, seed):
    """Every stride, padding, dilation, grouping and layout: the sum of the definition, rounded once."""
    inputs = whole_numbers(operation, seed)
    assert_equal_exactly(by_definition(operation, inputs), reference(operation, inputs))


@PROPERTY
@given(operations([("i8", "i32")], EXACT), seeds())
def test_sums_of_i8_are_exact_and_wrap_around_as_i32(operation, seed):
    """A bias of any i32 carries sums past the ends, where a 32-bit register wraps."""
    inputs = whole_numbers(operation, seed)
    assert_equal_exactly(by_definition(operation, inputs), reference(operation, inputs))


@pytest.mark.slow
@PROPERTY
@given(operations([("f32", "f32"), ("f16", "f32"), ("i8", "i32")]), st.data())
def test_a_dropped_product_is_noticed(operation, data):
    """Leave one product that is not 0 out of one sum: that element is wrong."""
    assume(activation_of(operation) == "none")
    inputs = whole_numbers(operation, data.draw(seeds()))
    found = reference(operation, inputs)
    index, pairs = data.draw(st.sampled_from(list(products(operation, *inputs[:2]).items())))
    dropped = [i for i, (a, b) in enumerate(pairs) if a * b]
    assume(dropped)
    gone = data.draw(st.sampled_from(dropped))
    total = exact_sum(pair for i, pair in enumerate(pairs) if i != gone)
    with_bias = int(total + Fraction(bias_at(operation, inputs, index)))
    assert wrapped(with_bias) != found.expected[index]


@pytest.mark.slow
@PROPERTY
@given(operations(activations=EXACT), seeds(), st.randoms())
def test_a_kernel_gives_the_same_whole_numbers_in_any_order(operation, seed, random):
    """Every partial sum is exact in the accumulator: that is why equality can be asked for."""
    inputs = whole_numbers(operation, seed)
    assume(operation.types.result != "i32")
    found = reference(operation, inputs)
    for index, pairs in products(operation, *inputs[:2]).items():
        random.shuffle(pairs)
        assert float(found.expected[index]) == kernel_value(
            operation, pairs, bias_at(operation, inputs, index)
        )


@PROPERTY
@given(operations(), seeds(), st.booleans())
def test_a_reference_has_the_shape_of_the_result(operation, seed, whole):
    """Expected values, and tolerances if there are any."""
    found = reference(operation, (whole_numbers if whole else reals)(operation, seed))
    shapes = {array.shape for array in (found.expected, found.tolerance) if array is not None}
    assert {output_shape(operation)} == shapes


@PROPERTY
@given(operations(), seeds())
def test_inputs_are_left_as_they_are(operation, seed):
    """A reference reads its inputs only."""
    inputs = whole_numbers(operation, seed)
    for array in inputs:
        array.setflags(write=False)
    reference(operation, inputs)


def test_a_sum_of_i8_products_wraps_around_by_itself():
    """140,000 products of (-128)**2 are 2,293,760,000, which is 2**32 more than an i32 holds."""
    k = 140_000
    operation = Matmul(1, 1, k, I8)
    inputs = [np.full((1, k), -128, np.int8), np.full((k, 1), -128, np.int8)]
    assert [[k * 128**2 - 2**32]] == reference(operation, inputs).expected.tolist()


def test_a_sum_that_f32_does_not_hold_is_exact_all_the_same():
    """1,499 products of 127**2 and one of 2 are 24,177,373: odd, and above 2**24."""
    lhs, rhs = np.full((1, 1500), 127, np.int8), np.full((1500, 1), 127, np.int8)
    lhs[0, 700], rhs[700, 0] = 2, 1
    assert reference(Matmul(1, 1, 1500, I8), [lhs, rhs]).expected.tolist() == [[1499 * 127**2 + 2]]


def test_relu_of_a_wrapped_sum_is_zero():
    """The sum wraps first, so that relu sees a negative number."""
    operation = Matmul(1, 1, 1, I8, epilogue=Epilogue.parse("bias+relu"))
    one = np.ones((1, 1), np.int8)
    assert reference(operation, [one, one, np.array([2**31 - 1], np.int32)]).expected.tolist() == [[0]]
    assert reference(operation, [one, one, np.array([2**31 - 2], np.int32)]).expected.tolist() == [
        [2**31 - 1]
    ]


@pytest.mark.parametrize(
    ("type_", "terms", "stored"),
    [
        ("f16", (2048, 1), 2048),  # a tie: to the even neighbour
        ("f16", (2048, 3), 2052),
        ("f16", (1024, 1), 1025),
        ("bf16", (256, 1), 256),
        ("bf16", (256, 3), 260),
        ("f8E4M3FN", (16, 1), 16),
        ("f8E4M3FN", (16, 2, 1), 20),
    ],
)
def test_narrow_results_are_rounded_to_nearest_even(type_, terms, stored):
    """Sums that the result's type does not hold: known roundings, by hand."""
    operation = Matmul(1, 1, len(terms), ElementTypes("f32", "f32", type_))
    inputs = [np.array([terms], np.float32), np.ones((len(terms), 1), np.float32)]
    assert [[stored]] == reference(operation, inputs).expected.astype(np.float64).tolist()


def test_a_sum_in_f64_is_rounded_once():
    """257 * 2**20 + 1 is above the middle of two bf16 numbers, which rounding to f32 first forgets."""
    operation = Matmul(1, 1, 2, ElementTypes("f64", "f64", "bf16"))
    inputs = [np.array([[257 * 2.0**20, 1.0]]), np.ones((2, 1))]
    assert reference(operation, inputs).expected.astype(np.float64).tolist() == [[258 * 2**20]]


@pytest.mark.parametrize(("type_", "products_of"), [("f16", 300), ("f8E4M3FN", 25)])
def test_a_sum_that_the_result_cannot_hold_is_what_conversion_makes_of_it(type_, products_of):
    """Infinity in f16; f8E4M3FN has none, so that it is no number."""
    operation = Matmul(1, 1, 1, ElementTypes("f32", "f32", type_))
    square = np.full((1, 1), products_of, np.float32)
    found = reference(operation, [square, square])
    assert [np.inf if type_ == "f16" else np.nan] == pytest.approx(
        found.expected.astype(np.float64)[0].tolist(), nan_ok=True
    )


@pytest.mark.parametrize(
    ("types", "largest"), [(("f32", "f32", "f32"), 2**24), (("f64", "f64", "f64"), 2**53)]
)
def test_equality_is_asked_for_up_to_what_the_accumulator_holds(types, largest):
    """A sum that could reach the bound is exact; twice as many products could pass it."""
    root = 2 ** (largest.bit_length() // 2)
    factors = [np.full((1, 2), root / 2), np.full((2, 1), largest / root)]
    inputs = [array.astype(DTYPES[types[0]]) for array in factors]
    assert reference(Matmul(1, 1, 2, ElementTypes(*types)), inputs).tolerance is None
    twice = [np.concatenate([inputs[0]] * 2, 1), np.concatenate([inputs[1]] * 2)]
    assert reference(Matmul(1, 1, 4, ElementTypes(*types)), twice).tolerance is not None


def test_equality_is_not_asked_for_where_f64_cannot_hold_a_partial_sum():
    """(2**26 + 1)**2 is above 2**52, so that two of them may round: the bound must not be rounded down."""
    large = float(2**26 + 1)
    operation = Matmul(1, 1, 2, ElementTypes("f64", "f64", "f64"))
    found = reference(operation, [np.full((1, 2), large), np.full((2, 1), large)])
    assert found.tolerance is not None


@pytest.mark.parametrize("fraction", [0.5, 2.0**-10])
@pytest.mark.parametrize("position", range(3))
def test_one_number_that_is_not_whole_takes_equality_away(position, fraction):
    """In lhs, rhs or bias."""
    operation = Matmul(2, 2, 2, epilogue=Epilogue.parse("bias"))
    inputs = [np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), np.ones(2, np.float32)]
    assert reference(operation, inputs).tolerance is None
    inputs[position][0] += fraction
    assert reference(operation, inputs).tolerance is not None


def test_a_bias_that_the_accumulator_cannot_add_exactly_takes_equality_away():
    """2**24 and 1 are whole, but f32 does not hold their sum."""
    operation = Matmul(1, 1, 1, epilogue=Epilogue.parse("bias"))
    one = np.ones((1, 1), np.float32)
    assert reference(operation, [one, one, np.array([2.0**24 - 1], np.float32)]).tolerance is None
    assert reference(operation, [one, one, np.array([2.0**24], np.float32)]).tolerance is not None


@pytest.mark.parametrize("name", ["gelu", "sigmoid", "tanh"])
def test_an_activation_of_whole_numbers_is_within_a_bound(name):
    """exp, tanh and erf are approximations, whatever they are given."""
    operation = Matmul(1, 1, 1, epilogue=Epilogue.parse(name))
    one = np.ones((1, 1), np.float32)
    found = reference(operation, [one, one])
    assert abs(activated(name, 1.0) - found.expected[0, 0]) <= found.tolerance[0, 0] < 20 * 2.0**-24


def test_padding_adds_nothing():
    """A 3x3 filter of ones on a 1x1 image of 5 sees eight zeros and a 5, wherever it stands."""
    operation = Conv2d(1, 1, 1, 1, 1, 3, 3, padding=(2, 2))
    inputs = [np.full((1, 1, 1, 1), 5, np.float32), np.ones((3, 3, 1, 1), np.float32)]
    assert np.full((1, 3, 3, 1), 5).tolist() == reference(operation, inputs).expected.tolist()


def test_batches_do_not_mix():
    """The second product is of the second operands."""
    operation = BatchMatmul(2, 1, 1, 1)
    inputs = [np.array([2, 3], np.float32).reshape(2, 1, 1), np.array([5, 7], np.float32).reshape(2, 1, 1)]
    assert reference(operation, inputs).expected.ravel().tolist() == [10, 21]


def test_the_naive_rounding_of_these_tests_is_right():
    """Against conversions that go straight from f64, and on numbers below the normal range."""
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, 2000) * 2.0 ** rng.integers(-30, 15, 2000)
    for name, type_ in (("f16", np.float16), ("f32", np.float32)):
        assert values.astype(type_).astype(np.float64).tolist() == [
            rounded(Fraction(v), name) for v in values
        ]
    narrow = values.astype(np.float32)
    expected = narrow.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert expected.tolist() == [rounded(Fraction(float(v)), "bf16") for v in narrow]


@pytest.mark.parametrize("pair", FLOAT_PAIRS, ids="-".join)
def test_every_pair_of_types_reaches_the_exact_path(pair):
    """Small whole numbers are exact whatever holds them."""
    operation = Matmul(2, 3, 4, element_types(pair))
    assert reference(operation, whole_numbers(operation, 1)).tolerance is None


def test_sums_in_f16_have_a_bound_that_follows_from_f16():
    """Wider than that of f32, and a sum that is exact in f32 need not be so in f16."""
    rng = np.random.default_rng(3)
    wide = Matmul(8, 8, 64, ElementTypes("f16", "f16", "f16"))
    narrow = Matmul(8, 8, 64, ElementTypes("f16", "f16", "f16", "f16"))
    reals = [rng.normal(size=t.shape).astype(np.float16) for t in wide.operands]
    assert (reference(narrow, reals).tolerance > 2 * reference(wide, reals).tolerance).all()
    whole = [np.full(t.shape, 7, np.float16) for t in wide.operands]  # 64 * 49 > 2048
    assert reference(wide, whole).tolerance is None
    assert reference(narrow, whole).tolerance is not None

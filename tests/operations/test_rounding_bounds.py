"""References of real numbers: every correct kernel is within the tolerance, and little else is."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from naive_operations import (
    ACTIVATION_NAMES,
    DTYPES,
    FLOAT_PAIRS,
    FLOATS,
    PROPERTY,
    activated,
    activation_of,
    bias_at,
    element_types,
    exact_sum,
    kernel_value,
    operations,
    products,
    reals,
    rounded,
    seeds,
)

from dispatch_profiler.operations import ElementTypes, Epilogue, Matmul, accumulation_factor, element_type
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.operations.rounding import are_alike

F32_ROUNDOFF = 2.0**-24


def filled(operation, lhs=0.1, rhs=0.1):
    """Inputs of one value each, as near as their types come."""
    a, b = operation.operands[:2]
    return [np.full(a.shape, lhs).astype(a.type.dtype), np.full(b.shape, rhs).astype(b.type.dtype)]


def spread(operation):
    """Positive inputs of many values."""
    rng = np.random.default_rng(3)
    return [rng.uniform(0.01, 1.0, each.shape).astype(each.type.dtype) for each in operation.operands[:2]]


# -- within ----------------------------------------------------------------------------------------


@PROPERTY
@given(operations(FLOAT_PAIRS), seeds())
def test_the_true_value_is_within_the_tolerance(operation, seed):
    """Sums in Fractions, activations from `math`: that is where a perfect kernel would be."""
    inputs = reals(operation, seed)
    found = reference(operation, inputs)
    assume(found.tolerance is not None)
    for index, pairs in products(operation, *inputs[:2]).items():
        total = exact_sum(pairs) + Fraction(bias_at(operation, inputs, index))
        truth = activated(activation_of(operation), float(total))
        assert abs(truth - found.expected[index]) <= found.tolerance[index]


@PROPERTY
@given(operations(FLOAT_PAIRS, ["none", "relu", "gelu", "sigmoid"]), seeds(), st.randoms())
def test_a_kernel_that_sums_in_any_order_is_within_the_tolerance(operation, seed, random):
    """One product after the other in the accumulator's arithmetic, then one rounding to the result."""
    inputs = reals(operation, seed)
    found = reference(operation, inputs)
    assume(found.tolerance is not None)
    for index, pairs in products(operation, *inputs[:2]).items():
        random.shuffle(pairs)
        actual = kernel_value(operation, pairs, bias_at(operation, inputs, index))
        assert abs(actual - found.expected[index]) <= found.tolerance[index]


@PROPERTY
@given(operations([pair for pair in FLOAT_PAIRS if pair[0] != "f64"], ["tanh"]), seeds())
def test_a_kernel_that_calls_tanh_is_within_the_tolerance(operation, seed):
    """In f32, where the template calls `math.tanh`."""
    inputs = reals(operation, seed)
    found = reference(operation, inputs)
    for index, pairs in products(operation, *inputs[:2]).items():
        actual = kernel_value(operation, pairs, bias_at(operation, inputs, index))
        assert abs(actual - found.expected[index]) <= found.tolerance[index]


@pytest.mark.parametrize("argument", [0.001, 0.03, 0.3, 3.0, -0.001, -3.0])
def test_a_kernel_that_writes_tanh_of_f64_with_exp_is_within_the_tolerance(argument):
    """The template's 1 - 2 / (1 + exp(2x)) loses digits near 0, where both terms are near 1."""
    operation = Matmul(1, 1, 1, ElementTypes("f64", "f64", "f64"), epilogue=Epilogue.parse("tanh"))
    found = reference(operation, [np.array([[argument]]), np.array([[1.0]])])
    actual = 1.0 - 2.0 / (1.0 + math.exp(2.0 * argument))
    assert abs(actual - found.expected[0, 0]) <= found.tolerance[0, 0]


def test_a_fused_multiply_add_of_f64_is_within_the_tolerance():
    """A kernel that rounds a * b + bias once is right, though the reference rounds twice."""
    a, b, bias = 0.130004, 1.1, 1.0
    fused = rounded(Fraction(a) * Fraction(b) + Fraction(bias), "f64")
    operation = Matmul(1, 1, 1, ElementTypes("f64", "f64", "f64"), epilogue=Epilogue.parse("bias"))
    found = reference(operation, [np.array([[a]]), np.array([[b]]), np.array([bias])])
    assert abs(fused - found.expected[0, 0]) <= found.tolerance[0, 0]


@PROPERTY
@given(st.sampled_from(FLOAT_PAIRS), st.floats(2.0**-12, 2.0**-6), st.floats(0.5, 2))
def test_the_rounding_of_a_bias_is_within_the_tolerance(pair, small, bias):
    """A bias that is far larger than the sum decides the rounding error."""
    operation = Matmul(1, 1, 1, element_types(pair), epilogue=Epilogue.parse("bias"))
    inputs = [*filled(operation, small, 0.7), np.array([bias]).astype(DTYPES[pair[1]])]
    found = reference(operation, inputs)
    assume(found.tolerance is not None)
    pairs = products(operation, *inputs[:2])[0, 0]
    truth = exact_sum(pairs) + Fraction(bias_at(operation, inputs, (0, 0)))
    for actual in (float(truth), kernel_value(operation, pairs, bias_at(operation, inputs, (0, 0)))):
        assert abs(actual - found.expected[0, 0]) <= found.tolerance[0, 0]


@PROPERTY
@given(st.sampled_from(FLOAT_PAIRS), st.integers(1, 600), seeds())
def test_long_sums_in_the_accumulator_are_within_the_tolerance(pair, k, seed):
    """Where the bound has turned from K to the root of K."""
    operation = Matmul(1, 1, k, element_types(pair))
    inputs = reals(operation, seed)
    found = reference(operation, inputs)
    assume(found.tolerance is not None)
    actual = kernel_value(operation, products(operation, *inputs)[0, 0], 0.0)
    assert abs(actual - found.expected[0, 0]) <= found.tolerance[0, 0]


def test_a_result_below_the_normal_range_may_be_flushed_to_zero():
    """Kernels may flush what f32 holds only as a subnormal."""
    operation = Matmul(1, 1, 1)
    found = reference(operation, filled(operation, 1e-20, 1.1e-20))
    assert 0 < found.expected[0, 0] <= found.tolerance[0, 0]


def test_a_sum_beyond_the_result_is_expected_as_infinity():
    """400.5**2 is no f16: every correct kernel stores infinity, with real numbers as with whole ones."""
    operation = Matmul(1, 1, 1, ElementTypes("f32", "f32", "f16"))
    found = reference(operation, filled(operation, 400.5, 400.5))
    actual = np.float64(np.inf)
    assert actual == found.expected[0, 0] or abs(actual - found.expected[0, 0]) <= found.tolerance[0, 0]


# -- and no further --------------------------------------------------------------------------------


@pytest.mark.parametrize(("type_", "roundoff", "both"), [("f32", 2.0**-24, 1), ("f64", 2.0**-53, 2)])
@given(k=st.integers(1, 90), seed=seeds())
@PROPERTY
def test_the_tolerance_of_short_sums_is_the_bound_that_always_holds(type_, roundoff, both, k, seed):
    """K * u * sum|a||b| (Higham, section 3.1), twice in f64, where the reference rounds as well."""
    operation = Matmul(1, 1, k, element_types((type_, type_)))
    lhs, rhs = reals(operation, seed)
    tolerance = float(reference(operation, [lhs, rhs]).tolerance[0, 0])
    magnitude = float((np.abs(lhs.astype(np.float64)) @ np.abs(rhs.astype(np.float64)))[0, 0])
    assert both * k * roundoff * magnitude <= tolerance
    assert tolerance <= both * 1.02 * (k + 1) * roundoff * magnitude + 1e-37


@pytest.mark.parametrize("k", [1_000, 10_000, 100_000])
def test_the_tolerance_of_long_sums_is_the_probabilistic_bound(k):
    """10 * sqrt(K) * u * sum|a||b| (Higham and Mary, Theorem 3.1) to two percent."""
    operation = Matmul(1, 1, k)
    inputs = spread(operation)
    magnitude = float((inputs[0].astype(np.float64) @ inputs[1].astype(np.float64))[0, 0])
    bound = 10 * math.sqrt(k) * F32_ROUNDOFF * magnitude
    assert bound <= float(reference(operation, inputs).tolerance[0, 0]) <= 1.02 * bound


@pytest.mark.parametrize("k", [1_000, 10_000, 100_000])
def test_the_tolerance_of_sums_of_equal_terms_is_the_bound_that_always_holds(k):
    """Their rounding errors are not independent: each addition to a large sum rounds to the same side."""
    operation = Matmul(1, 1, k)
    inputs = filled(operation)
    magnitude = k * float(inputs[0][0, 0]) * float(inputs[1][0, 0])
    tolerance = float(reference(operation, inputs).tolerance[0, 0])
    in_order = float(np.add.accumulate((inputs[0] * inputs[1].T)[0])[-1])
    assert k * F32_ROUNDOFF * magnitude <= tolerance <= 1.05 * k * F32_ROUNDOFF * magnitude
    assert abs(in_order - magnitude) <= tolerance
    assert k < 100_000 or abs(in_order - magnitude) > 10 * math.sqrt(k) * F32_ROUNDOFF * magnitude


def test_the_tolerance_grows_with_the_number_of_products():
    """As fast as sqrt(K) relative to the magnitude, and never slower than the sum itself."""
    relative = []
    for k in (1, 4, 16, 64, 256, 1024, 4096):
        found = reference(Matmul(1, 1, k), spread(Matmul(1, 1, k)))
        relative.append(float(found.tolerance[0, 0] / found.expected[0, 0]))
    assert all(less < more for less, more in pairwise(relative))
    assert relative[-1] / relative[-2] == pytest.approx(2, rel=0.05)


def test_the_tolerance_grows_with_the_result_type():
    """f64, f32, f16, bf16, f8: each rounding is coarser than the one before."""
    operations_ = [Matmul(1, 1, 16, ElementTypes("f64", "f64", result)) for result in FLOATS]
    tolerances = [float(reference(op, filled(op)).tolerance[0, 0]) for op in operations_]
    assert sorted(set(tolerances)) == tolerances


@pytest.mark.parametrize("result", FLOATS[2:])
def test_a_narrow_result_may_be_off_by_one_rounding_and_hardly_more(result):
    """Half a unit in the last place at most, where the sum is only a few products."""
    operation = Matmul(1, 1, 4, ElementTypes("f32", "f32", result))
    found = reference(operation, filled(operation, 0.7, 1.1))
    u = element_type(result).unit_roundoff
    smallest = float(element_type(result).finfo().smallest_subnormal)
    relative = float((found.tolerance[0, 0] - smallest) / found.expected[0, 0])
    assert u <= relative <= 1.01 * u


@pytest.mark.parametrize(("result", "k"), [("f32", 512), ("f16", 64), ("bf16", 16)])
@given(seed=seeds())
@PROPERTY
def test_a_dropped_product_of_typical_size_is_noticed(result, k, seed):
    """The median product, left out of a sum of real numbers, is more than the tolerance."""
    operation = Matmul(1, 1, k, ElementTypes("f32", "f32", result))
    rng = np.random.default_rng(seed)
    lhs = rng.uniform(-1, 1, (1, k)).astype(np.float32)
    rhs = (rng.uniform(-1, 1, (k, 1)) * math.sqrt(3 / k)).astype(np.float32)
    found = reference(operation, [lhs, rhs])
    typical = float(np.median(np.abs(lhs[0].astype(np.float64) * rhs[:, 0])))
    assert float(found.tolerance[0, 0]) < typical


@pytest.mark.parametrize(("name", "slope"), [("relu", 1), ("gelu", 1.13), ("sigmoid", 0.25), ("tanh", 1)])
def test_an_activation_stretches_the_tolerance_by_its_slope(name, slope):
    """Of a sum of 40,000 products, whose error is far above that of the activation."""
    plain, active = (Matmul(1, 1, 40_000, epilogue=Epilogue.parse(each)) for each in ("none", name))
    tolerances = [float(reference(each, filled(each)).tolerance[0, 0]) for each in (plain, active)]
    assert tolerances[1] / tolerances[0] == pytest.approx(slope, rel=0.01)


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_the_tolerance_is_carried_through_an_activation(name):
    """No wider than its steepest slope and some roundoffs allow: a gelu for a relu is noticed."""
    operation = Matmul(1, 1, 8, epilogue=Epilogue.parse(name))
    found = reference(operation, filled(operation, 0.3, 0.4))
    others = [
        activated(other, float(exact_sum([(0.3, 0.4)] * 8))) for other in ACTIVATION_NAMES if other != name
    ]
    far = [abs(other - found.expected[0, 0]) > found.tolerance[0, 0] for other in others]
    same = {"none", "relu"} - {name} if name in ("none", "relu") else set()
    assert len(others) - len(same) == sum(far)


def test_a_forgotten_bias_is_noticed():
    """Even a bias of a thousandth."""
    operation = Matmul(1, 1, 8, epilogue=Epilogue.parse("bias"))
    found = reference(operation, [*filled(operation), np.array([0.001], np.float32)])
    without = float(exact_sum([(np.float32(0.1).item(),) * 2] * 8))
    assert abs(without - found.expected[0, 0]) > found.tolerance[0, 0]


@pytest.mark.parametrize("power", [25, 100, -100])
def test_the_tolerance_of_f64_follows_its_whole_range(power):
    """Magnitudes far from 1, which f32 does not hold, have a tolerance as tight as any."""
    operation = Matmul(1, 1, 2, ElementTypes("f64", "f64", "f64"))
    found = reference(operation, filled(operation, 1.1 * 10.0**power, 1.3))
    assert 0 < found.tolerance[0, 0] < 1e-12 * found.expected[0, 0]
    squared = reference(operation, filled(operation, 1.1 * 10.0**power, 1.3 * 10.0**power))
    assert 0 < squared.tolerance[0, 0] < 1e-12 * squared.expected[0, 0]


# -- what is no number -----------------------------------------------------------------------------


def test_nan_is_expected_only_where_it_is_summed():
    """One NaN in a row of lhs reaches that row of the result."""
    operation = Matmul(2, 2, 2)
    lhs, rhs = filled(operation)
    lhs[0, 1] = np.nan
    assert np.isnan(reference(operation, [lhs, rhs]).expected).tolist() == [[True, True], [False, False]]


def test_a_finite_result_is_never_within_an_infinite_sum():
    """|5 - inf| <= inf would pass anything."""
    operation = Matmul(1, 1, 2)
    lhs, rhs = filled(operation)
    lhs[0, 0] = np.inf
    found = reference(operation, [lhs, rhs])
    with np.errstate(invalid="ignore"):
        assert not abs(5.0 - found.expected[0, 0]) <= found.tolerance[0, 0]


# -- the factor ------------------------------------------------------------------------------------


@PROPERTY
@given(st.integers(1, 2**40), st.sampled_from(["f32", "f64"]))
def test_the_factor_is_positive_and_grows_with_the_number_of_products(products_, name):
    """Also where K * u passes 1, so that the bound that always holds says nothing."""
    type_ = element_type(name)
    assert 0 < accumulation_factor(products_, type_) <= accumulation_factor(2 * products_, type_)


@pytest.mark.parametrize("products_", [2**24 - 2, 2**24 - 1, 2**24, 2**25])
def test_the_factor_of_very_long_sums_is_the_probabilistic_one(products_):
    """10 * sqrt(K) * u to a percent, where K * u is about 1 in f32."""
    expected = 10 * math.sqrt(products_) * F32_ROUNDOFF
    assert expected == pytest.approx(accumulation_factor(products_, element_type("f32")), rel=0.01)


@PROPERTY
@given(st.integers(1, 10_000))
def test_the_factor_is_never_above_either_bound(products_):
    """The smaller of K * u and 10 * sqrt(K) * u, each with its higher terms."""
    steps = products_ + 1
    factor = accumulation_factor(products_, element_type("f32"))
    assert factor <= steps * F32_ROUNDOFF * 1.001
    assert factor <= 10 * math.sqrt(steps) * F32_ROUNDOFF * 1.001


def test_f16_and_bf16_are_summed_as_precisely_as_f32():
    """Their accumulator is f32: with an f32 result the tolerance is the same."""
    dims = (1, 1, 64)
    found = [reference(op, filled(op, 0.75, 0.3125)) for op in
             (Matmul(*dims, ElementTypes(name, name, "f32")) for name in ("f32", "f16", "bf16"))]  # fmt: skip
    assert len({float(each.tolerance[0, 0]) for each in found}) == 1
    assert {"f32"} == {element_type(name).accumulator_name for name in ("f32", "f16", "bf16")}
    assert DTYPES["f32"] is np.float32


@pytest.mark.parametrize("step", ["bias", "residual"])
def test_a_sum_that_starts_with_the_bias_is_within_the_tolerance(step):
    """IREE does so where it unrolls the whole reduction: small products are then rounded as the bias is."""
    operation = Matmul(400, 64, 9, epilogue=Epilogue.parse(step))
    rng = np.random.default_rng(4)
    lhs, rhs, added = (rng.uniform(-1, 1, t.shape).astype(np.float32) for t in operation.operands)
    lhs *= np.float32(0.01)
    total = np.broadcast_to(added, (400, 64)).astype(np.float32)
    for k in range(9):
        total = total + lhs[:, k : k + 1] * rhs[k]
    (found,) = operation.reference([lhs, rhs, added])
    assert (np.abs(total - found.expected) <= found.tolerance).all()


# -- alike -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("size", [2, 1000, 300_000])
def test_terms_are_alike_if_they_deviate_little_from_their_mean(type_, size):
    """As numpy's deviation and mean say, also of arrays that are looked at in blocks."""
    rng = np.random.default_rng(size)
    for spread_ in (0.01, 0.05, 0.2, 1.0):
        for mean in (-3.0, 0.0, 1.0):
            array = (mean + spread_ * rng.uniform(-1.0, 1.0, size)).astype(element_type(type_).dtype)
            wide = array.astype(np.float64)
            assert are_alike(array) == (wide.std() < abs(wide.mean()) / 16.0)


def test_all_factors_must_be_alike():
    same, different = np.full(8, 2.0), np.arange(8.0)
    assert are_alike(same, same) and not are_alike(same, different) and not are_alike(different, same)
    assert are_alike(np.ones(1), same)  # a scalar

"""Input tensors: determined by the seed, never two alike, exact where they claim to be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.operations import (
    DEFAULT_SEED,
    BatchMatmul,
    Conv2d,
    Distribution,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
)
from dispatch_profiler.profiler.verification.inputs import draw

TYPES = [
    ElementTypes("f64", "f64", "f64"),
    ElementTypes("f32", "f32", "f32"),
    ElementTypes("f16", "f16", "f16"),
    ElementTypes("f16", "f16", "f32"),
    ElementTypes("bf16", "bf16", "bf16"),
    ElementTypes("f8E4M3FN", "f8E4M3FN", "f32"),
    ElementTypes("f8E4M3FN", "f8E4M3FN", "f8E4M3FN"),
    ElementTypes("i8", "i8", "i32"),
]
BIAS = Epilogue.parse("bias")
BOTH = [Distribution.INTEGERS, Distribution.REALS]


def _id(value: object) -> str | None:
    return f"{value.lhs}-{value.result}" if isinstance(value, ElementTypes) else None


def every_kind(types: ElementTypes) -> list[Operation]:
    return [
        Matmul(8, 16, 32, types, "n", "t", BIAS),
        BatchMatmul(2, 8, 16, 32, types, "t", "n", BIAS),
        Conv2d(1, 8, 8, 4, 16, 3, 3, padding=(1, 1), layout="nchw", types=types, epilogue=BIAS),
        Conv2d(1, 8, 8, 8, 8, 3, 3, groups=8, types=types),
    ]


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.array_equal(wide(a), wide(b)))


# -- one seed, one set of arrays -------------------------------------------------------------------


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_the_same_seed_gives_the_same_arrays(types, distribution):
    """Two draws with one seed agree bit for bit."""
    for operation in every_kind(types):
        first, second = (draw(operation, distribution, 7) for _ in range(2))
        assert [a.tobytes() for a in first] == [a.tobytes() for a in second]


@pytest.mark.parametrize("distribution", BOTH)
def test_another_seed_gives_other_arrays(distribution):
    """No tensor survives a change of the seed."""
    operation = Matmul(16, 16, 16, epilogue=BIAS)
    for a, b in zip(draw(operation, distribution, 7), draw(operation, distribution, 8), strict=True):
        assert not alike(a, b)


def test_a_draw_is_the_same_on_every_machine():
    """These values were drawn once; whatever changes them changes what old figures were verified with."""
    lhs, rhs = draw(Matmul(2, 2, 3), Distribution.INTEGERS, DEFAULT_SEED)
    assert lhs.tolist() == [[-4, -6, 4], [-5, -3, 2]]
    assert rhs.tolist() == [[5, 1], [0, 2], [-1, -1]]
    lhs, _ = draw(Matmul(2, 2, 3), Distribution.REALS, DEFAULT_SEED)
    assert lhs[0].tolist() == pytest.approx([0.24195132, -0.14793408, -0.44039732])


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**70])
def test_every_whole_number_is_a_seed(seed):
    """Zero and seeds beyond 64 bits work and differ from the default."""
    arrays = draw(Matmul(16, 16, 16), Distribution.REALS, seed)
    assert not alike(arrays[0], draw(Matmul(16, 16, 16), Distribution.REALS, DEFAULT_SEED)[0])


# -- never two tensors alike -----------------------------------------------------------------------


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_square_operands_differ_also_when_transposed(types, distribution):
    """A kernel that reads one operand for the other, or its transpose, cannot be right by chance."""
    lhs, rhs = draw(Matmul(16, 16, 16, types), distribution, 1)
    assert not alike(lhs, rhs)
    assert not alike(lhs, rhs.T)
    assert not alike(lhs, lhs.T)
    assert not alike(rhs, rhs.T)


@pytest.mark.parametrize("distribution", BOTH)
def test_no_slice_of_a_batch_is_like_another(distribution):
    """A kernel that takes the wrong batch cannot be right by chance."""
    lhs, rhs = draw(BatchMatmul(4, 16, 16, 16), distribution, 1)
    slices = [*lhs, *rhs]
    assert not any(alike(a, b) for a, b in itertools.combinations(slices, 2))


def test_operations_and_distributions_share_no_tensor():
    """Layouts, types, epilogues and kinds of one shape all get tensors of their own."""
    operations = [
        Matmul(16, 16, 16),
        Matmul(16, 16, 16, lhs_layout="n"),
        Matmul(16, 16, 16, ElementTypes("f64", "f64", "f64")),
        Matmul(16, 16, 16, epilogue=Epilogue.parse("relu")),
        BatchMatmul(1, 16, 16, 16),
        Matmul(16, 16, 32),
    ]
    tensors = [a for op in operations for d in BOTH for a in draw(op, d, 1)]
    square = [wide(a).reshape(16, 16) for a in tensors if a.size == 256]
    assert len(square) == 20
    assert not any(alike(a, b) or alike(a, b.T) for a, b in itertools.combinations(square, 2))


def test_alike_can_find_two_tensors_that_are():
    """The checker of the tests above sees equal values through types and transposes."""
    a = np.arange(9).reshape(3, 3)
    assert alike(a, a.astype(np.float16)) and alike(a.T, a.copy().T)
    assert not alike(a, a.T)


# -- shapes and types ------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_arrays_have_the_shapes_and_types_of_the_operation(types, distribution):
    """One array for each tensor of `inputs`, in its order."""
    for operation in every_kind(types):
        arrays = draw(operation, distribution, 3)
        assert [a.shape for a in arrays] == [t.shape for t in operation.operands]
        assert [a.dtype for a in arrays] == [t.type.dtype for t in operation.operands]


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_no_input_is_nan_or_infinite(types, distribution):
    """Every value is finite in its own type."""
    for operation in every_kind(types):
        assert all(np.isfinite(wide(a)).all() for a in draw(operation, distribution, 3))


# -- whole numbers ---------------------------------------------------------------------------------

EXTENTS = [1, 2, 63, 64, 500, 4096, 65_504, 2**16, 2**20, 2**24, 2**27]


def limits(types: ElementTypes) -> tuple[int, int]:
    """What the accumulator holds exactly and what the result holds, in Python's whole numbers."""
    exact = {"f64": 2**53, "f32": 2**24, "i32": 2**31 - 1}[types.accumulator.name]
    largest = {"f16": 65_504, "f8E4M3FN": 448, "i32": 2**31 - 1}.get(types.result, 2**127)
    return exact, largest


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_dense_whole_numbers_cannot_leave_the_exact_range(types, extent):
    """K products of the largest magnitude and the largest bias still fit accumulator and result."""
    amplitude, density = Matmul(2, 2, extent, types).integer_range()
    assert amplitude >= 1 and 0.0 < density <= 1.0
    if density == 1.0:
        assert extent * amplitude**2 + 7 <= min(limits(types))


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_sparse_whole_numbers_stay_far_inside_the_exact_range(types, extent):
    """Where zeros are needed, the number of products that are not zero is ten deviations below the limit."""
    amplitude, density = Matmul(2, 2, extent, types).integer_range()
    if density < 1.0:
        assert amplitude == 1
        terms = extent * density**2
        assert terms + 10 * terms**0.5 < min(limits(types))


@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_whole_numbers_as_large_as_the_range_allows_are_used(types):
    """One more in amplitude would leave the exact range, or test nothing more."""
    for extent in EXTENTS:
        amplitude, density = Matmul(2, 2, extent, types).integer_range()
        if density == 1.0 and amplitude < 7:
            assert extent * (amplitude + 1) ** 2 + 7 > min(limits(types))


@pytest.mark.some(2)
@pytest.mark.parametrize("types", [t for t in TYPES if t.input.bits <= 16], ids=_id)
def test_no_partial_sum_of_a_huge_reduction_leaves_the_exact_range(types):
    """For K = 2**20, the sum of all magnitudes, which bounds every order of summation, fits."""
    lhs, rhs = draw(Matmul(1, 1, 2**20, types), Distribution.INTEGERS, 5)
    magnitudes = [abs(int(a) * int(b)) for a, b in zip(lhs[0], rhs[:, 0], strict=True)]
    assert 0 < sum(magnitudes) + 7 <= min(limits(types))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(types=st.sampled_from(TYPES), extent=st.integers(1, 600), seed=st.integers(0, 2**40))
def test_drawn_whole_numbers_sum_exactly_in_any_order(types, extent, seed):
    """Whatever K and seed: magnitudes with the bias stay in range, and values are whole in their type."""
    operation = Matmul(2, 3, extent, types, epilogue=BIAS)
    lhs, rhs, bias = (wide(a) for a in draw(operation, Distribution.INTEGERS, seed))
    assert all(np.array_equal(np.rint(a), a) for a in (lhs, rhs, bias))
    bound = np.abs(lhs).astype(int).astype(object) @ np.abs(rhs).astype(int).astype(object)
    assert (bound + np.abs(bias).astype(int)).max() <= min(limits(types))


@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_convolutions_count_every_tap_as_an_accumulation(types):
    """A convolution's range is that of a matmul with K = R * S * C."""
    conv = Conv2d(1, 8, 8, 64, 8, 3, 3, types=types)
    assert conv.integer_range() == Matmul(2, 2, 3 * 3 * 64, types).integer_range()


@pytest.mark.parametrize("types", TYPES, ids=_id)
def test_whole_numbers_take_both_signs_and_both_ends(types):
    """The whole of [-amplitude, amplitude] occurs."""
    operation = Matmul(64, 64, 64, types)
    amplitude, _ = operation.integer_range()
    for array in draw(operation, Distribution.INTEGERS, 1):
        assert set(np.unique(wide(array))) == set(range(-amplitude, amplitude + 1))


def test_zeros_never_thin_out_the_bias():
    """A bias keeps about two values in three that are not zero, however sparse the operands are."""
    operation = Matmul(1, 3000, 2**12, ElementTypes("f8", "f8", "f8"), epilogue=BIAS)
    lhs, _, bias = draw(operation, Distribution.INTEGERS, 1)
    assert np.count_nonzero(wide(lhs)) / lhs.size < 0.15
    assert np.count_nonzero(wide(bias)) / bias.size > 0.6


# -- reals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [t for t in TYPES if not t.input.is_integer], ids=_id)
def test_reals_are_no_whole_numbers_and_take_both_signs(types):
    """Most values have a fraction, and a quarter or more are of either sign."""
    for array in draw(Matmul(32, 32, 32, types), Distribution.REALS, 1):
        values = wide(array)
        assert np.mean(np.rint(values) != values) > 0.9
        assert 0.25 < np.mean(values > 0) < 0.75


def test_reals_of_i8_take_every_value_of_the_type():
    """Integers are exact whatever they are, so the ends of the range are tested too."""
    lhs, rhs = draw(Matmul(128, 128, 128, ElementTypes("i8", "i8", "i32")), Distribution.REALS, 1)
    assert set(np.unique(lhs)) == set(np.unique(rhs)) == set(range(-128, 128))


@pytest.mark.parametrize("extent", [16, 1024, 2**16])
@pytest.mark.parametrize("types", [t for t in TYPES if t.input.bits > 8], ids=_id)
def test_sums_of_reals_stay_near_one(types, extent):
    """Standard deviation of the sums near 1/sqrt(3), where activations bend, for every K."""
    lhs, rhs = draw(Matmul(16, 16, extent, types), Distribution.REALS, 1)
    assert 0.4 < float(np.std(wide(lhs) @ wide(rhs))) < 0.75


@pytest.mark.parametrize("extent", [64, 2**12, 2**16, 2**20])
@pytest.mark.parametrize("types", [t for t in TYPES if not t.input.is_integer], ids=_id)
def test_sums_of_reals_never_overflow_the_result(types, extent):
    """A right kernel is never asked for a value that its result type cannot hold."""
    lhs, rhs = draw(Matmul(4, 4, extent, types), Distribution.REALS, 1)
    assert np.abs(wide(lhs) @ wide(rhs)).max() <= float(types.output.finfo().max)


@pytest.mark.parametrize("extent", [1, 7, 64, 2**16, 2**20])
@pytest.mark.parametrize("given", ["f8", "bf16", "f32"])
def test_no_result_in_f8_of_reals_is_subnormal_without_an_approximated_activation(given, extent):
    """Every partial sum is a multiple of 2**-6, the smallest normal number; few are whole, and none overflows."""
    operation = Matmul(4, 4, extent, ElementTypes(given, given, "f8"), epilogue=BIAS)
    lhs, rhs, bias = (wide(a) for a in draw(operation, Distribution.REALS, 1))

    sums = lhs @ rhs + bias

    assert operation.avoids_subnormals
    assert np.array_equal(np.rint(sums * 64), sums * 64)
    assert np.mean(np.rint(sums) != sums) > 0.5
    assert 0.0 < np.abs(sums).max() <= 448.0


@pytest.mark.parametrize("activation", ["gelu", "sigmoid", "tanh"])
def test_results_in_f8_of_an_approximated_activation_may_be_subnormal(activation):
    """Then operands are drawn as for every other type."""
    operation = Matmul(4, 4, 16, ElementTypes("f8", "f8", "f8"), epilogue=Epilogue.parse(activation))
    lhs, _ = draw(operation, Distribution.REALS, 1)

    assert not operation.avoids_subnormals
    assert np.mean(wide(lhs) * 8 != np.rint(wide(lhs) * 8)) > 0.5


def test_a_distribution_is_named_as_it_is_written_in_reasons():
    """The words that a reason and a key hold."""
    assert [d.value for d in Distribution] == ["integers", "reals", "offset"]

"""Softmax: its reference against sums written out, its bound against kernels that round, and its sweep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.errors import RangeError
from dispatch_profiler.operations import DEFAULT_SEED, Distribution, Reference, Softmax, SweepOptions
from dispatch_profiler.profiler.verification.inputs import draw

softmaxes = st.builds(
    Softmax,
    st.integers(1, 5),
    st.integers(1, 40),
    st.sampled_from(("f32", "f16", "bf16", "f64")),
    st.sampled_from((1.0, 0.125, 1e-3, 30.0)),
)
distributions = st.sampled_from(Softmax.distributions)


def naive(operation: Softmax, x: np.ndarray) -> np.ndarray:
    """Each row by its definition, with sums that round once."""
    found = []
    for row in x.astype(np.float64) * operation.scale:
        terms = [math.exp(each - max(row)) for each in row]
        found.append([term / math.fsum(terms) for term in terms])
    return np.array(found)


def worst(reference: Reference, result: np.ndarray) -> float:
    """The largest error, as a part of its bound."""
    assert reference.tolerance is not None
    return float(np.max(np.abs(result - reference.expected) / reference.tolerance))


@given(softmaxes, distributions)
def test_the_reference_is_the_definition(operation: Softmax, distribution: Distribution):
    (x,) = draw(operation, distribution, DEFAULT_SEED)
    (reference,) = operation.reference([x])
    np.testing.assert_allclose(reference.expected, naive(operation, x), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(reference.expected.sum(axis=1), 1.0, rtol=1e-12)


@given(softmaxes.filter(lambda operation: operation.type == "f32"), distributions, st.booleans())
def test_a_kernel_in_f32_is_within_the_bound(operation: Softmax, distribution: Distribution, stepwise: bool):
    """Also one that scales first, as libraries do, within the bound for libraries."""
    (x,) = draw(operation, distribution, DEFAULT_SEED)
    scale = np.float32(operation.scale)
    top = x.max(axis=1, keepdims=True)
    powers = np.exp(x * scale - top * scale if stepwise else (x - top) * scale)
    (reference,) = operation.reference([x], stepwise=stepwise)
    assert worst(reference, powers / powers.sum(axis=1, keepdims=True)) <= 1.0


@pytest.mark.parametrize("distribution", Softmax.distributions)
def test_wrong_kernels_are_not(distribution: Distribution):
    operation = Softmax(8, 64, "f16", 0.25)
    (x,) = draw(operation, distribution, DEFAULT_SEED)
    (reference,) = operation.reference([x])
    right = naive(operation, x)
    wrong = {
        "not scaled": naive(Softmax(8, 64, "f16"), x),
        "over the other axis": naive(operation, x.T).T,
        "rows exchanged": right[::-1],
        "last element left out": np.pad(naive(operation, x[:, :-1]), ((0, 0), (0, 1))),
    }
    assert {name for name, each in wrong.items() if worst(reference, each) <= 1.0} == set()
    assert worst(reference, right.astype(np.float16)) <= 1.0


def test_offset_elements_overflow_unless_the_maximum_is_subtracted():
    """For every element type with the range of f32."""
    for type_ in ("f32", "bf16"):
        (x,) = draw(Softmax(16, 8, type_), Distribution.OFFSET, DEFAULT_SEED)
        with np.errstate(over="ignore"):
            powers = np.exp(x.astype(np.float32))
        assert np.isinf(powers).any() and (powers == 0.0).all(axis=1).any()


def test_elements_stay_finite_whatever_the_scale():
    for type_, scale in (("f16", 1e-6), ("f32", 1e-37), ("bf16", 1e30)):
        for distribution in Softmax.distributions:
            (x,) = draw(Softmax(3, 5, type_, scale), distribution, DEFAULT_SEED)
            assert np.isfinite(x.astype(np.float64)).all()


def test_names_types_and_work():
    operation = Softmax(128, 768, "f16", 0.125)
    assert (operation.type, operation.name) == ("f16", "softmax_128x768_f16t_scale0p125")
    assert Softmax(2, 3, scale=1e-5).name == "softmax_2x3_f32t_scale1em05"
    assert (Softmax(2, 3).name, Softmax(2, 3).flops) == ("softmax_2x3_f32t", 30)
    assert operation.flops == 6 * 128 * 768
    assert operation.bytes == 2 * 2 * 128 * 768
    assert operation.accumulator.name == operation.sums_type.name == "f32"


def test_a_sweep_has_every_point_and_a_default():
    shapes = {"softmax_rows": (2, 3), "softmax_size": (5,), "softmax_scale": (1.0, 0.5)}
    swept = [make() for make in Softmax.sweep(SweepOptions(shapes))]
    assert swept == [
        Softmax(rows, 5, type_, scale) for rows in (2, 3) for type_ in ("f16", "f32") for scale in (1.0, 0.5)
    ]
    assert len([make() for make in Softmax.sweep(SweepOptions())]) == 6


def test_a_malformed_scale_has_a_hint():
    (option,) = (each for each in Softmax.shape_options if each.name == "softmax_scale")
    assert option.parse("1,0.125") == (1.0, 0.125)
    with pytest.raises(RangeError, match="malformed number in '1,x'"):
        option.parse("1,x")

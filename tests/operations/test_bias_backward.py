"""Gradient of a bias: its reference against loops and torch's autograd, and what its bounds let through."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Distribution, SweepOptions, operation_from_dict
from dispatch_profiler.operations.convolution.bias_backward import BIAS_PROBLEMS, BiasBackward
from dispatch_profiler.operations.reductions import TYPES
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare
from dispatch_profiler.workloads import Sweep, sweep_workload

SMALL = BiasBackward(3, 5, 7)
SHAPES = [(1, 1, 1), (7, 3, 1), (1, 4, 9), (3, 5, 7), (4096, 2, 1), (300, 3, 100)]


def operands_of(operation: BiasBackward, distribution: Distribution = Distribution.REALS) -> tuple:
    return draw(operation, distribution, 7)


def by_loops(operation: BiasBackward, operands) -> list[float]:
    """Correctly rounded sums of Python's own floats."""
    dy = operands[0].astype(np.float64).tolist()
    return [
        math.fsum(dy[o][c][i] for o in range(operation.outer) for i in range(operation.inner))
        for c in range(operation.channels)
    ]


def plain_kernel(operation: BiasBackward, operands, wrong: str = "") -> list[np.ndarray]:
    """A kernel that adds one element after another in the type of the sums; `wrong` plants a fault."""
    dy = operands[0].astype(operation.sums_type.dtype)
    if wrong == "last outer":
        dy = dy[:-1]
    if wrong == "last inner":
        dy = dy[:, :, :-1]
    if wrong == "mixed axes":
        dy = dy.reshape(operation.outer, operation.inner, operation.channels).transpose(0, 2, 1)
    terms = dy.transpose(1, 0, 2).reshape(operation.channels, -1)
    found = np.add.accumulate(terms, axis=1)[:, -1] / (terms.shape[1] if wrong == "mean" else 1)
    return [found.astype(operation.element_type.dtype)]


# -- reference -------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", list(Distribution))
@pytest.mark.parametrize("type_", TYPES)
def test_the_reference_is_what_loops_compute(type_, distribution):
    operation = BiasBackward(4, 3, 37, type_)
    operands = operands_of(operation, distribution)
    (found,) = operation.reference(operands)
    expected = np.array(by_loops(operation, operands))
    if found.tolerance is None:
        expected = expected.astype(found.expected.dtype)
    np.testing.assert_allclose(found.expected.astype(float), expected.astype(float), rtol=1e-13, atol=1e-13)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    last=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_is_the_gradient_of_the_bias_of_a_convolution(batch, channels, size, last, seed):
    """By torch's autograd in float64, in NCHW and NHWC; hypothesis prints the seed."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    images, filters = rng.uniform(-1, 1, (batch, 2, *size)), rng.uniform(-1, 1, (channels, 2, 1, 1))
    dy = rng.uniform(-1, 1, (batch, channels, *size))
    with torch.enable_grad():
        bias = torch.zeros(channels, dtype=torch.float64, requires_grad=True)
        y = torch.conv2d(torch.from_numpy(images), torch.from_numpy(filters), bias)
        (theirs,) = torch.autograd.grad(y, [bias], torch.from_numpy(dy))
    pixels = math.prod(size)
    if last:
        operation, dy = BiasBackward(batch * pixels, channels, 1, "f64"), dy.transpose(0, 2, 3, 1)
    else:
        operation = BiasBackward(batch, channels, pixels, "f64")
    (found,) = operation.reference([dy.reshape(operation.operands[0].shape)])
    np.testing.assert_allclose(found.expected, theirs.numpy(), rtol=1e-12, atol=1e-13)


# -- exact integers and bounds ---------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_integers_are_exact(shape, type_):
    """Any order of summation gives the same result, which must be equal."""
    operation = BiasBackward(*shape, type_)
    (dy,) = operands_of(operation, Distribution.INTEGERS)
    references = operation.reference((dy,))
    assert references[0].tolerance is None
    assert np.isfinite(references[0].expected.astype(float)).all()
    assert compare(operation, plain_kernel(operation, (dy,)), references).passed
    assert compare(operation, plain_kernel(operation, (dy[::-1, :, ::-1],)), references).passed


def test_integers_too_many_to_be_exact_have_a_bound():
    operation = BiasBackward(3, 4)
    (dy,) = operands_of(operation, Distribution.INTEGERS)
    assert operation.reference((dy * np.float32(2**15),))[0].tolerance is not None


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_plain_kernel_passes(shape, type_):
    operation = BiasBackward(*shape, type_)
    operands = operands_of(operation)
    assert compare(operation, plain_kernel(operation, operands), operation.reference(operands)).passed


@pytest.mark.parametrize("distribution", [Distribution.INTEGERS, Distribution.REALS])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("wrong", ["last outer", "last inner", "mixed axes", "mean"])
def test_a_wrong_formula_fails(wrong, type_, distribution):
    operation = BiasBackward(6, 5, 7, type_)
    operands = operands_of(operation, distribution)
    assert not compare(
        operation, plain_kernel(operation, operands, wrong), operation.reference(operands)
    ).passed


@pytest.mark.parametrize("distribution", [Distribution.INTEGERS, Distribution.REALS])
def test_a_fault_in_any_element_fails_and_is_named(distribution):
    operands = operands_of(SMALL, distribution)
    actual = plain_kernel(SMALL, operands)
    actual[0][3] += np.float32(1e-3)
    comparison = compare(SMALL, actual, SMALL.reference(operands))
    assert not comparison.passed
    assert comparison.message.startswith("1 of 5 elements are wrong; the worst: db[3]")


def test_sums_in_too_narrow_a_type_fail():
    """bf16 keeps 8 bits of a sum of 400 terms."""
    operation = BiasBackward(400, 5, 1, "bf16")
    (dy,) = operands_of(operation)
    narrow = np.zeros((5, 1), dy.dtype)
    for row in dy:
        narrow = (narrow + row).astype(dy.dtype)
    assert not compare(operation, [narrow[:, 0]], operation.reference((dy,))).passed


def test_bounds_are_a_few_roundoffs_for_short_sums():
    """A bound that lets everything through would pass all the tests of right kernels."""
    assert (operation_bound(BiasBackward(8, 4, 2)) < 2e-5).all()
    assert (operation_bound(BiasBackward(8, 4, 2, "f64")) < 1e-13).all()


def operation_bound(operation: BiasBackward) -> np.ndarray:
    return operation.reference(operands_of(operation))[0].tolerance


# -- identity and options --------------------------------------------------------------------------


def test_its_name_its_tensors_and_its_counts():
    assert SMALL.name == "bias_backward_3x5x7_f32t"
    assert BiasBackward(9, 4, type="bf16").name == "bias_backward_9x4x1_bf16t"
    assert [tensor.mlir for tensor in (*SMALL.operands, *SMALL.results)] == [
        "tensor<3x5x7xf32>",
        "tensor<5xf32>",
    ]
    assert (SMALL.accumulations, SMALL.flops, SMALL.bytes) == (21, 105, 4 * (105 + 5))


def test_it_comes_back_from_plain_data():
    assert operation_from_dict(SMALL.to_dict()) == SMALL


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"outer": 0}, "bias_backward: every extent must be at least 1, but got outer=0"),
        ({"channels": 2.0}, "bias_backward: .* channels=2.0"),
        ({"inner": -1}, "bias_backward: .* inner=-1"),
        ({"type": "i8"}, "bias_backward: no element type i8"),
        ({"type": "f99"}, "unknown element type 'f99'"),
    ],
)
def test_invalid_fields_are_rejected(fields, reason):
    with pytest.raises(OperationError, match=reason):
        BiasBackward(**{"outer": 2, "channels": 3, **fields})


def test_its_options_imply_it_and_sweep_over_it():
    shapes = {"bias_outer": (2, 3), "bias_channels": (8,), "bias_type": ("f32", "bf16")}
    found = sweep_workload(Sweep(options=SweepOptions(shapes=shapes))).workload.operations
    assert set(found) == {BiasBackward(outer, 8, 1, type_) for outer in (2, 3) for type_ in ("f32", "bf16")}


def test_its_predefined_problems():
    found = sweep_workload(Sweep((BiasBackward.kind,))).workload.operations
    assert set(found) == {BiasBackward(*shape, type_) for shape in BIAS_PROBLEMS for type_ in ("f16", "f32")}


# -- the three commands ----------------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 6, 1)])
def test_its_mlir_parses(shape, type_):
    from iree.compiler import ir

    operation = BiasBackward(*shape, type_)
    text = render_module(operation, (Dispatch(operation, Default()),))
    with ir.Context():
        module = ir.Module.parse(text)  # the bindings do not keep it alive for its operations
        (function,) = module.body.operations
        results = ir.FunctionType(function.type).results
        assert [str(each) for each in results] == [operation.results[0].mlir]

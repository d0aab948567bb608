"""Backward layer norms: their references against loops, and what their bounds let through."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dispatch_profiler.configurations import CpuTiles, Default, Limits
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import (
    Distribution,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Operation,
    SweepOptions,
    operation_from_dict,
)
from dispatch_profiler.operations.norm.normalization import LAYER_NORM_PROBLEMS
from dispatch_profiler.operations.reductions import TYPES
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare
from dispatch_profiler.workloads import Sweep, sweep_workload

INPUT, WEIGHT = LayerNormInputBackward, LayerNormWeightBackward
SMALL = [INPUT(3, 5), INPUT(3, 5, affine=False), WEIGHT(3, 5), WEIGHT(3, 5, affine="weight")]


def operands_of(operation: Operation, distribution: Distribution = Distribution.REALS) -> tuple:
    return draw(operation, distribution, 7)


def by_loops(operation: Operation, operands) -> list[np.ndarray]:
    """Every result by Python's own floats, one element after another, with correctly rounded sums."""
    dy, x, mean, rstd, *weight = (array.astype(np.float64).tolist() for array in operands)
    rows, columns = range(operation.rows), range(operation.size)
    xhat = [[(x[i][j] - mean[i]) * rstd[i] for j in columns] for i in rows]
    if operation.kind == "layer_norm_weight_backward":
        dweight = [math.fsum(dy[i][j] * xhat[i][j] for i in rows) for j in columns]
        dbias = [math.fsum(dy[i][j] for i in rows) for j in columns]
        return [np.array(dweight), np.array(dbias)][: len(operation.results)]
    g = [[dy[i][j] * (weight[0][j] if weight else 1.0) for j in columns] for i in rows]
    dx = np.empty((operation.rows, operation.size))
    for i in rows:
        mean_g = math.fsum(g[i]) / operation.size
        mean_dot = math.fsum(g[i][j] * xhat[i][j] for j in columns) / operation.size
        dx[i] = [rstd[i] * (g[i][j] - mean_g - xhat[i][j] * mean_dot) for j in columns]
    return [dx]


def plain_kernel(operation: Operation, operands, wrong: str = "") -> list[np.ndarray]:
    """A kernel; `wrong` plants a fault."""
    wide, long = operation.accumulator.dtype, operation.sums_type.dtype
    dy, x, mean, rstd, *weight = (array.astype(wide) for array in operands)
    mean, rstd = mean[:, None], rstd[:, None]
    if wrong == "own mean":
        mean = x.mean(axis=1, keepdims=True)
    xhat = x - mean if wrong == "no rstd in xhat" else (x - mean) * rstd
    if operation.kind == "layer_norm_weight_backward":
        counted = dy[:-1] if wrong == "last row" else dy
        found = [(dy * xhat).sum(axis=0, dtype=long), counted.sum(axis=0, dtype=long)]
    else:
        g = dy * weight[0] if weight and wrong != "no weight" else dy
        count = wide.type(operation.size - (wrong == "unbiased"))
        mean_g = 0 if wrong == "no mean of g" else g.sum(axis=1, keepdims=True, dtype=long) / count
        mean_dot = (
            0 if wrong == "no projection" else (g * xhat).sum(axis=1, keepdims=True, dtype=long) / count
        )
        mean_g, mean_dot = wide.type(1) * mean_g, wide.type(1) * mean_dot
        found = [rstd * (g - mean_g - xhat * mean_dot)]
    return [each.astype(operation.element_type.dtype) for each in found]


# -- reference -------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(
    ("kind", "distribution"), [(kind, each) for kind in (INPUT, WEIGHT) for each in kind.distributions]
)
def test_the_reference_is_what_loops_compute(kind, distribution, type_):
    operation = kind(4, 37, type_)
    operands = operands_of(operation, distribution)
    for found, expected in zip(operation.reference(operands), by_loops(operation, operands), strict=True):
        if found.tolerance is None:
            expected = expected.astype(found.expected.dtype)
        np.testing.assert_allclose(
            found.expected.astype(float), expected.astype(float), rtol=1e-12, atol=1e-13
        )


def test_the_forward_feeds_the_backward():
    """mean and rstd have the types and shapes in which the forward returns them."""
    for type_ in TYPES:
        _, mean, rstd = LayerNorm(3, 5, type_).results
        for operation in (INPUT(3, 5, type_), WEIGHT(3, 5, type_)):
            assert operation.operands[2:4] == (mean, rstd)


# -- operands --------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("kind", [INPUT, WEIGHT], ids=lambda kind: kind.kind)
def test_mean_and_rstd_are_plausible_for_x(kind, type_):
    """Within the error of a sample, and not exactly those of x."""
    operation = kind(50, 400, type_)
    _, x, mean, rstd, *_ = (array.astype(np.float64) for array in operands_of(operation))
    assert (rstd > 0).all()
    deviation = x.std(axis=1)
    away = np.abs(mean - x.mean(axis=1)) / deviation
    assert away.max() < 5 / math.sqrt(400)
    assert away.max() > 1e-3
    np.testing.assert_allclose(rstd * deviation, 1.0, atol=0.2)
    assert np.ptp(x.mean(axis=1)) > 1


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_integers_are_exact_for_the_weight(type_, rows):
    """Any order of summation gives the same result, which must be equal."""
    operation = WEIGHT(rows, 9, type_)
    operands = operands_of(operation, Distribution.INTEGERS)
    references = operation.reference(operands)
    assert [each.tolerance for each in references] == [None, None]
    assert all(np.isfinite(each.expected.astype(float)).all() for each in references)
    assert compare(operation, plain_kernel(operation, operands), references).passed
    backwards = [array[::-1] for array in operands]
    assert compare(operation, plain_kernel(operation, backwards), references).passed


def test_integers_too_many_to_be_exact_have_a_bound():
    operation = WEIGHT(3, 4)
    dy, x, mean, rstd = operands_of(operation, Distribution.INTEGERS)
    large = operation.reference((dy * np.float32(2**12), x, mean, rstd))
    assert all(each.tolerance is not None for each in large)


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 33), (8, 768), (3, 4096), (3000, 5)])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("kind", [INPUT, WEIGHT], ids=lambda kind: kind.kind)
def test_a_plain_kernel_passes(kind, type_, shape):
    operation = kind(*shape, type_)
    operands = operands_of(operation)
    assert compare(operation, plain_kernel(operation, operands), operation.reference(operands)).passed


@pytest.mark.parametrize("type_", ["f32", "f64", "f16"])
@pytest.mark.parametrize(
    ("kind", "wrong", "result"),
    [
        (INPUT, "no weight", "dx"),
        (INPUT, "no mean of g", "dx"),
        (INPUT, "no projection", "dx"),
        (INPUT, "no rstd in xhat", "dx"),
        (INPUT, "unbiased", "dx"),
        (INPUT, "own mean", "dx"),
        (WEIGHT, "no rstd in xhat", "dweight"),
        (WEIGHT, "own mean", "dweight"),
        (WEIGHT, "last row", "dbias"),
    ],
)
def test_a_wrong_formula_fails(kind, wrong, result, type_):
    operation = kind(8, 64, type_)
    operands = operands_of(operation)
    for stepwise in (False, True):
        references = operation.reference(operands, stepwise=stepwise)
        comparison = compare(operation, plain_kernel(operation, operands, wrong), references)
        assert not comparison.passed
        assert comparison.name == result


@pytest.mark.parametrize("operation", SMALL, ids=lambda operation: operation.name)
def test_a_fault_in_any_element_fails_and_is_named(operation):
    operands = operands_of(operation)
    references = operation.reference(operands)
    for index, result in enumerate(operation.results):
        actual = plain_kernel(operation, operands)
        actual[index].reshape(-1)[3] += np.float32(1e-3)
        comparison = compare(operation, actual, references)
        assert not comparison.passed
        assert comparison.message.startswith(f"1 of {actual[index].size} elements are wrong; the worst: ")
        assert f"{result.name}[" in comparison.message


def test_bounds_are_a_few_roundoffs_for_short_sums():
    """A bound that lets everything through would pass all the tests of right kernels."""
    for operation in (INPUT(4, 16), WEIGHT(16, 4)):
        for stepwise, most in ((False, 1e-4), (True, 4e-4)):
            for each in operation.reference(operands_of(operation), stepwise=stepwise):
                assert (each.tolerance < most).all()


def test_a_library_may_cancel_and_a_kernel_may_not():
    """`x * rstd - mean * rstd` loses digits if x and mean are large and close, as a row of equal values has."""
    operation = WEIGHT(4, 8)
    rng = np.random.default_rng(3)
    dy, noise = rng.uniform(-1, 1, (2, 4, 8)).astype(np.float32)
    mean, rstd = np.full(4, 1e4, np.float32), np.full(4, 0.7, np.float32)
    x = mean[:, None] + noise
    cancelled = (dy * (x * rstd[:, None] - (mean * rstd)[:, None])).sum(axis=0)
    actual, operands = [cancelled, dy.sum(axis=0)], (dy, x, mean, rstd)
    assert compare(operation, actual, operation.reference(operands, stepwise=True)).passed
    assert not compare(operation, actual, operation.reference(operands)).passed


# -- identity and options --------------------------------------------------------------------------


def test_names():
    assert [operation.name for operation in SMALL] == [
        "layer_norm_input_backward_3x5_f32t",
        "layer_norm_input_backward_3x5_f32t_plain",
        "layer_norm_weight_backward_3x5_f32t",
        "layer_norm_weight_backward_3x5_f32t_weight",
    ]


@pytest.mark.parametrize("operation", SMALL, ids=lambda operation: operation.name)
def test_it_comes_back_from_plain_data(operation):
    assert operation_from_dict(operation.to_dict()) == operation


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (INPUT, {"rows": 0}, "layer_norm_input_backward: every extent must be at least 1, but got rows=0"),
        (WEIGHT, {"size": True}, "layer_norm_weight_backward: .* size=True"),
        (INPUT, {"type": "i8"}, "layer_norm_input_backward: no element type i8"),
        (WEIGHT, {"type": "f8"}, "layer_norm_weight_backward: no element type f8"),
        (INPUT, {"affine": 1}, "layer_norm_input_backward: affine must be true or false, but got 1"),
        (
            INPUT,
            {"affine": "weight"},
            "layer_norm_input_backward: affine must be true or false, but got 'weight'",
        ),
        (WEIGHT, {"affine": False}, "affine must be true or weight, which have a weight, but got False"),
        (WEIGHT, {"affine": "bias"}, "affine must be true or weight, which have a weight, but got 'bias'"),
    ],
)
def test_what_is_no_layer_norm_is_rejected(kind, fields, reason):
    with pytest.raises(OperationError, match=reason):
        kind(**{"rows": 2, "size": 3, **fields})


def test_its_options_sweep_over_it_if_it_is_named():
    shapes = {
        "norm_rows": (2, 3),
        "norm_size": (8,),
        "norm_type": ("f32", "bf16"),
        "norm_affine": (False, True),
    }
    options = SweepOptions(shapes=shapes)
    kinds = (INPUT.kind, WEIGHT.kind)
    found = sweep_workload(Sweep(kinds, options)).workload.operations
    points = [(rows, 8, type_) for rows in (2, 3) for type_ in ("f32", "bf16")]
    expected = {INPUT(*point, affine) for point in points for affine in (False, True)}
    assert set(found) == expected | {WEIGHT(*point) for point in points}
    options = SweepOptions(shapes={**shapes, "norm_affine": ("weight",)})
    found = sweep_workload(Sweep((WEIGHT.kind,), options)).workload.operations
    assert set(found) == {WEIGHT(*point, "weight") for point in points}
    assert {operation.kind for operation in sweep_workload(Sweep(options=options)).workload.operations} == {
        "layer_norm"
    }


@pytest.mark.parametrize("kind", [INPUT, WEIGHT], ids=lambda kind: kind.kind)
def test_its_predefined_problems_are_those_of_the_forward(kind):
    found = sweep_workload(Sweep((kind.kind,))).workload.operations
    assert set(found) == {kind(*shape, type_) for shape in LAYER_NORM_PROBLEMS for type_ in ("f16", "f32")}


def test_tiles_of_contractions_are_not_for_it():
    tiles = CpuTiles(distribution=(64, 64), vector=(8, 32, 4))
    for operation, axes in zip(SMALL, (*["row, column"] * 2, *["column, row"] * 2), strict=True):
        assert tiles.invalid_reason(operation, Limits()) == (
            f"{operation.kind} takes 1 distribution and 2 vector tiles ({axes}), but got 2 and 3"
        )
        assert Default().invalid_reason(operation, Limits()) is None


def test_operations_are_counted():
    """Per element: 10 with a weight, 9 without, 5 for both gradients of parameters, 4 for that of the weight."""
    assert [operation.flops for operation in SMALL] == [
        3 * (5 * 10 + 2),
        3 * (5 * 9 + 2),
        3 * 5 * 5,
        3 * 5 * 4,
    ]
    assert [operation.bytes for operation in SMALL] == [
        4 * (45 + 6 + 5), 4 * (45 + 6), 4 * (30 + 6 + 10), 4 * (30 + 6 + 5)
    ]  # fmt: skip
    assert [operation.accumulations for operation in SMALL] == [5, 5, 3, 3]


# -- the three commands ----------------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("operation", SMALL, ids=lambda operation: operation.name)
def test_its_mlir_parses(operation, type_):
    from dataclasses import replace

    from iree.compiler import ir

    operation = replace(operation, type=type_)
    text = render_module(operation, (Dispatch(operation, Default()),))
    with ir.Context():
        module = ir.Module.parse(text)
        (function,) = module.body.operations
        results = ir.FunctionType(function.type).results
        assert [str(each) for each in results] == [tensor.mlir for tensor in operation.results]

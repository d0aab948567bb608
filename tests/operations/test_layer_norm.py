"""Layer norm: its reference against loops over numbers, and what its bounds let through."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dispatch_profiler.configurations import CpuTiles, Default, Limits
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Distribution, LayerNorm, SweepOptions, operation_from_dict
from dispatch_profiler.operations.reductions import TYPES
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare
from dispatch_profiler.workloads import Sweep, sweep_workload

SMALL = LayerNorm(3, 5)
AFFINE = (True, False, "weight", "bias")


def operands_of(operation: LayerNorm, seed: int = 7) -> tuple[np.ndarray, ...]:
    return draw(operation, Distribution.REALS, seed)


def named(operation: LayerNorm, operands) -> dict[str, np.ndarray]:
    return {tensor.name: array for tensor, array in zip(operation.operands, operands, strict=True)}


def by_loops(operation: LayerNorm, operands) -> tuple[list, list, list]:
    """y, mean and rstd by Python's own floats, one element after another, with correctly rounded sums."""
    rows = operands[0].astype(np.float64).tolist()
    given = named(operation, operands)
    weight = given.get("weight", np.ones(operation.size)).astype(np.float64).tolist()
    bias = given.get("bias", np.zeros(operation.size)).astype(np.float64).tolist()
    y, means, rstds = [], [], []
    for row in rows:
        mean = math.fsum(row) / len(row)
        variance = math.fsum((v - mean) ** 2 for v in row) / len(row)
        rstd = 1.0 / math.sqrt(variance + operation.eps)
        y.append([(v - mean) * rstd * w + b for v, w, b in zip(row, weight, bias, strict=True)])
        means.append(mean)
        rstds.append(rstd)
    return y, means, rstds


def in_f32(operation: LayerNorm, operands, *, eps: float | None = None, divisor: int = 0) -> list[np.ndarray]:
    """A plain kernel in the types of the operation's sums; `eps` and `divisor` make it a wrong one."""
    wide, long = operation.accumulator.dtype, operation.sums_type.dtype
    given = {name: array.astype(wide) for name, array in named(operation, operands).items()}
    x = given["x"]
    count = wide.type(operation.size)
    mean = (x.sum(axis=1, keepdims=True, dtype=long) / count).astype(wide)
    squares = ((x - mean) ** 2).sum(axis=1, keepdims=True, dtype=long)
    variance = (squares / (divisor if divisor else count)).astype(wide)
    rstd = 1 / np.sqrt(variance + wide.type(operation.eps if eps is None else eps))
    y = (x - mean) * rstd
    y = y * given.get("weight", 1) + given.get("bias", 0)
    return [y.astype(operation.element_type.dtype), mean[:, 0], rstd[:, 0]]


# -- reference -------------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("type_", TYPES)
def test_the_reference_is_what_loops_compute(type_, affine):
    operation = LayerNorm(4, 37, type_, 1e-3, affine)
    operands = operands_of(operation)
    for found, expected in zip(operation.reference(operands), by_loops(operation, operands), strict=True):
        np.testing.assert_allclose(found.expected, expected, rtol=1e-13, atol=1e-14)


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (8, 768), (3, 4096)])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("affine", AFFINE)
def test_a_plain_kernel_passes(affine, type_, shape):
    operation = LayerNorm(*shape, type_, affine=affine)
    operands = operands_of(operation)
    assert compare(operation, in_f32(operation, operands), operation.reference(operands)).passed


def test_rows_of_equal_elements_pass():
    """The variance is zero, and what is left of it in f32 is rounding: rstd depends on eps alone."""
    operation = LayerNorm(2, 100, affine=False)
    operands = [np.full((2, 100), 0.1, np.float32) * np.array([[1], [1000]], np.float32)]
    assert compare(operation, in_f32(operation, operands), operation.reference(operands)).passed


@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize(
    ("wrong", "result"),
    [({"divisor": 63}, "y"), ({"eps": 1e-3}, "y"), ({"eps": 0.0}, "y")],
    ids=["unbiased variance", "another eps", "no eps"],
)
def test_a_wrong_formula_fails(type_, wrong, result):
    operation = LayerNorm(8, 64, type_, 1e-2)
    operands = operands_of(operation)
    comparison = compare(operation, in_f32(operation, operands, **wrong), operation.reference(operands))
    assert not comparison.passed
    assert comparison.name == result


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_fault_in_any_result_fails_and_is_named(index):
    operation = LayerNorm(8, 64)
    operands = operands_of(operation)
    actual = in_f32(operation, operands)
    actual[index].reshape(-1)[3] += np.float32(1e-3)
    comparison = compare(operation, actual, operation.reference(operands))
    assert not comparison.passed
    assert comparison.message.startswith(f"1 of {actual[index].size} elements are wrong; the worst: ")
    assert f"{operation.results[index].name}[" in comparison.message


def test_rows_that_changed_places_fail():
    operation = LayerNorm(8, 64)
    operands = operands_of(operation)
    y, mean, rstd = in_f32(operation, operands)
    assert not compare(operation, [y[::-1], mean, rstd], operation.reference(operands)).passed
    assert not compare(operation, [y, mean[::-1], rstd], operation.reference(operands)).passed


def test_bounds_are_a_few_roundoffs_for_short_rows():
    """A bound that lets everything through would pass all the tests of right kernels."""
    operation = LayerNorm(4, 16)
    y, mean, rstd = operation.reference(operands_of(operation))
    assert (y.tolerance < 1e-4).all()
    assert (mean.tolerance < 2e-5).all()
    assert (rstd.tolerance < 1e-3 * rstd.expected).all()


# -- identity and options --------------------------------------------------------------------------


def test_every_field_is_in_the_name():
    fields = {"rows": 4, "size": 6, "type": "bf16", "eps": 1e-6, "affine": False}
    names = {SMALL.name}
    for name, value in fields.items():
        names.add(LayerNorm(**{"rows": 3, "size": 5, name: value}).name)
    assert len(names) == 1 + len(fields)
    assert SMALL.name == "layer_norm_3x5_f32t_eps1em05"
    ends = {LayerNorm(3, 5, affine=affine).name.removeprefix(SMALL.name) for affine in AFFINE}
    assert ends == {"", "_plain", "_weight", "_bias"}


def test_it_comes_back_from_plain_data():
    for affine in AFFINE:
        operation = LayerNorm(3, 5, "f16", 1e-6, affine)
        assert operation_from_dict(operation.to_dict()) == operation


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"size": True}, "size=True"),
        ({"eps": 1}, "eps must be a number above 0, but got 1"),
        ({"affine": 1}, "affine must be true, false, weight or bias, but got 1"),
        ({"affine": "both"}, "affine must be true, false, weight or bias, but got 'both'"),
        ({"affine": ["weight"]}, "affine must be true, false, weight or bias"),
    ],
)
def test_what_is_no_layer_norm_is_rejected(fields, reason):
    with pytest.raises(OperationError, match=reason):
        LayerNorm(**{"rows": 2, "size": 3, **fields})


def test_its_options_sweep_over_it_and_over_nothing_else():
    shapes = {"norm_rows": (2, 3), "norm_size": (8,), "norm_type": ("f32", "bf16"), "norm_eps": (1e-6,)}
    found = sweep_workload(Sweep(options=SweepOptions(shapes=shapes))).workload.operations
    assert set(found) == {LayerNorm(rows, 8, type_, 1e-6) for rows in (2, 3) for type_ in ("f32", "bf16")}


def test_its_parameters_are_swept_over(run, tmp_path):
    outcome = run("generator", "--norm-rows=3", "--norm-size=5", "--norm-type=f32",
                  "--norm-affine=true,false,weight,bias", "--default-config=only")  # fmt: skip
    assert outcome.status == 0
    found = {path.stem for path in (tmp_path / "work").rglob("layer_norm_*.mlir")}
    assert found == {LayerNorm(3, 5, affine=affine).name for affine in AFFINE}
    wrong = run("generator", "--norm-affine=both")
    assert wrong.status == 2 and "expected true, false, weight, bias, but got 'both'" in wrong.err


@pytest.mark.parametrize("name", ["lhs", "epilogue"])
def test_types_and_epilogues_of_contractions_leave_it_out(name):
    given = Sweep(given_types=(name,))
    assert "layer_norm" not in {op.kind for op in sweep_workload(given).workload.operations}
    assert "layer_norm" in {op.kind for op in sweep_workload(Sweep()).workload.operations}


def test_tiles_of_contractions_are_not_for_it():
    tiles = CpuTiles(distribution=(64, 64), vector=(8, 32, 4))
    reason = tiles.invalid_reason(SMALL, Limits())
    assert reason == ("layer_norm takes 1 distribution and 2 vector tiles (row, column), but got 2 and 3")
    assert Default().invalid_reason(SMALL, Limits()) is None


# -- commands ----------------------------------------------------------------------------


@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("type_", TYPES)
def test_its_mlir_parses_with_three_results(type_, affine):
    from iree.compiler import ir

    operation = LayerNorm(3, 5, type_, 1e-5, affine)
    text = render_module(operation, (Dispatch(operation, Default()),))
    with ir.Context():
        module = ir.Module.parse(text)
        (function,) = module.body.operations
        results = ir.FunctionType(function.type).results
        assert [str(each) for each in results] == [tensor.mlir for tensor in operation.results]


def test_help_names_its_options(run):
    assert "--norm-size" in run("generator", "--help-all").out

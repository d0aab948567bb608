"""Triton configurations of layer norms: their rules with values, launches, constants and search spaces."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dispatch_profiler.configurations import (
    Limits,
    TritonRows,
    draw_valid,
    load_configurations,
    shipped_configurations,
    spaces,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import (
    BiasBackward,
    Conv2d,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import parse_target

SM_90 = parse_target("cuda:sm_90").limits
FORWARD = LayerNorm(64, 768, "bf16")
INPUT = LayerNormInputBackward(64, 768, "f16")
WEIGHT = LayerNormWeightBackward(64, 768, "f32")
ROWS = TritonRows(block=(2, 1024))
COLUMNS = TritonRows(block=(32, 16))


@pytest.mark.parametrize(("operation", "block"), [(FORWARD, ROWS), (INPUT, ROWS), (WEIGHT, COLUMNS)])
@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "cuda:h200"])
def test_every_kind_and_type_has_a_kernel(target, type_, operation, block):
    assert block.invalid_reason(replace(operation, type=type_), parse_target(target).limits) is None


@pytest.mark.parametrize(
    ("operation", "affine"),
    [
        *itertools.product([FORWARD], [True, False, "weight", "bias"]),
        *itertools.product([INPUT], [True, False]),
    ],
)
def test_parameters_are_not_needed(operation, affine):
    assert ROWS.invalid_reason(replace(operation, affine=affine), SM_90) is None


@pytest.mark.parametrize(
    ("operation", "configuration", "target", "reason"),
    [
        (Matmul(8, 8, 8), ROWS, "cuda:sm_90", "triton_rows is for layer norms, not matmul"),
        (Conv2d(1, 4, 4, 4, 4, 1, 1), ROWS, "cuda:sm_90", "triton_rows is for layer norms, not conv2d"),
        (BiasBackward(4, 4), ROWS, "cuda:sm_90", "triton_rows is for layer norms, not bias_backward"),
        (FORWARD, ROWS, "llvm-cpu", "Triton kernels are for cuda, but the target is llvm-cpu"),
        (FORWARD, ROWS, "rocm:gfx942", "Triton kernels are for cuda, but the target is rocm"),
        (FORWARD, ROWS, "cuda:sm_75", "the kernels are for sm_80 and newer, but the target is sm_75"),
        (replace(FORWARD, type="f64"), ROWS, "cuda:sm_90", "the kernels support f32, f16 and bf16, not f64"),
        (FORWARD, replace(ROWS, block=(3, 1024)), "cuda:sm_90", "rows must be a power of two for Triton, but is 3"),
        (WEIGHT, replace(COLUMNS, block=(32, 12)), "cuda:sm_90", "columns must be a power of two for Triton, but is 12"),
        (FORWARD, replace(ROWS, warps=6), "cuda:sm_90", "warps must be a power of two for Triton, but is 6"),
        (FORWARD, replace(ROWS, block=(2, 512)), "cuda:sm_90", "rows of 768 elements need blocks of 1024 columns, but got 512"),
        (INPUT, replace(ROWS, block=(2, 2048)), "cuda:sm_90", "rows of 768 elements need blocks of 1024 columns, but got 2048"),
        (FORWARD, replace(ROWS, warps=64), "cuda:sm_90", "64 warps are 2048 threads, but sm_90 allows 1024"),
        (
            FORWARD,
            replace(ROWS, block=(16, 1024)),
            "cuda:sm_90",
            "a block of 16x1024 has more than 64 elements for each of 128 threads: use a smaller block or more warps",
        ),
        (
            replace(FORWARD, rows=2**22),
            ROWS,
            "cuda:sm_90",
            "the kernels use 32-bit indices, but a tensor has 3221225472 elements",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_rejected_with_the_rule_and_its_values(operation, configuration, target, reason):
    assert configuration.invalid_reason(operation, parse_target(target).limits) == reason


def test_a_gradient_of_the_weight_has_any_block():
    """It sums columns, so that a block need not hold whole rows."""
    assert COLUMNS.invalid_reason(replace(WEIGHT, size=5), SM_90) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block": (4,)}, r"triton_rows must be rows and columns, but got \[4\]"),
        ({"block": (4, 0)}, "triton_rows: every tile must be"),
        ({"block": (4, 64), "warps": 0}, "warps must be a whole number of at least 1, but got 0"),
        ({"block": (4, 64), "stages": 2.0}, r"stages must be a whole number of at least 1, but got 2\.0"),
    ],
)
def test_what_is_no_configuration_is_rejected(values, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        TritonRows(**values)


def test_a_launch_has_a_workgroup_for_each_block():
    """Of rows; of columns for the gradients of weight and bias. Every result is written by one kernel."""
    assert replace(ROWS, block=(2, 1024)).launch(replace(FORWARD, rows=7)).workgroups == (4, 1, 1)
    assert COLUMNS.launch(replace(WEIGHT, size=33)).workgroups == (3, 1, 1)
    assert replace(ROWS, warps=8).launch(FORWARD).workgroup_size == (256, 1, 1)
    launch = ROWS.launch(FORWARD)
    assert (launch.shape, [each.name for each in launch.more]) == ((64, 768), ["mean", "rstd"])
    assert [each.name for each in COLUMNS.launch(WEIGHT).more] == ["dbias"]


def test_constants_are_those_of_the_operation():
    plain = dict(ROWS.kernel(replace(FORWARD, affine=False, eps=1e-3)).constants)
    assert (plain["weight"], plain["bias"], plain["WEIGHT"], plain["BIAS"]) == (None, None, False, False)
    assert plain["EPS"] == 1e-3
    scaled = dict(ROWS.kernel(replace(FORWARD, affine="weight")).constants)
    assert (scaled["bias"], scaled["WEIGHT"], scaled["BIAS"]) == (None, True, False)
    assert "weight" not in scaled
    assert (plain["COUNT"], plain["SIZE"], plain["ROWS"], plain["COLUMNS"]) == (64, 768, 2, 1024)
    assert plain["ACCUMULATOR"] == "fp32"
    weight = dict(COLUMNS.kernel(WEIGHT).constants)
    assert weight["STAGES"] == 3 and weight["BIAS"] and "WEIGHT" not in weight and "EPS" not in weight
    assert "dbias" not in weight
    alone = dict(COLUMNS.kernel(replace(WEIGHT, affine="weight")).constants)
    assert alone["dbias"] is None and not alone["BIAS"]


@pytest.mark.parametrize(
    "operation", [FORWARD, INPUT, WEIGHT, LayerNorm(3, 1), LayerNormInputBackward(1, 8191)]
)
def test_points_of_the_space_are_valid(operation: Operation):
    """Those that are drawn; a space exists for CUDA only."""
    (space,) = (each for each in spaces(operation, SM_90) if each.kind is TritonRows)
    drawn = draw_valid([space], operation, SM_90, np.random.default_rng(0))
    for configuration in itertools.islice(drawn, 20):
        assert configuration.invalid_reason(operation, SM_90) is None
    assert TritonRows.space(Matmul(8, 8, 8), SM_90) is None
    assert TritonRows.space(operation, Limits()) is None


def test_the_entry_of_a_file_has_the_block_first(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("configurations:\n  - {triton_rows: [32, 16], warps: 8, stages: 2}\n")
    (entry,) = load_configurations(path)
    assert entry.configuration == TritonRows(block=(32, 16), warps=8, stages=2)
    assert entry.configuration.name == "triton_rows_32x16_8w_2s"


@pytest.mark.parametrize("operation", [FORWARD, INPUT, WEIGHT])
def test_the_shipped_list_has_something_for_every_kind(operation):
    fitting = [
        each.configuration
        for each in shipped_configurations("triton")
        if each.is_for(operation) and each.configuration.invalid_reason(operation, SM_90) is None
    ]
    assert any(isinstance(each, TritonRows) for each in fitting)

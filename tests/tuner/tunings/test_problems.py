"""Names of problems: the letters of hipBLASLt's types, the transposes of its column-major call, and a number."""

from __future__ import annotations

from pathlib import Path

import pytest
from every_kind import EVERY_MODE, IDS

from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv2d,
    ElementTypes,
    LayerNorm,
    Matmul,
    Operation,
)
from dispatch_profiler.tuner.tunings.problems import prefix, problems_of
from dispatch_profiler.tuner.tunings.tuning_file import NAME
from dispatch_profiler.workloads import Workload, WorkloadEntry, read_workload

LINE = "- {{function: matmul, M: 96, N: 80, K: 64, transA: {}, transB: {}, a_type: {}, b_type: {}, c_type: {}, d_type: {}, compute_type: {}}}\n"  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (("T", "N", "bf16_r", "bf16_r", "bf16_r", "bf16_r", "c_f32_r"), "BBS_TN"),
        (("T", "N", "f8_r", "f8_r", "bf16_r", "bf16_r", "c_f32_r"), "F8BS_TN"),
        (("N", "T", "f16_r", "f16_r", "f32_r", "f32_r", "c_f32_r"), "HSS_NT"),
        (("N", "N", "f32_r", "f32_r", "f32_r", "f32_r", "c_f32_r"), "SSS_NN"),
        (("T", "T", "f64_r", "f64_r", "f64_r", "f64_r", "c_f64_r"), "DDD_TT"),
        (("T", "N", "i8_r", "i8_r", "i32_r", "i32_r", "c_i32_r"), "I8II_TN"),
    ],
)
def test_a_call_in_a_log_is_named_as_in_the_document(fields, name):
    """From the fields of the line itself, through the row-major operation."""
    Path("log.yaml").write_text(LINE.format(*fields))
    (problem,) = problems_of(read_workload(Path("log.yaml")).workload)
    assert problem.name == f"{name}_0"


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (BatchMatmul(2, 4, 4, 4), "SSS_NN"),
        (Conv2d(1, 8, 8, 4, 4, 3, 3), "CONV2D_SSS"),
        (Conv2d(1, 8, 8, 4, 4, 3, 3, types=ElementTypes("f16", "f16", "f16")), "CONV2D_HHS"),
        (Conv2d(1, 8, 8, 4, 4, 3, 3, mode="weight_backward"), "CONV2D_WEIGHT_BACKWARD_SSS"),
        (LayerNorm(3, 5), "LAYER_NORM_SSS"),
        (BiasBackward(3, 5, 7), "BIAS_BACKWARD_SSS"),
    ],
)
def test_other_operations_have_their_kind_in_front(operation: Operation, name: str):
    assert prefix(operation) == name


def test_problems_are_numbered_for_each_prefix_in_their_order():
    first, second, conv = Matmul(4, 4, 4), Matmul(8, 4, 4), Conv2d(1, 8, 8, 4, 4, 3, 3)
    workload = Workload((WorkloadEntry(first, 3, "a:1"), WorkloadEntry(conv), WorkloadEntry(second)))
    found = problems_of(workload)
    assert [each.name for each in found] == ["SSS_NN_0", "CONV2D_SSS_0", "SSS_NN_1"]
    assert (found[0].operation, found[0].count, found[0].origin) == (first, 3, "a:1")


@pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
def test_every_operation_has_a_name_that_is_a_file_name(operation: Operation):
    """And a word in a shell."""
    assert NAME.fullmatch(f"{prefix(operation)}_0")

"""Microkernels for any number of rows: their tiles, divisions, names and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dispatch_profiler.configurations import RowsMicrokernel, configuration_from_dict
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import parse_target

CPU = parse_target("llvm-cpu")
PRODUCT = Matmul(100, 70, 40, rhs_layout="n")
KERNEL = RowsMicrokernel((12, 32), ((16, 1, 32), (100, 3, 96)))


def test_tiles_of_every_height_have_the_same_filters():
    plan = KERNEL.plan(PRODUCT)
    assert plan.height == 12
    assert [plan.of_heights[height].registers for height in plan.heights] == [
        (height, 1, 32) for height in range(1, 13)
    ]
    assert {each.packed for each in plan.of_heights.values()} == {True}


def test_low_tiles_prefetch_all_of_the_next_filters_and_high_tiles_a_part():
    plan = KERNEL.plan(replace(PRODUCT, n=640))
    prefetched = {height: plan.of_heights[height].prefetched for height in plan.heights}
    assert prefetched == {height: 32 if height <= 6 else 8 for height in range(1, 13)}
    assert plan.prefetching_tiles * 8 == 32


OTHERS = {
    "batch": (BatchMatmul(2, 8, 8, 8, rhs_layout="n"), "not for batch_matmul"),
    "convolution": (Conv2d(1, 4, 4, 8, 8, 1, 1, layout="nhwc_fhwc_nhwc"), "not for conv2d"),
    "lhs": (replace(PRODUCT, lhs_layout="n"), "lhs has layout n"),
    "f16": (replace(PRODUCT, types=ElementTypes("f16", "f16", "f32")), "for f32 and bf16"),
    "bf16": (replace(PRODUCT, types=ElementTypes("bf16", "bf16", "f32"), k=41), "in pairs of terms only"),
    "rows": (replace(PRODUCT, m=101), "the divisions are for up to 100 rows, but there are 101"),
    "one block": (replace(PRODUCT, n=32, rhs_layout="t"), "32 filters are one block"),
}


@pytest.mark.parametrize(("operation", "reason"), OTHERS.values(), ids=OTHERS)
def test_other_operations_are_rejected_with_the_reason(operation: Operation, reason: str):
    assert KERNEL.invalid_reason(PRODUCT, CPU.limits) is None
    kernel = replace(KERNEL, unroll=1) if operation.element_type.name == "bf16" else KERNEL
    assert reason in (kernel.invalid_reason(operation, CPU.limits) or "")


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no divisions": ({"divisions": ()}, "divisions must be a list of 1 to 32 lists"),
    "no list": ({"divisions": "16"}, "divisions must be a list of 1 to 32 lists"),
    "two numbers": ({"divisions": ((16, 1),)}, r"a division is \[rows, parts, filters\]"),
    "no number": ({"divisions": ((16, 1, "32"),)}, r"a division is \[rows, parts, filters\]"),
    "zero": ({"divisions": ((16, 0, 32),)}, r"a division is \[rows, parts, filters\]"),
    "order": ({"divisions": ((16, 1, 32), (16, 2, 32))}, r"in the order of their rows, but got \[16, 16\]"),
    "registers": ({"registers": (12, 1, 32)}, "has 2 tiles"),
    "lanes": ({"lanes": 4}, "lanes must be one of"),
    "flag": ({"pairs": 1}, "pairs must be true or false"),
}


@pytest.mark.parametrize(("changed", "message"), INVALID.values(), ids=INVALID)
def test_invalid_fields_are_errors(changed: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        replace(KERNEL, **changed)


def test_filters_of_a_workgroup_are_whole_blocks():
    kernel = replace(KERNEL, divisions=((100, 3, 48),))
    reason = kernel.invalid_reason(PRODUCT, CPU.limits)
    assert reason == "48 filters of a workgroup are not a multiple of the 32 of a register tile"


def test_the_name_has_every_field():
    assert KERNEL.name == "tile_config_rows_microkernel_12x32_u4_16x1x32_100x3x96"
    others = [
        replace(KERNEL, registers=(6, 32)),
        replace(KERNEL, divisions=((100, 3, 96),)),
        replace(KERNEL, unroll=2),
        replace(KERNEL, lanes=8),
        replace(KERNEL, pairs=True),
        replace(KERNEL, rounds=True),
    ]
    assert len({each.name for each in (KERNEL, *others)}) == 7


@pytest.mark.parametrize("kernel", [KERNEL, replace(KERNEL, registers=(6, 16), lanes=8, unroll=2)])
def test_plain_data_is_read_back(kernel: RowsMicrokernel):
    assert configuration_from_dict(kernel.to_dict()) == kernel
    entry = {"rows_microkernel": [12, 32], "divisions": [[16, 1, 32], [100, 3, 96]]}
    assert RowsMicrokernel.from_yaml(entry) == KERNEL

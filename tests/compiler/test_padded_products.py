"""Batched products in 16-bit types whose reduction is no multiple of 16 get tiles that need no padding.

`tests/boo/test_cuda_launches.py` computes one with NaN behind its operands on a GPU.
"""

from __future__ import annotations

import pytest
from gpu_helpers import BF16, F16

from dispatch_profiler.compiler import BuildOutcome, IreeCompiler, launch_request
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import parse_target

SAME = ElementTypes("f16", "f16", "f16")
F32 = ElementTypes("f32", "f32", "f32")


def outcome_of(operation: Operation) -> BuildOutcome:
    request = launch_request(Dispatch(operation, Default()), parse_target("cuda:sm_80"))
    (found,) = IreeCompiler().build(request).outcomes.values()
    assert found.state is State.COMPILED, found.reason
    return found


@pytest.mark.parametrize(
    ("operation", "workgroup"),
    [
        (BatchMatmul(4, 64, 64, 40, SAME), [1, 32, 64, 0]),
        (BatchMatmul(4, 64, 96, 8, F16, lhs_layout="n", rhs_layout="n"), [1, 32, 96, 0]),
        (BatchMatmul(2, 7, 65, 197, BF16), [1, 7, 13, 0]),
        (Conv2d(2, 8, 8, 8, 16, 1, 1, layout="nchw_fhwc_nchw", types=SAME), [1, 16, 64, 0]),
    ],
    ids=lambda each: each.name if hasattr(each, "name") else "",
)
def test_rows_of_padding_are_avoided(operation: Operation, workgroup: list[int]):
    applied = outcome_of(operation).applied
    assert "padding" not in applied and "mma_kind" not in applied
    assert f"workgroup = {workgroup}" in applied


@pytest.mark.parametrize(
    "operation",
    [
        BatchMatmul(4, 64, 64, 48, SAME),
        BatchMatmul(4, 64, 64, 40, SAME, rhs_layout="n"),
        Matmul(64, 64, 40, SAME),
        Conv2d(2, 8, 8, 8, 16, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc", types=SAME),
    ],
    ids=["a multiple", "reductions last", "no batch", "taps"],
)
def test_what_the_compiler_masks_is_left_to_tensor_cores(operation: Operation):
    assert "mma_kind" in outcome_of(operation).applied


def test_products_in_f32_are_left_as_they_are():
    assert "padding" not in outcome_of(BatchMatmul(4, 64, 64, 40, F32)).applied

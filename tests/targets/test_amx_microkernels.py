"""The rule that chooses kernels for AMX without a search."""

from __future__ import annotations

import math

import pytest

from dispatch_profiler.operations import Conv2d, ElementTypes, LayerNorm, Matmul, Operation
from dispatch_profiler.targets import amx_microkernel, parse_target
from dispatch_profiler.targets.untuned import amx_microkernels

AMX = parse_target("llvm-cpu:sapphirerapids")
BF16, I8 = ElementTypes("bf16", "bf16", "bf16"), ElementTypes("i8", "i8", "i32")
FHWC = "nhwc_fhwc_nhwc"
OPERATIONS = [
    Matmul(128, 768, 768, BF16, rhs_layout="n"),
    Matmul(1, 4096, 4096, BF16, rhs_layout="n"),
    Matmul(197, 1000, 768, I8, rhs_layout="n"),
    Conv2d(1, 14, 14, 256, 256, 3, 3, padding=(1, 1), types=BF16, layout=FHWC),
    Conv2d(8, 56, 56, 64, 256, 1, 1, types=BF16, layout=FHWC),
]


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    monkeypatch.setattr(amx_microkernels, "usable_threads", lambda: request.param)
    return request.param


@pytest.mark.parametrize("cores", [1, 2, 6, 16], indirect=True)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_the_kernel_is_valid_and_gives_each_core_work(operation: Operation, cores: int):
    chosen = amx_microkernel(operation, AMX, packs_weight=True)
    assert chosen is not None and chosen.packed
    assert chosen.invalid_reason(operation, AMX.limits) is None
    plan = chosen.plan(operation)
    blocks = plan.blocks * -(-plan.lines.all_tiles // plan.tiles[0])
    assert math.prod(plan.workgroups) >= min(cores, blocks)


@pytest.mark.parametrize("cores", [4], indirect=True)
def test_a_weight_is_not_packed_in_each_call_for_a_few_rows(cores: int):
    few, many = (Matmul(rows, 768, 768, BF16, rhs_layout="n") for rows in (16, 128))
    assert amx_microkernel(few, AMX, packs_weight=False) is None
    assert amx_microkernel(few, AMX, packs_weight=True) is not None
    chosen = amx_microkernel(many, AMX, packs_weight=False)
    assert chosen is not None and not chosen.packed


def test_other_types_operations_and_processors_have_none():
    assert amx_microkernel(Matmul(128, 768, 768), AMX, packs_weight=True) is None
    assert amx_microkernel(LayerNorm(4, 16, "bf16"), AMX, packs_weight=True) is None
    assert amx_microkernel(OPERATIONS[0], parse_target("llvm-cpu:znver4"), packs_weight=True) is None
    assert amx_microkernel(OPERATIONS[0], parse_target("cuda:sm_90"), packs_weight=True) is None

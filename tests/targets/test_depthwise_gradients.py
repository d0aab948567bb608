"""The rule that chooses kernels for the gradient of depthwise filters without a search."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dispatch_profiler.operations import Conv1d, Conv2d, Matmul, Operation
from dispatch_profiler.targets import Target, cpu, parse_target, ranked_depthwise_gradients

FHWC = "nhwc_fhwc_nhwc"
IMAGES = Conv2d(8, 56, 56, 72, 72, 3, 3, padding=(1, 1), groups=72, layout=FHWC, mode="weight_backward")
OPERATIONS = [
    IMAGES,
    replace(IMAGES, n=1, h=7, w=7, c=960, k=960, r=5, s=5, padding=(2, 2), groups=960),
    replace(IMAGES, h=112, w=112, c=16, k=16, groups=16, stride=(2, 2)),
    replace(IMAGES, h=14, w=14, c=384, k=384, r=7, s=7, padding=(3, 3), groups=384),
    replace(IMAGES, n=2, h=5, w=9, c=3, k=3, groups=3, dilation=(1, 2)),
    Conv1d(4, 300, 40, 40, 9, padding=(4,), groups=40, layout="nwc_fwc_nwc", mode="weight_backward"),
]


def machine(monkeypatch: pytest.MonkeyPatch, *features: str) -> Target:
    """The target `llvm-cpu` on a CPU with these features."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", frozenset(features)))
    return parse_target("llvm-cpu")


@pytest.mark.parametrize("threads", [1, 2, 6, 16])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_kernels_are_valid_and_give_each_core_work(
    monkeypatch: pytest.MonkeyPatch, operation: Operation, threads: int
):
    target = machine(monkeypatch, "avx", "avx512f")
    ranked = ranked_depthwise_gradients(operation, target, threads)
    assert ranked and len({each.registers[2] for each in ranked}) == len(ranked)
    for each in ranked:
        assert each.invalid_reason(operation, target.limits) is None
        plan = each.plan(operation)
        blocks = plan.padded_channels // plan.block
        assert min(threads, plan.strips * blocks) / 2 <= math.prod(plan.workgroups) <= 4 * threads


def test_narrow_vectors(monkeypatch: pytest.MonkeyPatch):
    target = parse_target("llvm-cpu:x86-64-v3")
    ranked = ranked_depthwise_gradients(IMAGES, target, 2)
    assert ranked and {each.lanes for each in ranked} == {8}
    assert all(each.invalid_reason(IMAGES, target.limits) is None for each in ranked)


def test_other_operations_and_processors_have_none(monkeypatch: pytest.MonkeyPatch):
    target = machine(monkeypatch, "avx", "avx512f")
    for operation in (replace(IMAGES, mode="forward"), replace(IMAGES, groups=1), Matmul(64, 64, 64)):
        assert ranked_depthwise_gradients(operation, target) == ()
    assert ranked_depthwise_gradients(IMAGES, machine(monkeypatch, "asimd")) == ()
    assert ranked_depthwise_gradients(IMAGES, parse_target("cuda:sm_90")) == ()

"""The rule that chooses microkernels that multiply along terms without a search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from dispatch_profiler.configurations import DotMicrokernel
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.targets import (
    Target,
    likely_kernels,
    packed_kernels,
    parse_target,
    ranked_dot_microkernels,
    unpacked_kernels,
)
from dispatch_profiler.targets.untuned import dot_microkernels, packed_microkernels
from dispatch_profiler.targets.untuned import packed_kernels as packed_rules

FEW = Matmul(4, 768, 768, rhs_layout="n")
OPERATIONS = [
    FEW,
    Matmul(1, 1000, 2048, rhs_layout="n"),
    Matmul(1, 5, 7, rhs_layout="n"),
    Matmul(17, 10, 100, rhs_layout="n"),
    Matmul(197, 768, 3072, rhs_layout="n"),
    Conv2d(2, 7, 7, 512, 128, 1, 1, layout="nhwc_fhwc_nhwc"),
]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch, host_has: Callable[..., None]) -> Target:
    """The target `llvm-cpu` on a CPU with AVX-512 and two threads."""
    host_has("avx", "avx512f")
    for module in (packed_microkernels, packed_rules, dot_microkernels):
        monkeypatch.setattr(module, "usable_threads", lambda: 2)
    return parse_target("llvm-cpu")


@pytest.mark.parametrize("threads", [1, 2, 6, 16])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_kernels_are_valid_and_give_each_core_work(target: Target, operation: Operation, threads: int):
    ranked = ranked_dot_microkernels(operation, target, threads)
    assert ranked and len({each.registers for each in ranked}) == len(ranked)
    for each in ranked:
        assert each.invalid_reason(operation, target.limits) is None
    plan = ranked[0].plan(operation)
    tiles = -(-plan.rows // plan.registers[0]) * -(-plan.filters // plan.registers[1])
    assert min(threads, tiles) / 2 <= math.prod(plan.workgroups)


def test_changing_weights_of_few_rows_are_multiplied_along_terms_first(target: Target):
    """Copying or packing them would take most of the time."""
    best = ranked_dot_microkernels(FEW, target)[0]
    assert unpacked_kernels(FEW, target)[0] == best
    assert {best} < {*likely_kernels(FEW, target)}


def test_constant_weights_are_packed_for_many_rows_only(target: Target):
    """For few rows, they are read as they are stored."""
    assert isinstance(packed_kernels(replace(FEW, m=1), target)[0], DotMicrokernel)
    assert packed_kernels(replace(FEW, m=512), target)[0].packs_weight


def test_narrow_vectors():
    target = parse_target("llvm-cpu:x86-64-v3")
    ranked = ranked_dot_microkernels(FEW, target, 2)
    assert ranked and {each.lanes for each in ranked} == {8}
    assert all(each.invalid_reason(FEW, target.limits) is None for each in ranked)


def test_other_operations_and_processors_have_none(target: Target, host_has: Callable[..., None]):
    for operation in (replace(FEW, rhs_layout="t"), replace(OPERATIONS[-1], r=3, s=3, padding=(1, 1))):
        assert ranked_dot_microkernels(operation, target) == ()
    assert ranked_dot_microkernels(FEW, parse_target("cuda:sm_90")) == ()
    host_has("asimd")
    assert ranked_dot_microkernels(FEW, parse_target("llvm-cpu")) == ()

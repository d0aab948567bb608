"""The rule that chooses Winograd microkernels without a search, and direct ones where these are likely to be faster."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dispatch_profiler.configurations import Microkernel, PackedInCalls, WinogradMicrokernel
from dispatch_profiler.operations import Conv2d, Conv3d, Matmul, Operation
from dispatch_profiler.targets import (
    Target,
    cpu,
    packed_kernels,
    packed_microkernel,
    parse_target,
    ranked_microkernels,
    ranked_winograd,
    unpacked_kernels,
)
from dispatch_profiler.targets.untuned import packed_kernels as packed_rules
from dispatch_profiler.targets.untuned import packed_microkernels, winograd_microkernels

FHWC = "nhwc_fhwc_nhwc"
LARGE = Conv2d(1, 56, 56, 64, 64, 3, 3, padding=(1, 1), layout=FHWC)
OPERATIONS = [
    LARGE,
    replace(LARGE, h=14, w=14, c=250, k=250),
    replace(LARGE, n=8, h=7, w=7, c=512, k=512),
    replace(LARGE, h=5, w=9, c=10, k=24),
    Conv3d(1, 8, 16, 16, 16, 32, 3, 3, 3, padding=(1, 1, 1), layout="ndhwc_fdhwc_ndhwc"),
]


def on(monkeypatch: pytest.MonkeyPatch, threads: int) -> Target:
    """The target `llvm-cpu` on a machine with AVX-512 and so many threads."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", frozenset(("avx", "avx512f"))))
    for module in (packed_microkernels, winograd_microkernels, packed_rules):
        monkeypatch.setattr(module, "usable_threads", lambda: threads)
    return parse_target("llvm-cpu")


@pytest.mark.parametrize("threads", [1, 2, 6, 16])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_kernels_are_valid_and_ranked(monkeypatch: pytest.MonkeyPatch, operation: Operation, threads: int):
    target = on(monkeypatch, threads)
    ranked = ranked_winograd(operation, target)
    assert ranked and [cycles for cycles, _ in ranked] == sorted(cycles for cycles, _ in ranked)
    assert len({(each.pixels, each.registers[1]) for _, each in ranked}) == len(ranked)
    for _, each in ranked:
        assert each.invalid_reason(operation, target.limits) is None
        assert math.prod(each.plan(operation).workgroups) <= 2 * threads


def test_large_convolutions_are_computed_by_winograd(monkeypatch: pytest.MonkeyPatch):
    target = on(monkeypatch, 2)
    kernels = packed_kernels(LARGE, target)
    assert [type(each) for each in kernels] == [WinogradMicrokernel, Microkernel]
    assert kernels[1] == packed_microkernel(LARGE, target)


def test_small_convolutions_are_computed_directly(monkeypatch: pytest.MonkeyPatch):
    """Four tiles would read four times as many bytes of filters."""
    target = on(monkeypatch, 16)
    small = replace(LARGE, h=7, w=7, c=512, k=512)
    assert isinstance(packed_kernels(small, target)[0], Microkernel)


def test_vectors_are_those_of_the_target(monkeypatch: pytest.MonkeyPatch):
    target = on(monkeypatch, 2)
    narrow = parse_target("llvm-cpu:x86-64-v3")
    assert {each.lanes for _, each in ranked_winograd(LARGE, narrow)} == {8}
    assert {each.lanes for _, each in ranked_winograd(LARGE, target)} == {16}


def test_other_operations_and_targets_have_none(monkeypatch: pytest.MonkeyPatch):
    target = on(monkeypatch, 2)
    assert ranked_winograd(replace(LARGE, stride=(2, 2)), target) == ()
    assert ranked_winograd(LARGE, parse_target("cuda:sm_90")) == ()
    assert ranked_winograd(LARGE, parse_target("llvm-cpu:x86-64")) == ()
    product = Matmul(64, 64, 64, rhs_layout="n")
    assert packed_microkernel(product, target) in packed_kernels(product, target)
    assert not any(isinstance(each, WinogradMicrokernel) for each in packed_kernels(product, target))
    assert packed_kernels(LARGE, parse_target("cuda:sm_90")) == ()


def test_a_changing_weight_is_packed_where_that_takes_little_of_the_time(monkeypatch: pytest.MonkeyPatch):
    target = on(monkeypatch, 2)
    several = replace(LARGE, n=8)
    packing, copying = packed_kernels(several, target), ranked_microkernels(several, target, packed=False)[0]
    assert set(unpacked_kernels(several, target)) == {*map(PackedInCalls, packing), copying}
    assert not copying.packs_weight and copying.invalid_reason(several, target.limits) is None
    # Of one small image, only copying pays, where no workgroup copies what another one does.
    small = replace(LARGE, h=14, w=14, c=256, k=256)
    assert unpacked_kernels(small, target) == ranked_microkernels(small, target, packed=False)[:1]
    assert math.prod(ranked_microkernels(small, target, packed=False)[0].plan(small).workgroups[1:]) == 1
    assert unpacked_kernels(Matmul(1024, 512, 512, rhs_layout="n"), target) != ()
    assert unpacked_kernels(several, parse_target("cuda:sm_90")) == ()


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("shape", [(1, 768, 3072), (4, 3072, 768), (16, 1000, 512), (28, 768, 768)])
def test_few_rows_read_a_changing_weight_in_place(
    monkeypatch: pytest.MonkeyPatch, threads: int, shape: tuple[int, int, int]
):
    """If the columns of a term are side by side. Every thread has some of them; with many rows, copies pay."""
    target = on(monkeypatch, threads)
    product = Matmul(*shape, rhs_layout="t")
    found = unpacked_kernels(product, target)[0]
    assert isinstance(found, Microkernel) and found.invalid_reason(product, target.limits) is None
    plan = found.plan(product)
    assert plan.reads_in_place and math.prod(plan.workgroups) >= threads
    many = ranked_microkernels(replace(product, m=512), target, packed=False)[0]
    assert many.plan(replace(product, m=512)).copies


def test_gradients_of_inputs_are_convolutions_with_packed_weights(monkeypatch: pytest.MonkeyPatch):
    target = on(monkeypatch, 2)
    gradient = replace(LARGE, n=8, mode="input_backward")
    for each in unpacked_kernels(gradient, target):
        assert each.invalid_reason(gradient, target.limits) is None
    assert unpacked_kernels(gradient, target) != ()
    assert unpacked_kernels(replace(gradient, stride=(2, 2)), target) == ()
    assert unpacked_kernels(replace(gradient, mode="weight_backward"), target) == ()

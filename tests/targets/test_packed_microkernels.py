"""Where a microkernel that packs a constant weight is suggested without tuning."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import Microkernel
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul
from dispatch_profiler.targets import Target, cpu, packed_microkernel, parse_target
from dispatch_profiler.targets.untuned import packed_microkernels

POINTWISE = Conv2d(1, 14, 14, 256, 256, 1, 1, layout="nhwc_fhwc_nhwc")
HALF = ElementTypes("f16", "f16", "f16")


def on(monkeypatch: pytest.MonkeyPatch, cores: int, *features: str) -> Target:
    """The target `llvm-cpu` on a machine with so many cores, whose CPU has these features."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", frozenset(features)))
    monkeypatch.setattr(packed_microkernels, "usable_cores", lambda: list(range(cores)))
    return parse_target("llvm-cpu")


def test_it_packs_and_is_valid(monkeypatch: pytest.MonkeyPatch):
    target = on(monkeypatch, 2, "avx", "avx512f")
    for operation in (POINTWISE, Matmul(64, 1024, 1024, rhs_layout="n"), Matmul(64, 1024, 1024)):
        found = packed_microkernel(operation, target)
        assert isinstance(found, Microkernel) and found.packs_weight
        assert found.invalid_reason(operation, target.limits) is None


def test_only_where_vectors_have_its_width(monkeypatch: pytest.MonkeyPatch):
    assert packed_microkernel(POINTWISE, on(monkeypatch, 2, "avx")) is None
    assert (
        packed_microkernel(POINTWISE, parse_target("llvm-cpu:znver4")) is None
    )  # its width is not known here
    assert packed_microkernel(POINTWISE, parse_target("cuda:sm_90")) is None


def test_only_for_more_than_a_few_rows(monkeypatch: pytest.MonkeyPatch):
    target = on(monkeypatch, 1, "avx512f")
    assert packed_microkernel(Matmul(32, 1024, 1024, rhs_layout="n"), target) is None
    assert packed_microkernel(Matmul(33, 1024, 1024, rhs_layout="n"), target) is not None


def test_only_for_what_microkernels_compute(monkeypatch: pytest.MonkeyPatch):
    """Both operands of a batch of products are computed; one block in hwcf is stored as it is multiplied."""
    target = on(monkeypatch, 1, "avx512f")
    for operation in (
        BatchMatmul(2, 64, 64, 64),
        Matmul(64, 1024, 1024, HALF, rhs_layout="n"),
        Conv2d(1, 28, 28, 16, 16, 3, 3, layout="nhwc_hwcf_nhwc"),
    ):
        assert packed_microkernel(operation, target) is None


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 6, 8, 9, 16, 24, 32, 64])
@pytest.mark.parametrize("images", [1, 8])
def test_its_workgroups_keep_all_cores_busy(monkeypatch: pytest.MonkeyPatch, cores: int, images: int):
    """If each takes as long as another, cores compute results for three quarters of the time."""
    target = on(monkeypatch, cores, "avx512f")
    operation = Conv2d(images, 14, 14, 256, 512, 1, 1, layout="nhwc_fhwc_nhwc")
    found = packed_microkernel(operation, target)
    if found is None:
        assert (images, cores) == (1, 64)
        return
    rows, height = found.distribution[0], found.registers[0]
    workgroups = images * (14 // rows) * (512 // found.distribution[1])
    computed = workgroups * rows
    assert computed / (cores * -(-workgroups // cores) * height * -(-rows // height)) >= 0.75
    assert workgroups <= max(8 * images, 4 * cores)


def test_workgroups_have_other_filters_before_they_have_other_rows(monkeypatch: pytest.MonkeyPatch):
    """Then each reads its filters once."""
    found = packed_microkernel(Matmul(512, 1024, 1024, rhs_layout="n"), on(monkeypatch, 4, "avx512f"))
    assert found is not None and found.distribution == (512, 64)


def test_without_enough_workgroups_for_the_cores_there_is_none(monkeypatch: pytest.MonkeyPatch):
    """A single row of register tiles, with two blocks of filters."""
    operation = Conv2d(1, 7, 7, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
    assert packed_microkernel(operation, on(monkeypatch, 2, "avx512f")) is not None
    assert packed_microkernel(operation, on(monkeypatch, 64, "avx512f")) is None

"""Where a search starts."""

from __future__ import annotations

from dataclasses import replace

from dispatch_profiler.configurations import (
    CpuTiles,
    Default,
    Microkernel,
    rejection_reason,
    shipped_configurations,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import cpu, fastest_form, packed_microkernel, parse_target
from dispatch_profiler.targets.untuned import packed_microkernels
from dispatch_profiler.tuner.spaces.seeds import baselines, seeds

TARGET = parse_target("llvm-cpu:znver4")
OPERATION = Matmul(128, 768, 768)
SLOW_DIRECTLY = Conv2d(1, 7, 7, 512, 512, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")


def entry(operation: Matmul, tiles: CpuTiles, target: str = "llvm-cpu:znver4") -> Entry:
    speed = Estimate(2.0, 1.9, 2.1)
    return Entry(Dispatch(operation, tiles), speed, speed, Provenance("local-task", target, "compiler x", 7))


def test_baselines_are_the_default_and_the_fastest_form():
    form = fastest_form(SLOW_DIRECTLY, TARGET)
    assert form is not None
    assert baselines(SLOW_DIRECTLY, TARGET) == (Default(), form)
    assert baselines(OPERATION, TARGET) == (Default(),)


def test_microkernels_that_are_suggested_are_packed_if_weights_are_constants(monkeypatch):
    """And not tried unpacked, which does the same with more work. They come first where they are known to be fast."""
    suggested = Microkernel.likely(OPERATION, TARGET.limits, packed_weights=True)
    assert suggested and all(each.packed for each in suggested)
    monkeypatch.setattr(packed_microkernels, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", frozenset({"avx512f"})))
    fastest = packed_microkernel(OPERATION, parse_target("llvm-cpu"))
    first = [fastest, *(each for each in suggested if each != fastest)]
    assert list(seeds(OPERATION, parse_target("llvm-cpu"), packed_weights=True)[: len(first)]) == first
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", frozenset({"avx"})))
    elsewhere = seeds(OPERATION, parse_target("llvm-cpu"), packed_weights=True)
    assert set(suggested) <= set(elsewhere) and elsewhere[0] not in suggested
    assert not {replace(each, packed=False) for each in suggested} & set(elsewhere)


def test_seeds_are_the_valid_configurations_of_the_shipped_list():
    """Then the microkernels that their rule suggests."""
    suggested = Microkernel.likely(OPERATION, TARGET.limits)
    found = tuple(each for each in seeds(OPERATION, TARGET) if each not in suggested)
    assert set(suggested) <= set(seeds(OPERATION, TARGET)) and suggested
    listed = [each.configuration for each in shipped_configurations("llvm-cpu") if each.is_for(OPERATION)]
    valid = [each for each in listed if rejection_reason(each, OPERATION, TARGET.limits) is None]
    assert list(found[: len(valid)]) == valid and len(valid) > 0
    assert all(each.split_k > 1 for each in found[len(valid) :])
    assert not set(seeds(SLOW_DIRECTLY, TARGET)) & set(found)


def test_winners_of_a_library_come_first_that_of_the_operation_before_similar_ones():
    """None of another target, and none that is invalid for the operation."""
    own, near, far, foreign = (CpuTiles((64, 64), (8, 32, each)) for each in (1, 2, 4, 8))
    library = Library(
        [
            entry(Matmul(1024, 1024, 1024), far),
            entry(Matmul(128, 768, 512), near),
            entry(OPERATION, own),
            entry(Matmul(128, 768, 640), foreign, "cuda:sm_90"),
            entry(Matmul(100, 768, 768), CpuTiles((100, 64), (7, 32, 1), peel=False)),
        ]
    )
    found = seeds(OPERATION, TARGET, library)
    expected = [own, near, far]
    assert [each for each in found if each in (own, near, far, foreign)][:3] == expected
    assert found[0] == own and foreign not in found
    assert all(rejection_reason(each, OPERATION, TARGET.limits) is None for each in found)

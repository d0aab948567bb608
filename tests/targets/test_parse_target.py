"""Targets are read as they are written, and each gives the compiler and the runtime what they need."""

from __future__ import annotations

import dataclasses
import platform

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import CpuTiles, Default, Flow, Limits, shipped_configurations
from dispatch_profiler.errors import TargetError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import (
    CPU_NAMES,
    DEFAULT_TARGET,
    FAMILIES,
    CpuTarget,
    CudaTarget,
    MetalTarget,
    NullTarget,
    RocmTarget,
    VmvxTarget,
    VulkanTarget,
    parse_target,
)

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
A_CPU = st.sampled_from(["host", "generic", *(name for names in CPU_NAMES.values() for name in names)])
A_TARGET = (
    st.builds(CpuTarget, A_CPU)
    | st.builds(NullTarget, st.text())
    | st.builds(CudaTarget, st.sampled_from(CudaTarget.architectures))
    | st.builds(RocmTarget, st.sampled_from(RocmTarget.architectures))
    | st.builds(VulkanTarget, st.sampled_from(["", *VulkanTarget.architectures]))
    | st.sampled_from([MetalTarget(), VmvxTarget()])
)
FAMILY_NAMES = ", ".join(FAMILIES)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("llvm-cpu", CpuTarget()),
        ("llvm-cpu:host", CpuTarget()),
        ("llvm-cpu:znver4", CpuTarget("znver4")),
        ("llvm-cpu:neoverse-v2", CpuTarget("neoverse-v2")),
        ("cuda", CudaTarget("sm_80")),
        ("cuda:sm_89", CudaTarget("sm_89")),
        ("rocm:gfx942", RocmTarget("gfx942")),
        ("vulkan-spirv", VulkanTarget()),
        ("vulkan-spirv:rdna3", VulkanTarget("rdna3")),
        ("metal-spirv", MetalTarget()),
        ("vmvx", VmvxTarget()),
        ("null", NullTarget()),
        ("null:/faults/a:b.yaml", NullTarget("/faults/a:b.yaml")),
    ],
)
def test_a_target_is_a_family_with_or_without_detail(text, target):
    """All behind the first colon is the detail."""
    assert target == parse_target(text)


@PROPERTY
@given(A_TARGET)
def test_a_target_is_read_back_from_its_name(target):
    """The name is what stands on the command line."""
    assert target == parse_target(target.name)


def test_the_default_is_this_cpu():
    """Where no target is named."""
    assert CpuTarget("host") == parse_target(DEFAULT_TARGET)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("llvmcpu", f"did you mean 'llvm-cpu'? Available: {FAMILY_NAMES}"),
        ("llvm_cpu:znver4", f"did you mean 'llvm-cpu'? Available: {FAMILY_NAMES}"),
        ("Null", f"did you mean 'null'? Available: {FAMILY_NAMES}"),
        ("kuda", f"did you mean 'cuda'? Available: {FAMILY_NAMES}"),
        ("", f"available: {FAMILY_NAMES}"),
        (":znver4", f"available: {FAMILY_NAMES}"),
    ],
)
def test_an_unknown_target_is_refused_with_the_nearest(text, hint):
    """The message has what was written, the hint the families that there are."""
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert (f"unknown target {text!r}", hint) == (str(caught.value), caught.value.hint)


REFUSED = {
    "llvm-cpu:": ("unknown CPU ''", "use an LLVM CPU name, such as znver4 or neoverse-v2"),
    "llvm-cpu:zenver4": ("unknown CPU 'zenver4'", "did you mean 'znver4'?"),
    "llvm-cpu:a;ls": ("unknown CPU 'a;ls'", "use an LLVM CPU name"),
    "cuda:sm80": ("IREE 3.13 has no cuda architecture 'sm80'", "did you mean 'sm_80'?"),
    "cuda:": ("IREE 3.13 has no cuda architecture ''", "available: sm_60"),
    "rocm": ("rocm needs an architecture", "write rocm:gfx942; available: gfx908"),
    "rocm:": ("rocm needs an architecture", "write rocm:gfx942; available: gfx908"),
    "rocm:gfx94": ("IREE 3.13 has no rocm architecture 'gfx94'", "did you mean 'gfx942'?"),
    "vulkan-spirv:rdna5": ("IREE 3.13 has no vulkan-spirv architecture 'rdna5'", "did you mean 'rdna"),
    "metal-spirv:m1": ("metal-spirv has no architectures, but got 'm1'", "write metal-spirv"),
    "vmvx:x": ("vmvx has no architectures, but got 'x'", "write vmvx"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_detail_that_names_no_target_is_refused_with_the_next_step(text):
    """It goes into a compiler flag, and the compiler ends its process for many of these."""
    message, hint = REFUSED[text]
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert message == str(caught.value)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("asked", ["sm_90", "sm_90a", "H100", "h200", "gh200", "sm_100", "b200"])
def test_a_newer_nvidia_gpu_gets_the_newest_code_that_it_runs_and_a_note(asked):
    """PTX runs on what comes later; that of sm_120 does not run on Hopper."""
    target = parse_target(f"cuda:{asked}")
    device = "sm_100" if asked in ("sm_100", "b200") else "sm_90"
    assert (target, target.name) == (CudaTarget("sm_89", device), f"cuda:{device}")
    assert parse_target(target.name) == target
    assert target.compile_flags == CudaTarget("sm_89").compile_flags
    assert target.fingerprint != CudaTarget("sm_89").fingerprint
    assert (target.limits.gpu.arch, target.limits.gpu.device_arch) == ("sm_89", device)
    assert target.note.startswith(f"IREE 3.13 does not support {asked}: compiling for cuda:sm_89")
    assert "101376 B" in target.note


def test_a_target_that_was_asked_for_by_its_name_has_no_note():
    """Nor has one of another family."""
    assert [parse_target(x).note for x in ("cuda", "cuda:sm_89", "llvm-cpu", "vulkan-spirv")] == [""] * 4


def test_a_program_is_told_what_to_use_instead_of_hopper():
    """It names its target itself, so that nothing is chosen for it."""
    with pytest.raises(TargetError, match=r"^IREE 3.13 does not support sm_90$") as caught:
        CudaTarget("sm_90")
    assert caught.value.hint.startswith("use cuda:sm_89")


@pytest.mark.parametrize("make", [CpuTarget, CudaTarget, RocmTarget, VulkanTarget, MetalTarget, VmvxTarget])
def test_a_program_is_refused_what_a_command_is(make):
    """The check belongs to the target, not to the reading of it."""
    with pytest.raises(TargetError):
        make("nosuch")


def test_flags_of_a_named_cpu():
    """The device, its backend, the CPU, and f64 kept as it is."""
    assert CpuTarget("znver4").compile_flags == (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=znver4",
        "--iree-llvmcpu-target-triple=x86_64-linux-gnu",
        "--iree-input-demote-f64-to-f32=false",
    )


def test_flags_of_another_architecture():
    """The triple follows from the CPU's name; `generic` is of this machine, and its flags say so."""
    assert "--iree-llvmcpu-target-triple=aarch64-linux-gnu" in CpuTarget("neoverse-v2").compile_flags
    here = f"--iree-llvmcpu-target-triple={platform.machine()}-linux-gnu"
    assert here in CpuTarget("generic").compile_flags
    assert not any("triple" in flag for flag in CpuTarget("host").compile_flags)


@pytest.mark.parametrize(
    ("target", "flags"),
    [
        (CudaTarget("sm_89"), ["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_89"]),
        (RocmTarget("mi300x"), ["--iree-hal-target-device=hip", "--iree-rocm-target=mi300x"]),
        (VulkanTarget(), ["--iree-hal-target-device=vulkan"]),
        (VulkanTarget("rdna3"), ["--iree-hal-target-device=vulkan", "--iree-vulkan-target=rdna3"]),
        (MetalTarget(), ["--iree-hal-target-device=metal"]),
        (VmvxTarget(), ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"]),
    ],
)
def test_flags_of_targets_by_architecture(target, flags):
    """The device, the architecture where there is one, and f64 kept as it is."""
    assert (*flags, "--iree-input-demote-f64-to-f32=false") == target.compile_flags


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        (CpuTarget(), "local-task"),
        (CudaTarget(), "cuda"),
        (RocmTarget("gfx942"), "hip"),
        (VulkanTarget(), "vulkan"),
        (MetalTarget(), "metal"),
        (VmvxTarget(), "local-task"),
        (NullTarget(), "null"),
    ],
)
def test_a_target_names_the_device_that_runs_it(target, uri):
    """Unless the user names another."""
    assert uri == target.device_uri


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_stands_under_its_name(family):
    """And its targets say the same, with their detail behind a colon."""
    target = parse_target("rocm:gfx942" if family == "rocm" else family)
    assert family == target.family == target.name.partition(":")[0]


def test_the_cpu_has_a_list_of_configurations():
    """The others have the compiler's own choice."""
    assert shipped_configurations(CpuTarget.shipped_list)


@pytest.mark.parametrize("target", [CudaTarget(), RocmTarget("gfx942"), VulkanTarget(), VmvxTarget()])
@pytest.mark.parametrize(
    "configuration", [CpuTiles((8, 8), (8, 8, 8)), Flow("data_tiling"), Flow("ukernels")]
)
def test_what_is_for_the_cpu_is_invalid_for_another_backend(target, configuration):
    """The reason names both; for the CPU it is valid."""
    operation = Matmul(8, 8, 8)
    reason = configuration.invalid_reason(operation, target.limits)
    assert reason.endswith(f"for llvm-cpu, but the target is {target.family}")
    assert configuration.invalid_reason(operation, CpuTarget("znver4").limits) is None
    assert Default().invalid_reason(operation, target.limits) is None


def test_the_null_target_needs_nothing():
    """No flags, no limits, and a fingerprint that is the same everywhere."""
    target = NullTarget("faults.yaml")
    assert ((), Limits(), "") == (target.compile_flags, target.limits, target.fingerprint)


@pytest.mark.parametrize("target", [CpuTarget("znver4"), NullTarget("faults.yaml")])
def test_a_target_is_a_value(target):
    """Frozen, and equal targets are one key."""
    assert {target: 1} == {dataclasses.replace(target): 1}
    field = dataclasses.fields(target)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(target, field, "other")

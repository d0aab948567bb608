"""Targets, as they are read, and what is known about their CPUs and GPUs."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iree.compiler.dialects import iree_gpu

from dispatch_profiler.compiler.target_info import every_gpu, gpu_facts, write_facts
from dispatch_profiler.configurations import (
    INTRINSICS,
    CpuTiles,
    Default,
    Flow,
    Intrinsic,
    Limits,
    MmaTiles,
    shipped_configurations,
)
from dispatch_profiler.configurations.gpu.intrinsics import FAMILIES as FAMILIES_OF_INTRINSICS
from dispatch_profiler.configurations.gpu.intrinsics import core_of
from dispatch_profiler.errors import TargetError, ToolError
from dispatch_profiler.operations import ElementTypes, Matmul
from dispatch_profiler.targets import (
    CPU_NAMES,
    DEFAULT_TARGET,
    FAMILIES,
    CpuTarget,
    CudaTarget,
    HostCpu,
    MetalTarget,
    NullTarget,
    RocmTarget,
    Target,
    VmvxTarget,
    VulkanTarget,
    cpu,
    host_cpu,
    parse_cpuinfo,
    parse_target,
)
from dispatch_profiler.targets.by_architecture import FACTS
from dispatch_profiler.targets.cpu import WITH_BF16

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


X86 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9654 96-Core Processor
bugs\t\t: sysret_ss_attrs spectre_v1
flags\t\t: fpu sse sse2 avx avx2 avx512f
vmx flags\t: vnmi
power management: ts ttp

processor\t: 1
model name\t: AMD EPYC 9654 96-Core Processor
flags\t\t: fpu sse sse2 avx avx2 avx512f
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes sve
CPU implementer\t: 0x41
CPU part\t: 0xd40

processor\t: 1
Features\t: fp asimd evtstrm aes sve
"""


def cpu_with(*features):
    """A CPU of no particular model."""
    return HostCpu("a CPU", frozenset(features))


def test_an_x86_is_read():
    """Its model and its flags; `vmx flags` are others."""
    expected = HostCpu(
        "AMD EPYC 9654 96-Core Processor",
        frozenset({"fpu", "sse", "sse2", "avx", "avx2", "avx512f"}),
        "AuthenticAMD",
    )
    assert expected == parse_cpuinfo(X86)


def test_an_arm_is_read():
    """It has Features and, in most kernels, no model: the architecture stands for it."""
    expected = HostCpu(platform.machine(), frozenset({"fp", "asimd", "evtstrm", "aes", "sve"}))
    assert expected == parse_cpuinfo(ARM)


@pytest.mark.parametrize("text", ["", "\n", "no colon here", "model name:\nflags:\n"])
def test_a_text_that_tells_nothing_is_a_cpu_without_features(text):
    """Nothing is made up."""
    assert HostCpu(platform.machine(), frozenset()) == parse_cpuinfo(text)


@pytest.mark.parametrize(
    ("features", "width"),
    [
        (("sse2", "avx", "avx2", "avx512f"), 64),
        (("sse2", "avx"), 32),
        (("sse2",), 16),
        (("fp", "asimd"), 16),
        ((), 16),
    ],
)
def test_the_width_of_a_vector_follows_from_the_features(features, width):
    """AVX-512 has 64 bytes, AVX 32, SSE and Neon 16."""
    assert width == cpu_with(*features).vector_bytes


FEATURES = st.frozensets(st.sampled_from(["sse2", "avx", "avx2", "avx512f", "fma", "f16c", "vnni"]))


@PROPERTY
@given(FEATURES, FEATURES)
def test_cpus_share_a_fingerprint_only_if_they_have_the_same_features(one, other):
    """In whatever order the features were listed."""
    assert (one == other) == (cpu_with(*one).fingerprint == cpu_with(*other).fingerprint)


def test_a_fingerprint_tells_the_architecture(monkeypatch):
    """Two machines without known features are still not the same."""
    here = cpu_with().fingerprint
    monkeypatch.setattr(platform, "machine", lambda: "mips")
    assert cpu_with().fingerprint.startswith("mips ")
    assert here != cpu_with().fingerprint


def test_the_host_is_read_from_cpuinfo(monkeypatch):
    """Where there is one."""
    monkeypatch.setattr(Path, "read_text", lambda path, **options: {"/proc/cpuinfo": X86}[str(path)])
    assert parse_cpuinfo(X86) == host_cpu.__wrapped__()


def test_without_cpuinfo_only_the_architecture_is_known(monkeypatch):
    """As on a Mac."""

    def missing(path, **options):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert HostCpu("arm64", frozenset()) == host_cpu.__wrapped__()


def test_the_host_is_read_once():
    """It does not change while a program runs."""
    assert host_cpu() is host_cpu()


@pytest.mark.parametrize(("features", "limit"), [(("avx512f",), 32768), (("avx",), 16384), (("sse2",), 8192)])
def test_the_host_limits_vectors_to_512_registers(host_has, features, limit):
    """The compiler refuses 512 native vectors or more; of a named CPU that limit is not known here."""
    host_has(*features)
    assert Limits(max_vector_bytes=limit, vector_bytes=limit // 512) == CpuTarget().limits
    assert Limits(vector_bytes=32) == CpuTarget("znver3").limits
    assert Limits() == CpuTarget("skylake-avx512").limits


@pytest.mark.parametrize("features", [("avx512f", "avx512_bf16"), ("avx512f", "avx512_vnni")])
def test_whether_a_cpu_multiplies_bf16_is_known_of_the_host_and_of_names(host_has, features):
    host_has(*features)
    assert CpuTarget().limits.multiplies_bf16 == ("avx512_bf16" in features)
    assert CpuTarget("znver4").limits.multiplies_bf16
    assert CpuTarget("sapphirerapids").limits.multiplies_bf16
    for name in ("cascadelake", "x86-64-v4", "znver3", "neoverse-v2", "generic"):
        assert not CpuTarget(name).limits.multiplies_bf16


@pytest.mark.parametrize(
    ("features", "multiplies"),
    [
        (("avx512f", "avx512_vnni"), True),
        (("avx512f", "avx_vnni"), False),  # vectors of half the width
        (("avx", "avx_vnni"), True),
        (("avx",), False),
        (("sse2",), False),
    ],
)
def test_whether_a_cpu_multiplies_i8_in_its_widest_vectors(host_has, features, multiplies):
    host_has(*features)
    assert CpuTarget().limits.multiplies_i8 == multiplies
    assert all(CpuTarget(name).limits.multiplies_i8 for name in ("cascadelake", "znver4", "alderlake"))
    assert not any(CpuTarget(name).limits.multiplies_i8 for name in ("skylake-avx512", "znver3", "x86-64-v4"))


@pytest.mark.parametrize(
    ("vendor", "is_fast"), [("AuthenticAMD", True), ("GenuineIntel", False), ("", False)]
)
def test_only_cpus_of_amd_multiply_bf16_fast(monkeypatch, vendor, is_fast):
    """Their model has no fixed spelling, so that the vendor tells."""
    found = HostCpu("a CPU", frozenset(("avx512f", "avx512_bf16")), vendor)
    monkeypatch.setattr("dispatch_profiler.targets.cpu.host_cpu", lambda: found)
    assert CpuTarget().limits.has_fast_bf16 == is_fast
    assert CpuTarget("znver5").limits.has_fast_bf16
    assert not CpuTarget("znver3").limits.has_fast_bf16
    assert not CpuTarget("sapphirerapids").limits.has_fast_bf16


def test_names_of_cpus_with_bf16_are_names_of_cpus():
    assert frozenset(CPU_NAMES["x86_64-linux-gnu"]) >= WITH_BF16


def test_the_limit_makes_a_tile_invalid(host_has):
    """64 x 128 of f32 is 32768 B: too much even with AVX-512, whereas 64 x 64 is not."""
    host_has("avx512f")
    limits, operation = CpuTarget().limits, Matmul(128, 128, 128)
    assert "below 32768 B" in CpuTiles((64, 128), (64, 128, 1)).invalid_reason(operation, limits)
    assert CpuTiles((64, 128), (64, 64, 1)).invalid_reason(operation, limits) is None


def test_code_for_the_host_is_known_by_the_features_of_the_host(host_has):
    """The flag says `host` everywhere; the fingerprint tells two hosts apart."""
    found = []
    for features in (("avx",), ("avx", "fma")):
        host_has(*features)
        found.append(CpuTarget().fingerprint)
    assert len(set(found)) == 2
    assert all(each.startswith(" ".join(CpuTarget().compile_flags)) for each in found)


def test_code_for_a_named_cpu_is_the_same_on_every_host(monkeypatch):
    """Its flags say it all."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: pytest.fail("the host does not matter"))
    assert " ".join(CpuTarget("znver4").compile_flags) == CpuTarget("znver4").fingerprint


HELD = json.loads(FACTS.read_text())
F16 = ElementTypes("f16", "f16", "f16")
#: It asks the compiler in the process that it runs in.
SOME = ["cuda:sm_60", "cuda:sm_80", "cuda:sm_89", "rocm:gfx90a", "rocm:gfx942", "rocm:gfx950",
        "rocm:gfx1100", "rocm:gfx1201", "vulkan-spirv", "vulkan-spirv:rdna3", "metal-spirv"]  # fmt: skip


@pytest.mark.works_on_ir
@pytest.mark.parametrize("name", SOME)
def test_the_file_holds_what_the_compiler_says(name: str):
    """Written anew by `python -m dispatch_profiler.compiler.target_info`."""
    assert gpu_facts(parse_target(name)) == HELD[name]


@pytest.mark.works_on_ir
@pytest.mark.slow
@pytest.mark.parametrize("target", every_gpu(), ids=lambda target: target.name)
def test_the_file_holds_what_the_compiler_says_of_every_gpu(target: Target):
    assert gpu_facts(target) == HELD[target.name]


@pytest.mark.works_on_ir
def test_the_file_has_every_gpu_and_no_other():
    assert set(HELD) == {target.name for target in every_gpu()}


@pytest.mark.works_on_ir
def test_the_file_is_written_from_what_the_compiler_says(tmp_path, monkeypatch):
    from dispatch_profiler.compiler import target_info

    monkeypatch.setattr(target_info, "FACTS", tmp_path / "facts.json")
    monkeypatch.setattr(
        target_info, "every_gpu", lambda: [parse_target("cuda:sm_89"), parse_target("metal-spirv")]
    )

    write_facts()

    written = json.loads((tmp_path / "facts.json").read_text())
    assert written == {name: HELD[name] for name in ("cuda:sm_89", "metal-spirv")}


@pytest.mark.works_on_ir
def test_a_cpu_is_no_gpu():
    with pytest.raises(ToolError, match="does not describe llvm-cpu"):
        gpu_facts(CpuTarget())
    assert CpuTarget().limits.gpu is None
    assert VmvxTarget().limits.gpu is None


@pytest.mark.works_on_ir
def test_the_intrinsics_are_those_that_the_compiler_has():
    """All whose types there are operations for; blocks of several products are left out."""
    assert set(INTRINSICS) == {str(x) for x in iree_gpu.MMAIntrinsic if Intrinsic.parse(str(x))}


@pytest.mark.works_on_ir
@pytest.mark.parametrize("name", INTRINSICS)
def test_the_shape_in_the_name_is_the_shape_that_the_compiler_tiles_by(name: str):
    from iree.compiler import ir

    with ir.Context():
        kind = iree_gpu.MMAAttr.get(getattr(iree_gpu.MMAIntrinsic, name))
        assert tuple(kind.mnk_shape) == INTRINSICS[name].shape


@pytest.mark.works_on_ir
def test_names_that_are_no_such_instruction_are_none():
    """Another family, other types, blocks."""
    for name in ("SIMD_F32_16x8x16_F16", "MFMA_F32_16x16x32_F8E5M2", "MFMA_F32_4x4x4x16B_F16", "MFMA_F32"):
        assert Intrinsic.parse(name) is None


@pytest.mark.works_on_ir
def test_cores_are_called_as_their_vendors_call_them():
    assert {short: core_of(short) for short in FAMILIES_OF_INTRINSICS.values()} == {
        "mmasync": "tensorcore", "wmma": "tensorcore", "mfma": "matrixcore",
        "wmmar3": "matrixcore", "wmmar4": "matrixcore", "wmma1250": "matrixcore",
    }  # fmt: skip


@pytest.mark.works_on_ir
@pytest.mark.parametrize(
    ("name", "shared", "sizes", "registers"),
    [
        ("cuda:sm_80", 166912, (32,), 255),
        ("cuda:sm_89", 101376, (32,), 255),
        ("rocm:gfx942", 65536, (64,), 512),
        ("rocm:gfx950", 163840, (64,), 512),
        ("rocm:gfx1100", 65536, (32, 64), 256),
        ("vulkan-spirv", 16384, (64,), 0),
    ],
)
def test_limits_of_well_known_gpus(name: str, shared: int, sizes: tuple[int, ...], registers: int):
    """As the vendors' manuals have them; Vulkan without a name is what every phone has."""
    gpu = parse_target(name).limits.gpu
    assert (gpu.shared_bytes, gpu.subgroup_sizes, gpu.registers) == (shared, sizes, registers)


@pytest.mark.works_on_ir
@pytest.mark.parametrize("name", ["cuda:sm_60", "cuda:sm_70", "cuda:turing", "cuda:sm_80", "cuda:sm_120"])
def test_cuda_has_the_instructions_that_code_can_be_had_for(name: str):
    """The compiler lists wmma, with which it crashes, and mma.sync for GPUs that have no such shape."""
    found = parse_target(name).limits.gpu.intrinsics
    assert bool(found) == (name in ("cuda:sm_80", "cuda:sm_120"))
    assert all(each.startswith("NV_MMA_SYNC") for each in found)


@pytest.mark.works_on_ir
def test_a_smaller_gpu_refuses_what_a_larger_takes():
    """The reason names the architecture and its limit."""
    tiles = MmaTiles(workgroup=(256, 128), reduction=(160,), subgroups=(4, 2))
    operation = Matmul(256, 256, 320, F16)
    assert tiles.invalid_reason(operation, parse_target("cuda:sm_80").limits) is None
    reason = tiles.invalid_reason(operation, parse_target("cuda:sm_89").limits)
    assert reason.startswith("the tiles need 122880 B of shared memory, but sm_89 has 101376")
    assert Default().unsupported_reason(operation, parse_target("cuda:sm_89").limits) is None

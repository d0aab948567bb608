"""What targets say of their GPUs is what the compiler says, and what follows for configurations."""

from __future__ import annotations

import json

import pytest
from iree.compiler.dialects import iree_gpu

from dispatch_profiler.compiler.target_info import every_gpu, gpu_facts, write_facts
from dispatch_profiler.configurations import INTRINSICS, Default, Intrinsic, MmaTiles
from dispatch_profiler.configurations.gpu.intrinsics import FAMILIES, core_of
from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import ElementTypes, Matmul
from dispatch_profiler.targets import CpuTarget, Target, VmvxTarget, parse_target
from dispatch_profiler.targets.by_architecture import FACTS

HELD = json.loads(FACTS.read_text())
F16 = ElementTypes("f16", "f16", "f16")
#: It asks the compiler in the process that it runs in.
pytestmark = pytest.mark.works_on_ir
SOME = ["cuda:sm_60", "cuda:sm_80", "cuda:sm_89", "rocm:gfx90a", "rocm:gfx942", "rocm:gfx950",
        "rocm:gfx1100", "rocm:gfx1201", "vulkan-spirv", "vulkan-spirv:rdna3", "metal-spirv"]  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_the_file_holds_what_the_compiler_says(name: str):
    """Written anew by `python -m dispatch_profiler.compiler.target_info`."""
    assert gpu_facts(parse_target(name)) == HELD[name]


@pytest.mark.slow
@pytest.mark.parametrize("target", every_gpu(), ids=lambda target: target.name)
def test_the_file_holds_what_the_compiler_says_of_every_gpu(target: Target):
    assert gpu_facts(target) == HELD[target.name]


def test_the_file_has_every_gpu_and_no_other():
    assert set(HELD) == {target.name for target in every_gpu()}


def test_the_file_is_written_from_what_the_compiler_says(tmp_path, monkeypatch):
    from dispatch_profiler.compiler import target_info

    monkeypatch.setattr(target_info, "FACTS", tmp_path / "facts.json")
    monkeypatch.setattr(
        target_info, "every_gpu", lambda: [parse_target("cuda:sm_89"), parse_target("metal-spirv")]
    )

    write_facts()

    written = json.loads((tmp_path / "facts.json").read_text())
    assert written == {name: HELD[name] for name in ("cuda:sm_89", "metal-spirv")}


def test_a_cpu_is_no_gpu():
    with pytest.raises(ToolError, match="does not describe llvm-cpu"):
        gpu_facts(CpuTarget())
    assert CpuTarget().limits.gpu is None
    assert VmvxTarget().limits.gpu is None


def test_the_intrinsics_are_those_that_the_compiler_has():
    """All whose types there are operations for; blocks of several products are left out."""
    assert set(INTRINSICS) == {str(x) for x in iree_gpu.MMAIntrinsic if Intrinsic.parse(str(x))}


@pytest.mark.parametrize("name", INTRINSICS)
def test_the_shape_in_the_name_is_the_shape_that_the_compiler_tiles_by(name: str):
    from iree.compiler import ir

    with ir.Context():
        kind = iree_gpu.MMAAttr.get(getattr(iree_gpu.MMAIntrinsic, name))
        assert tuple(kind.mnk_shape) == INTRINSICS[name].shape


def test_names_that_are_no_such_instruction_are_none():
    """Another family, other types, blocks."""
    for name in ("SIMD_F32_16x8x16_F16", "MFMA_F32_16x16x32_F8E5M2", "MFMA_F32_4x4x4x16B_F16", "MFMA_F32"):
        assert Intrinsic.parse(name) is None


def test_cores_are_called_as_their_vendors_call_them():
    assert {short: core_of(short) for short in FAMILIES.values()} == {
        "mmasync": "tensorcore", "wmma": "tensorcore", "mfma": "matrixcore",
        "wmmar3": "matrixcore", "wmmar4": "matrixcore", "wmma1250": "matrixcore",
    }  # fmt: skip


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


@pytest.mark.parametrize("name", ["cuda:sm_60", "cuda:sm_70", "cuda:turing", "cuda:sm_80", "cuda:sm_120"])
def test_cuda_has_the_instructions_that_code_can_be_had_for(name: str):
    """The compiler lists wmma, with which it crashes, and mma.sync for GPUs that have no such shape."""
    found = parse_target(name).limits.gpu.intrinsics
    assert bool(found) == (name in ("cuda:sm_80", "cuda:sm_120"))
    assert all(each.startswith("NV_MMA_SYNC") for each in found)


def test_a_smaller_gpu_refuses_what_a_larger_takes():
    """The reason names the architecture and its limit."""
    tiles = MmaTiles(workgroup=(256, 128), reduction=(160,), subgroups=(4, 2))
    operation = Matmul(256, 256, 320, F16)
    assert tiles.invalid_reason(operation, parse_target("cuda:sm_80").limits) is None
    reason = tiles.invalid_reason(operation, parse_target("cuda:sm_89").limits)
    assert reason.startswith("the tiles need 122880 B of shared memory, but sm_89 has 101376")
    assert Default().unsupported_reason(operation, parse_target("cuda:sm_89").limits) is None

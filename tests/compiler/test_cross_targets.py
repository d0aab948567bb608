"""Code for devices that are not here: each vmfb holds what such a device runs, and nothing else."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler.compiler import BuildError, BuildRequest, Built, IreeCompiler
from dispatch_profiler.configurations import Configuration, Default, Microkernel
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import BatchMatmul, Conv1d, Conv2d, Conv3d, ElementTypes, Matmul, Operation
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.targets import (
    CPU_NAMES,
    FAMILIES,
    CudaTarget,
    RocmTarget,
    Target,
    VulkanTarget,
    parse_target,
)
from dispatch_profiler.targets.by_architecture import ByArchitecture

MATMUL = Matmul(32, 64, 16)
OPERATIONS = {
    "matmul": MATMUL,
    "batch_matmul": BatchMatmul(2, 32, 64, 16),
    "conv2d": Conv2d(1, 10, 10, 16, 32, 3, 3),
    "conv1d": Conv1d(2, 18, 16, 32, 3, layout="nwc_fwc_nwc"),
    "conv2d_input_backward": Conv2d(2, 10, 10, 16, 32, 3, 3, (2, 2), (1, 1), mode="input_backward"),
    "conv2d_weight_backward": Conv2d(2, 10, 10, 16, 32, 3, 3, mode="weight_backward"),
    "conv3d": Conv3d(1, 4, 10, 10, 16, 32, 3, 3, 3),
}


def build(target: Target, operation: Operation = MATMUL, configuration: Configuration = Default()) -> Built:
    dispatches = (Dispatch(operation, configuration),)
    source = render_module(operation, dispatches)
    return IreeCompiler().build(BuildRequest(source, dispatches, target.compile_flags, repeat=2))


# -- what a vmfb holds, by the formats' own definitions ---------------------------------------------

#: e_machine of the ELF specification.
ELF_MACHINES = {62: "x86-64", 183: "AArch64", 224: "AMDGPU"}
#: EF_AMDGPU_MACH in the last byte of e_flags (llvm.org/docs/AMDGPUUsage.html).
AMDGPU_MACHINES = {0x3F: "gfx90a", 0x41: "gfx1100", 0x4C: "gfx942", 0x4E: "gfx1201", 0x4F: "gfx950"}


def code_in(vmfb: bytes) -> set[str]:
    """Kinds of device code in a vmfb."""
    found = {
        f"PTX {line.split()[1].decode()}" for line in vmfb.splitlines() if line.startswith(b".target sm_")
    }
    start = vmfb.find(b"\x7fELF")
    while start >= 0:
        machine = ELF_MACHINES[struct.unpack_from("<H", vmfb, start + 18)[0]]
        flags = struct.unpack_from("<I", vmfb, start + 48)[0]
        found.add(f"ELF {AMDGPU_MACHINES[flags & 0xFF] if machine == 'AMDGPU' else machine}")
        start = vmfb.find(b"\x7fELF", start + 4)
    if struct.pack("<I", 0x07230203) in vmfb:  # the first word of every SPIR-V module
        found.add("SPIR-V")
    if b"#include <metal_stdlib>" in vmfb:
        found.add("Metal")
    return found


CODE = {
    "cuda": "PTX sm_80",
    "cuda:sm_89": "PTX sm_89",
    "rocm:gfx942": "ELF gfx942",
    "rocm:mi355x": "ELF gfx950",
    "rocm:gfx1100": "ELF gfx1100",
    "vulkan-spirv": "SPIR-V",
    "vulkan-spirv:rdna3": "SPIR-V",
    "metal-spirv": "Metal",
    "llvm-cpu:znver4": "ELF x86-64",
    "llvm-cpu:cascadelake": "ELF x86-64",
    "llvm-cpu:neoverse-v2": "ELF AArch64",
}
#: One of each family for all kinds of operations; the others for a matmul.
CASES = [(t, kind) for t in CODE for kind in OPERATIONS if kind == "matmul" or t.count(":") == 0]
CASES += [("rocm:gfx942", kind) for kind in OPERATIONS if kind != "matmul"]
CASES += [("llvm-cpu:neoverse-v2", "conv2d")]


#: Of a family, and in code, like another: slow tests.
LIKE_ANOTHER = ("cuda:sm_89", "rocm:mi355x", "vulkan-spirv:rdna3", "llvm-cpu:cascadelake")


def is_default(name: str, kind: str) -> bool:
    """A matmul for every kind of code, and every kind of operation for one."""
    return name == "cuda" or (kind == "matmul" and name not in LIKE_ANOTHER)


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*case, marks=() if is_default(*case) else pytest.mark.slow) for case in CASES],
)
def test_both_vmfbs_hold_code_for_the_target(name: str, kind: str):
    built = build(parse_target(name), OPERATIONS[kind])

    assert [outcome.state for outcome in built.outcomes.values()] == [State.COMPILED]
    assert code_in(built.verify) == code_in(built.profile) == {CODE[name]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lanes"), [("llvm-cpu:neoverse-v2", 8), ("llvm-cpu:neoverse-v2", 16), ("llvm-cpu:x86-64-v3", 8)]
)
def test_microkernels_are_compiled_for_other_vectors(name: str, lanes: int):
    """Those of a library, on CPUs with other vectors than its own: for Arm, the compiler divides them."""
    operation = Conv2d(1, 10, 10, 16, 32, 3, 3, layout="nhwc_fhwc_nhwc")
    microkernel = Microkernel((8, 32), (1, 4, 2 * lanes), 4, packed=True, lanes=lanes)
    built = build(parse_target(name), operation, microkernel)

    assert [outcome.state for outcome in built.outcomes.values()] == [State.COMPILED]
    assert code_in(built.verify) == {"ELF AArch64" if "neoverse" in name else "ELF x86-64"}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in ("batch_matmul", "conv1d", "conv2d") else ())
        for kind in OPERATIONS
    ],
)
def test_vmvx_runs_here_and_computes_what_numpy_does(kind: str):
    """The only one of them for which every machine is the device."""
    operation, random = OPERATIONS[kind], np.random.default_rng(7)
    inputs = [random.integers(-4, 5, t.shape).astype(np.float32) for t in operation.operands]
    built = build(parse_target("vmvx"), operation)

    device = open_kernels("local-task")
    call = device.load(built.verify).bind(*built.outcomes, device.put(operation, inputs))

    assert code_in(built.verify) == set()
    np.testing.assert_array_equal(call.run()[0], operation.contract(*inputs))


#: Types beside f32 that compile for a matmul of the default configuration, and those that do not.
COMPILED_TYPES = [
    ("cuda", "f16"), ("cuda", "bf16"), ("cuda", "f64"),
    ("rocm:gfx942", "f16"), ("rocm:gfx942", "bf16"), ("rocm:gfx942", "f64"),
    ("vulkan-spirv:rdna3", "f16"), ("vulkan-spirv:rdna3", "f64"), ("vulkan-spirv:ampere", "f16"),
    ("metal-spirv", "f16"), ("vmvx", "bf16"), ("vmvx", "f64"),
]  # fmt: skip
REFUSED_TYPES = [
    ("cuda", "f8E4M3FN"),
    ("rocm:gfx942", "f8E4M3FN"),
    ("vulkan-spirv", "f16"),
    ("vulkan-spirv", "f64"),
    ("vulkan-spirv:rdna3", "bf16"),
    ("metal-spirv", "f64"),
    ("vmvx", "f16"),
]


def typed(name: str) -> Matmul:
    return Matmul(64, 64, 64, ElementTypes(name, name, "f32" if name.startswith("f8") else name))


@pytest.mark.some(6)
@pytest.mark.parametrize(("name", "type_"), COMPILED_TYPES)
def test_a_type_that_the_documents_promise_compiles(name: str, type_: str):
    assert build(parse_target(name), typed(type_)).verify


@pytest.mark.parametrize(("name", "type_"), REFUSED_TYPES)
def test_a_type_that_the_documents_refuse_is_refused_by_the_compiler(name: str, type_: str):
    """If one of these compiles one day, docs/targets.md has good news to tell."""
    with pytest.raises(BuildError):
        build(parse_target(name), typed(type_))


@pytest.mark.parametrize("name", ["cuda", "rocm:gfx942"])
def test_a_split_reduction_compiles_for_a_gpu(name: str):
    assert build(parse_target(name), Matmul(64, 64, 256), Default(split_k=4)).verify


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100"])
def test_the_compiler_has_no_hopper(arch: str, monkeypatch: pytest.MonkeyPatch):
    """Why the target refuses it. A name that the compiler does not know at all ends its process."""
    monkeypatch.setattr(CudaTarget, "architectures", (arch,))

    with pytest.raises(BuildError, match="missing GPU target"):
        build(CudaTarget(arch))


@pytest.mark.parametrize("triple", CPU_NAMES)
def test_the_cpus_are_those_that_the_compiler_lists(triple: str, tmp_path: Path):
    """It prints them when it meets one that it does not know; then LLVM ends its process."""
    source = tmp_path / "matmul.mlir"
    source.write_text(render_module(MATMUL, (Dispatch(MATMUL, Default()),)))
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    flags += [f"--iree-llvmcpu-target-triple={triple}", "--iree-llvmcpu-target-cpu=nosuch"]
    program = (
        "import sys; from iree.compiler.tools.scripts.iree_compile.__main__ import main; sys.exit(main())"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, *flags, str(source), "-o", str(tmp_path / "out")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip

    listed = next(line for line in done.stderr.splitlines() if line.startswith("List of accepted CPUs: "))
    names = listed.removeprefix("List of accepted CPUs: ").split(", ")
    assert set(CPU_NAMES[triple]) == set(names) - {"generic"}


EVERY = [family(arch) for family in (CudaTarget, RocmTarget, VulkanTarget) for arch in family.architectures]


@pytest.mark.slow
@pytest.mark.parametrize("target", EVERY, ids=lambda target: target.name)
def test_every_architecture_in_the_lists_compiles(target: Target):
    assert build(target).verify


@pytest.mark.slow
@pytest.mark.parametrize("cpu", [cpu for names in CPU_NAMES.values() for cpu in names])
def test_every_cpu_in_the_lists_compiles(cpu: str):
    assert build(parse_target(f"llvm-cpu:{cpu}")).verify


def test_every_family_that_is_not_tried_here_is_the_host_or_nothing():
    """A new family gets its line in CODE."""
    tried = {name.partition(":")[0] for name in CODE} | {"vmvx"}
    assert set(FAMILIES) - tried == {"null"}
    assert all(issubclass(FAMILIES[family], ByArchitecture) for family in tried - {"llvm-cpu"})

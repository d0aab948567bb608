"""Kernels of every kind and element type compile for the CPUs that users have, and are right where this machine runs them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from compiled_helpers import verify_compiled

from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.compiler.backends.host_cpu import UNUSED, chosen_cpu, implied_features
from dispatch_profiler.configurations import Configuration, Default, Flow, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.isolation import Worker
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, LayerNorm, Matmul, Operation
from dispatch_profiler.targets import CpuTarget

X86 = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "icelake-server", "sapphirerapids", "znver4")
GENERIC_ARM = ("--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=generic")
TYPES = ("f32", "f16", "bf16", "f64", "i8")


def types(name: str) -> ElementTypes:
    return ElementTypes(name, name, "i32" if name == "i8" else name)


def products(names: Sequence[str]) -> list[Operation]:
    return [Matmul(24, 32, 40, types(each)) for each in names]


def others(names: Sequence[str]) -> list[Operation]:
    """Every other kind in every type, a pair of them at a time."""
    convolutions = [Conv2d(1, 9, 9, 8, 16, 3, 3, (2, 2), (1, 1), types=types(each)) for each in names]
    floats = [each for each in names if each != "i8"]
    gradients = [Conv2d(1, 9, 9, 8, 16, 3, 3, types=types(each), mode="input_backward") for each in floats]
    norms = [LayerNorm(6, 20, each) for each in floats]
    return [*convolutions, *gradients, *norms, *(BatchMatmul(2, 8, 16, 24, types(each)) for each in names)]


CASES: dict[str, tuple[list[Operation], Configuration]] = {
    "products": (products(TYPES), Default()),
    "data tiling": (products(("f32", "f16", "bf16", "i8")), Flow("data_tiling")),
    "microkernels": (products(("f32", "f16", "bf16", "i8")), Flow("ukernels")),
    "other kinds": (others(TYPES), Default()),
    "im2col": (others(("f32", "bf16", "f16"))[:3], Formed("im2col", Flow("data_tiling"))),
}
QUICK = ("products", "data tiling")
#: SSE, AVX2, and AVX-512 with all that it may have; the others have the vectors of one of these.
QUICK_CPUS = ("x86-64-v2", "x86-64-v3", "sapphirerapids")


@pytest.fixture(scope="module")
def runnable(known_cpus) -> frozenset[str]:
    """The CPUs of X86 whose code this machine can run: it has all of their features that code uses."""
    features = chosen_cpu(IreeCompiler()).features.split(",")
    with Worker() as worker:
        implied = worker.call(implied_features, IreeCompiler(), X86)
    own = {each[1:] for each in features if each.startswith("+")}
    return frozenset(name for name, needed in implied.items() if needed - own <= UNUSED)


@pytest.mark.parametrize(
    "case", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
@pytest.mark.parametrize(
    "cpu", [each if each in QUICK_CPUS else pytest.param(each, marks=pytest.mark.slow) for each in X86]
)
def test_every_kind_and_type_compiles_for_it_and_is_right(cpu: str, case: str, runnable: frozenset[str]):
    operations, configuration = CASES[case]
    dispatches = [Dispatch(each, configuration) for each in operations]
    verify_compiled(dispatches, CpuTarget(cpu).compile_flags, runs=cpu in runnable)


@pytest.mark.parametrize(
    "case", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
def test_every_kind_and_type_compiles_for_any_64_bit_arm(case: str):
    operations, configuration = CASES[case]
    flags = [each for each in CpuTarget().compile_flags if "target-cpu" not in each]
    verify_compiled(
        [Dispatch(each, configuration) for each in operations], (*flags, *GENERIC_ARM), runs=False
    )


def test_this_machine_runs_code_for_some_of_them_on_x86(runnable: frozenset[str]):
    """Otherwise nothing above is compared."""
    assert runnable or not chosen_cpu(IreeCompiler()).cpu.startswith("x86")

"""Kernels compile for the CPUs that users have, and for points of the search space for CPUs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from compiled_helpers import verify_compiled

from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.compiler.backends.host_cpu import UNUSED, chosen_cpu, implied_features
from dispatch_profiler.compiler.workers.pool import build_with, isolate_failures
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed, draw_valid
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv2d,
    ElementTypes,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import CpuTarget, parse_target

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
#: SSE, and AVX-512 with all that it may have, which most machines of CI have; the others are slow tests.
QUICK_CPUS = ("x86-64-v2", "sapphirerapids")


@pytest.fixture(scope="module")
def runnable(known_cpus) -> frozenset[str]:
    """The CPUs of X86 whose code this machine can run: it has all of their features that code uses."""
    features = chosen_cpu(IreeCompiler()).features.split(",")
    with Worker() as worker:
        implied = worker.call(implied_features, IreeCompiler(), X86)
    own = {each[1:] for each in features if each.startswith("+")}
    return frozenset(name for name, needed in implied.items() if needed - own <= UNUSED)


@pytest.mark.some(2)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [each if each == "products" else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
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


#: Odd extents, vectors, one image, filters of one tap, every variant, both layouts, small types.
OPERATIONS = {
    "matmul": Matmul(128, 256, 512),
    "odd": Matmul(197, 147, 63),
    "vector": Matmul(1, 1000, 768),
    "batch": BatchMatmul(4, 96, 64, 80),
    "conv": Conv2d(2, 28, 28, 64, 64, 3, 3, padding=(1, 1)),
    "conv_one_image": Conv2d(1, 14, 14, 32, 48, 3, 3, padding=(1, 1)),
    "conv_1x1": Conv2d(2, 28, 28, 64, 128, 1, 1),
    "conv_1x1_one_image": Conv2d(1, 7, 7, 256, 96, 1, 1),
    "conv_odd": Conv2d(1, 35, 35, 24, 40, 3, 3, stride=(2, 2), padding=(1, 1)),
    "conv_few_channels": Conv2d(1, 112, 112, 3, 32, 7, 7, stride=(2, 2)),
    "depthwise": Conv2d(2, 28, 28, 64, 64, 3, 3, padding=(1, 1), groups=64),
    "depthwise_odd": Conv2d(1, 13, 13, 24, 24, 3, 3, groups=24),
    "grouped": Conv2d(2, 14, 14, 32, 64, 3, 3, padding=(1, 1), groups=4),
    "nchw": Conv2d(2, 28, 28, 32, 48, 3, 3, padding=(1, 1), layout="nchw"),
    "f16": Matmul(128, 256, 512, ElementTypes("f16", "f16", "f32")),
    "i8": Matmul(100, 96, 64, ElementTypes("i8", "i8", "i32")),
    "layer_norm": LayerNorm(128, 768),
    "layer_norm_odd": LayerNorm(7, 33, "f16", affine=False),
    "layer_norm_input_backward": LayerNormInputBackward(96, 384),
    "layer_norm_input_backward_odd": LayerNormInputBackward(7, 33, "bf16"),
    "layer_norm_weight_backward": LayerNormWeightBackward(128, 768),
    "layer_norm_weight_backward_odd": LayerNormWeightBackward(33, 7, "f16"),
    "bias_backward": BiasBackward(784, 512),
    "bias_backward_nchw": BiasBackward(3, 7, 35, "bf16"),
}


def failures(operation: Operation, count: int, seed: int, make_request) -> list[str]:
    """Those of `count` random points that do not compile, each built alone."""
    limits = parse_target("llvm-cpu").limits
    space = CpuTiles.space(operation, limits)
    drawn = draw_valid([space], operation, limits, np.random.default_rng(seed))
    worker, found = Worker(WorkerLimits(100, None)), []
    try:
        for configuration in itertools.islice(drawn, count):
            request = make_request(operation, [configuration])
            built = isolate_failures(request, lambda part: worker.call(build_with, IreeCompiler(), part))
            (outcome,) = built.outcomes.values()
            if outcome.state is not State.COMPILED:
                found.append(f"{configuration.name}: {outcome.state.value} {outcome.reason}")
    finally:
        worker.kill()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "odd",
        pytest.param("conv_one_image", marks=pytest.mark.slow),
        pytest.param("layer_norm_odd", marks=pytest.mark.slow),
        "layer_norm_input_backward",
    ],
)
def test_a_few_random_points_compile(name, make_request):
    assert failures(OPERATIONS[name], 2, 1, make_request) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OPERATIONS)
def test_nearly_every_random_point_compiles(name, make_request):
    """Forty of each operation; one may fail."""
    assert len(failures(OPERATIONS[name], 40, 0, make_request)) <= 1

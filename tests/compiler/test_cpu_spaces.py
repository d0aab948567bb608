"""Points of the search space for CPUs compile, nearly all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.compiler.workers.isolate_failures import isolate_failures
from dispatch_profiler.compiler.workers.pool import build_with
from dispatch_profiler.configurations import CpuTiles, draw_valid
from dispatch_profiler.dispatches import State
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
from dispatch_profiler.targets import parse_target

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

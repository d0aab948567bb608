"""Tiles reject, in one sentence, convolutions other than forward conv2d in nhwc and nchw."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import (
    CpuTiles,
    Default,
    Flow,
    Formed,
    Microkernel,
    MmaTiles,
    SimtTiles,
    TritonTiles,
    spaces,
)
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d
from dispatch_profiler.targets import parse_target

IMAGE = {"n": 2, "h": 18, "w": 18, "c": 32, "k": 64, "r": 3, "s": 3}
UNSUPPORTED = {
    "forward conv2d and matrix products, not conv1d": Conv1d(2, 18, 32, 64, 3),
    "forward conv2d and matrix products, not conv3d": Conv3d(2, 6, 18, 18, 32, 64, 3, 3, 3),
    "forward conv2d and matrix products, not conv2d input_backward": Conv2d(**IMAGE, mode="input_backward"),
    "forward conv2d and matrix products, not conv3d weight_backward": Conv3d(
        2, 6, 18, 18, 32, 64, 3, 3, 3, mode="weight_backward"
    ),
    "convolutions in the layouts nhwc and nchw, not nhwc_fhwc_nhwc": Conv2d(**IMAGE, layout="nhwc_fhwc_nhwc"),
    "convolutions in the layouts nhwc and nchw, not nhwc_hwcf_nchw": Conv2d(**IMAGE, layout="nhwc_hwcf_nchw"),
}
CONFIGURATIONS = [
    ("llvm-cpu", CpuTiles((1, 2, 4, 4), (1, 1, 2, 2, 1, 1, 1))),
    ("cuda:sm_80", MmaTiles(workgroup=(1, 4, 16, 64), reduction=(32,), subgroups=(1, 2, 1, 2))),
    ("cuda:sm_80", SimtTiles(workgroup=(1, 4, 16, 32), reduction=(16,), thread=(1, 1, 4, 4))),
]


@pytest.mark.parametrize(
    ("target", "configuration"), CONFIGURATIONS, ids=lambda value: getattr(value, "kind", "")
)
@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_a_convolution_is_rejected_with_what_is_supported(target, configuration, reason):
    found = configuration.invalid_reason(UNSUPPORTED[reason], parse_target(target).limits)
    assert found is not None
    assert found.endswith(f"for {reason}")


@pytest.mark.parametrize(
    ("target", "configuration"), CONFIGURATIONS, ids=lambda value: getattr(value, "kind", "")
)
def test_a_padding_of_one_side_is_supported(target, configuration):
    """It changes the input that the loops read, not the loops."""
    operation = Conv2d(**{**IMAGE, "h": 16, "w": 16}, padding=(0, 1), padding_after=(2, 1))
    reason = configuration.invalid_reason(operation, parse_target(target).limits)
    assert reason == configuration.invalid_reason(Conv2d(**IMAGE), parse_target(target).limits)


@pytest.mark.parametrize("target", ["llvm-cpu", "cuda:sm_80", "rocm:gfx942", "vulkan-spirv"])
@pytest.mark.parametrize("operation", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_only_forms_and_what_leaves_the_choice_to_the_compiler_have_a_space(target, operation):
    """And what does not use the compiler's tiles: microkernels, for CPUs, and Triton kernels, for CUDA."""
    kinds = {space.kind for space in spaces(operation, parse_target(target).limits)}
    assert kinds <= {Default, Flow, Formed, Microkernel, TritonTiles}

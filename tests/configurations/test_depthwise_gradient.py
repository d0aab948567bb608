"""Kernels for the gradient of depthwise filters: the pixels that their plans read, what they are for, and their names."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dispatch_profiler.configurations import (
    DepthwiseGradient,
    configuration_from_dict,
    draw_valid,
)
from dispatch_profiler.configurations.cpu.plans.tile_runs import Windows
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import parse_target

CPU = parse_target("llvm-cpu")
FHWC = "nhwc_fhwc_nhwc"
GRADIENT = Conv2d(2, 14, 11, 40, 40, 5, 5, (1, 1), (2, 2), groups=40, layout=FHWC, mode="weight_backward")
TILES = DepthwiseGradient((3, 32), (2, 4, 32))


def gradient(windows: Windows, pixels: np.ndarray, outputs: np.ndarray, width: int) -> np.ndarray:
    """The gradient of the taps along one axis, added up in tiles as the kernel adds it."""
    taps = np.zeros(windows.taps)
    for run in windows.runs(len(outputs), width):
        for start in range(run.start, run.stop, run.width):
            first = start * windows.stride - windows.low
            for pixel, readers in windows.readers(run):
                for tap, output in readers:
                    taps[tap] += pixels[first + pixel] * outputs[start + output]
    return taps


AXES = list(itertools.product((9, 12), (1, 3, 5), (1, 2), (1, 2), (0, 2, 4)))


@pytest.mark.parametrize(("size", "taps", "stride", "dilation", "low"), AXES)
def test_tiles_read_each_pixel_for_its_taps(size: int, taps: int, stride: int, dilation: int, low: int):
    """Compared with the definition; no pixel of the padding is read."""
    windows, rng = Windows(size, taps, stride, dilation, low), np.random.default_rng(1)
    extent = (size + 2 * low - (taps - 1) * dilation - 1) // stride + 1
    pixels, outputs = rng.integers(-4, 5, size).astype(float), rng.integers(-4, 5, extent).astype(float)
    padded = np.pad(pixels, low)
    expected = [outputs @ padded[tap * dilation :: stride][:extent] for tap in range(taps)]
    for width in (1, 2, 4, 7):
        assert gradient(windows, pixels, outputs, width).tolist() == expected


OTHERS = {
    "matmul": (Matmul(64, 64, 64), "weight_backward of convolutions, not for matmul"),
    "mode": (replace(GRADIENT, mode="input_backward"), "weight_backward of convolutions"),
    "groups": (replace(GRADIENT, groups=4), "depthwise convolutions, not for 4 groups"),
    "multiplier": (replace(GRADIENT, k=80), "depthwise convolutions, not for 40 groups"),
    "volume": (
        Conv3d(1, 4, 9, 9, 16, 16, 3, 3, 3, groups=16, layout="ndhwc_fdhwc_ndhwc", mode="weight_backward"),
        "conv1d and conv2d, not for conv3d",
    ),
    "types": (replace(GRADIENT, types=ElementTypes("f16", "f16", "f32")), "for f32, not for f16"),
    "layout": (replace(GRADIENT, layout="nchw"), "channels last"),
}


@pytest.mark.parametrize(("operation", "reason"), OTHERS.values(), ids=OTHERS)
def test_other_operations_are_rejected_with_the_reason(operation: Operation, reason: str):
    assert reason in (TILES.invalid_reason(operation, CPU.limits) or "")
    assert DepthwiseGradient.space(operation, CPU.limits) is None


INVALID = {
    "24 channels of a block are not a multiple of 16": DepthwiseGradient((3, 48), (2, 4, 24)),
    "32 channels of a block do not divide 48": DepthwiseGradient((3, 48), (2, 4, 32)),
    "64 channels of a workgroup, but there are 48": DepthwiseGradient((3, 64), (2, 4, 16)),
    "15 strips of a workgroup, but there are 14": DepthwiseGradient((15, 32), (2, 4, 32)),
    "15 rows of a strip, but there are 14": DepthwiseGradient((1, 32), (15, 4, 32)),
    "12 pixels of a tile, but there are 11": DepthwiseGradient((3, 32), (2, 12, 32)),
}


@pytest.mark.parametrize(("reason", "tiles"), INVALID.items())
def test_tiles_that_do_not_fit_are_rejected_with_the_values(reason: str, tiles: DepthwiseGradient):
    assert reason in (tiles.invalid_reason(GRADIENT, CPU.limits) or "")


def test_sums_fit_into_registers():
    reason = DepthwiseGradient((3, 32), (2, 8, 32), lanes=8).invalid_reason(GRADIENT, CPU.limits)
    assert reason == "2x8x32 needs 29 vector registers of 8 elements, but 16 are available"


@pytest.mark.parametrize("fields", [{"distribution": (3,)}, {"registers": (2, 4)}, {"lanes": 4}])
def test_fields_are_checked(fields: dict):
    with pytest.raises(ConfigurationError):
        replace(TILES, **fields)


def test_partial_sums_bound_the_error():
    """Two rows of 11 pixels, 3 strips of a workgroup, 5 workgroups for 14 strips."""
    plan = TILES.plan(GRADIENT)
    assert (plan.workgroups, plan.longest_chain) == ((2, 5), 2 * 11 + 3 + 5)
    assert TILES.error_bound(GRADIENT).longest_chain(GRADIENT) == 30


@pytest.mark.parametrize(
    "operation",
    [
        GRADIENT,
        Conv1d(3, 30, 24, 24, 3, groups=24, layout="nwc_fwc_nwc", mode="weight_backward"),
    ],
)
def test_draws_are_valid_and_can_be_written(operation: Operation):
    space = DepthwiseGradient.space(operation, CPU.limits)
    assert space is not None
    drawn = list(itertools.islice(draw_valid([space], operation, CPU.limits, np.random.default_rng(2)), 20))
    assert len(drawn) == 20
    for each in drawn:
        assert configuration_from_dict(each.to_dict()) == each


def test_names_have_every_field():
    assert TILES.name == "tile_config_depthwise_gradient_3x32_2x4x32"
    assert replace(TILES, lanes=8).name == "tile_config_depthwise_gradient_3x32_2x4x32_lanes8"

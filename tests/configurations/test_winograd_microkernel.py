"""Winograd microkernels: the steps of their transforms, what they are for, and their names."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from dispatch_profiler.configurations import Formed, WinogradMicrokernel, configuration_from_dict, draw_valid
from dispatch_profiler.configurations.cpu.plans.winograd import Linear, linear_steps
from dispatch_profiler.configurations.forms.winograd import FOUR, TWO, Matrix
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import parse_target

CPU = parse_target("llvm-cpu")
FHWC = "nhwc_fhwc_nhwc"
IMAGE = Conv2d(1, 14, 14, 64, 96, 3, 3, padding=(1, 1), layout=FHWC)
TILES = WinogradMicrokernel(4, (8, 96), 8, (8, 32))
MATRICES = {
    "input of four": (FOUR.input, 12),
    "output of four": (FOUR.output, 12),
    "input of two": (TWO.input, 4),
    "output of two": (TWO.output, 4),
    "no pairs": (((Fraction(2), Fraction(3)), (Fraction(1), Fraction(0))), 2),
    "negative": (((Fraction(-1), Fraction(-2)),), 2),
}


def computed(linear: Linear, vector: list[Fraction]) -> list[Fraction]:
    """The results of the steps, exactly."""
    values = {f"x{at}": value for at, value in enumerate(vector)}
    for step in linear.steps:
        first, second = values[step.first], values.get(step.second, Fraction(0))
        values[step.result] = {
            "fma": Fraction(step.factor) * first + second,
            "mul": Fraction(step.factor) * first,
            "add": first + second,
            "sub": first - second,
        }[step.kind]
    return [values[name] for name in linear.results]


@pytest.mark.parametrize(("matrix", "count"), MATRICES.values(), ids=MATRICES)
def test_steps_multiply_by_the_matrix(matrix: Matrix, count: int):
    """Their factors are exact in f64; each basis vector shows a column."""
    linear, columns = linear_steps(matrix), len(matrix[0])
    for column in range(columns):
        basis = [Fraction(int(at == column)) for at in range(columns)]
        assert computed(linear, basis) == [row[column] for row in matrix]
    assert len(linear.steps) == count


OTHERS = {
    "matmul": (Matmul(64, 64, 64), "for convolutions, not for matmul"),
    "stride": (replace(IMAGE, stride=(2, 2)), "for stride 1x1, not 2x2"),
    "dilation": (replace(IMAGE, dilation=(1, 2)), "for dilation 1x1, not 1x2"),
    "taps": (replace(IMAGE, r=1, s=1), "for filters of 3x3, not 1x1"),
    "groups": (replace(IMAGE, groups=2), "without groups"),
    "mode": (replace(IMAGE, mode="weight_backward"), "forward convolutions"),
    "stride of a gradient": (replace(IMAGE, stride=(2, 2), mode="input_backward"), "forward convolutions"),
    "gradient of a volume": (
        Conv3d(1, 4, 9, 9, 16, 16, 3, 3, 3, layout="ndhwc_fdhwc_ndhwc", mode="input_backward"),
        "of gradients are for conv2d, not for conv3d",
    ),
    "layout": (replace(IMAGE, layout="nchw"), "channels last"),
    "channels": (replace(IMAGE, c=3), "need 8 channels and filters, but got 3 and 96"),
    "types": (replace(IMAGE, types=ElementTypes("f16", "f16", "f32")), "for f32 with f32 sums"),
    "results": (replace(IMAGE, types=ElementTypes("f32", "f32", "f16")), "results in f32, not in f16"),
    "line": (Conv1d(1, 30, 16, 16, 3, layout="nwc_fwc_nwc"), "for conv2d and conv3d"),
}


@pytest.mark.parametrize(("operation", "reason"), OTHERS.values(), ids=OTHERS)
def test_other_operations_are_rejected_with_the_reason(operation: Operation, reason: str):
    assert reason in (TILES.invalid_reason(operation, CPU.limits) or "")
    assert list(WinogradMicrokernel.packed_spaces(operation, CPU.limits)) == []
    assert WinogradMicrokernel.likely(operation, CPU.limits, packed_weights=True) == ()


INVALID = {
    "24 filters of a register tile are not a multiple of 16": replace(TILES, registers=(8, 24)),
    "64 filters of a register tile do not divide 96 filters of a workgroup": replace(
        TILES, registers=(4, 64)
    ),
    "64 filters of a workgroup do not divide 96": replace(TILES, distribution=(8, 64)),
    "a register tile has 9 tiles of the image, but only 8 are there": replace(TILES, registers=(9, 32)),
    "a strip has 9 tiles of the image, but only 8 are there": replace(TILES, strip=9),
    "a workgroup has 17 tiles of the image, but only 16 are there": replace(TILES, distribution=(17, 96)),
    "15x32 needs 33 vector registers, but 32 are available": replace(
        TILES, distribution=(16, 96), strip=16, registers=(15, 32)
    ),
}


@pytest.mark.parametrize("reason", INVALID)
def test_tiles_that_do_not_fit_are_rejected_with_their_values(reason: str):
    assert TILES.invalid_reason(IMAGE, CPU.limits) is None
    assert INVALID[reason].invalid_reason(IMAGE, CPU.limits) == reason


def test_fields_are_checked_named_and_kept():
    assert TILES.name == "tile_config_packed_winograd4_8x96_8_8x32"
    assert replace(TILES, lanes=8).name == "tile_config_packed_winograd4_8x96_8_8x32_lanes8"
    assert configuration_from_dict(TILES.to_dict()) == TILES
    for fields, message in (
        ({"pixels": 3}, "unknown pixels 3"),
        ({"lanes": 4}, "unknown lanes 4"),
        ({"registers": (8,)}, "registers of a Winograd microkernel has 2 tiles, but got [8]"),
        ({"strip": 0}, "strip must be a whole number of at least 1, but got 0"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            replace(TILES, **fields)
        assert str(caught.value) == message


def test_points_of_the_spaces_are_drawn():
    for space, pixels in zip(WinogradMicrokernel.packed_spaces(IMAGE, CPU.limits), (2, 4), strict=True):
        drawn = set(islice(draw_valid([space], IMAGE, CPU.limits, np.random.default_rng(0)), 20))
        assert len(drawn) == 20 and {each.pixels for each in drawn} == {pixels}  # type: ignore[attr-defined]
    assert WinogradMicrokernel.space(IMAGE, CPU.limits) is None


def test_it_multiplies_as_often_as_the_form():
    """Padded filters and channels are not counted."""
    for pixels, form in ((2, "winograd_2"), (4, "winograd")):
        assert replace(TILES, pixels=pixels).flops(IMAGE) == Formed(form).flops(IMAGE)


def test_neighbours_in_memory_lie_in_different_sets_of_a_cache():
    plan = TILES.plan(IMAGE)
    assert {stride // 16 % 2 for stride in (plan.tile_stride, plan.input_stride, plan.product_stride)} == {1}

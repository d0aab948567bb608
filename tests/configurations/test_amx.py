"""Kernels for AMX: lines of pixels, packed filters and rules, without a compiler."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from form_interpreter import computed
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.configurations import AmxMicrokernel, Microkernel, draw_valid
from dispatch_profiler.configurations.cpu.plans.amx import AmxPlan
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    LayerNorm,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import parse_target

AMX = parse_target("llvm-cpu:sapphirerapids").limits
BF16, I8 = ElementTypes("bf16", "bf16", "bf16"), ElementTypes("i8", "i8", "i32")
FHWC, HWCF = "nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc"
TILES = AmxMicrokernel((64, 64))


# -- what the kernel computes ------------------------------------------------------------------------


def sums(operation: Operation, plan: AmxPlan, image: np.ndarray, panels: np.ndarray) -> np.ndarray:
    """The sums that tiles with the addresses of `plan` add up, in the order of the result; NaN where none is stored."""
    lines, taps = plan.lines, itertools.product(*(range(tap.count) for tap in plan.taps))
    shifts = [sum(at * tap.stride for at, tap in zip(place, plan.taps, strict=True)) for place in taps]
    terms = np.concatenate([shift + np.arange(plan.terms) for shift in shifts])
    # Blocks, instructions, tiles, groups, filters, terms of a group -> terms, filters.
    filters = panels.transpose(1, 3, 5, 0, 2, 4).reshape(len(terms), -1)[:, : plan.filters]
    assert panels.shape[0] * panels[0].size == plan.blocks * plan.panel
    result = np.full((operation.result.elements // plan.filters, plan.filters), np.nan)
    for place in itertools.product(*(range(axis.count) for axis in lines.axes)):
        start = sum(at * axis.stride for at, axis in zip(place, lines.axes, strict=True))
        first = sum(at * axis.results for at, axis in zip(place, lines.axes, strict=True))
        for tile in range(lines.tiles):
            for row in range(lines.rows):
                x = min(tile * lines.rows, lines.pixels - lines.rows) + row
                values = image.ravel()[start + x * lines.stride + terms] @ filters
                if x % lines.row < lines.kept:
                    result[first + x // lines.row * lines.kept + x % lines.row] = values
    return result.reshape(operation.result.shape)


def check(operation: Operation, configuration: AmxMicrokernel) -> None:
    """Compare the sums of small integers with the reference; all elements of the result are stored."""
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.integers(-4, 5, each.shape).astype(float) for each in operation.operands[:2])
    prepared = configuration.prepared(operation)
    values = computed((*prepared.steps, *prepared.packing), {"lhs": lhs, "rhs": rhs})
    plan = configuration.plan(operation)
    assert plan.invalid_reason() is None
    found = sums(operation, plan, values[prepared.image.name], values[prepared.panels.name])
    f64 = replace(operation, types=ElementTypes("f64", "f64", "f64"))
    assert np.array_equal(found, f64.reference([lhs, rhs])[0].expected)


OPERATIONS = [
    Matmul(100, 200, 96, BF16, rhs_layout="n"),
    Matmul(5, 40, 24, BF16),
    Matmul(33, 16, 64, I8),
    Conv2d(2, 9, 9, 16, 40, 1, 1, types=BF16, layout=FHWC),
    Conv2d(2, 9, 7, 16, 40, 3, 3, padding=(1, 1), types=BF16, layout=FHWC),
    Conv2d(1, 12, 9, 32, 24, 2, 3, stride=(2, 1), padding=(0, 1), padding_after=(1, 0), types=BF16, layout=HWCF),
    Conv2d(1, 20, 20, 24, 24, 3, 3, stride=(2, 2), types=BF16, layout=FHWC),
    Conv2d(1, 12, 12, 16, 24, 3, 3, dilation=(1, 2), types=BF16, layout=FHWC),
    Conv2d(1, 12, 12, 16, 24, 3, 3, dilation=(2, 1), types=BF16, layout=FHWC),
    Conv1d(2, 30, 16, 24, 3, types=BF16),
    Conv3d(2, 4, 5, 6, 16, 24, 2, 3, 3, types=BF16),
    Conv2d(1, 6, 6, 32, 16, 3, 3, types=I8, layout=HWCF),
]  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("registers", [(16, 16), (16, 48), (32, 32)], ids=str)
def test_the_tiles_compute_the_operation(operation: Operation, registers: tuple[int, int]):
    configuration = AmxMicrokernel((2 * registers[0], 2 * registers[1]), registers, packed=True)
    if configuration.invalid_reason(operation, AMX):
        assert registers[0] == 32, "only the tiles of pixels may be too few"
    else:
        check(operation, configuration)


@given(
    batch=st.integers(1, 2), size=st.tuples(st.integers(1, 20), st.integers(1, 20)), channels=st.sampled_from([8, 16, 24]),
    filters=st.integers(1, 40), taps=st.tuples(st.integers(1, 3), st.integers(1, 3)), stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)), padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)  # fmt: skip
def test_the_tiles_compute_drawn_convolutions(
    batch, size, channels, filters, taps, stride, dilation, padding
):
    window = [(n - 1) * step + 1 for n, step in zip(taps, dilation, strict=True)]
    size = tuple(max(a, b) for a, b in zip(size, window, strict=True))
    operation = Conv2d(
        batch, *size, channels, filters, *taps, stride=stride, dilation=dilation, padding=padding, types=BF16, layout=FHWC
    )  # fmt: skip
    check(operation, AmxMicrokernel((16, 32), (16, 32), packed=True))


def test_rows_that_follow_each_other_are_one_line_where_tiles_have_fewer_empty_rows():
    """20 pixels of a row need two tiles; a row with its padding, 22. With a stride of 2, half of a line would be empty."""
    wide = Conv2d(1, 20, 20, 32, 16, 3, 3, padding=(1, 1), types=BF16, layout=FHWC)
    lines = TILES.plan(wide).lines
    assert (lines.count, lines.pixels, lines.row, lines.kept, lines.all_tiles) == (
        1,
        19 * 22 + 20,
        22,
        20,
        28,
    )
    narrow = replace(wide, h=7, w=7)
    for operation, count, pixels in ((narrow, 7, 7), (replace(wide, stride=(2, 2)), 10, 10)):
        lines = TILES.plan(operation).lines
        assert (lines.count, lines.pixels, lines.rows, lines.all_tiles) == (count, pixels, pixels, count)


def test_taps_side_by_side_are_multiplied_together():
    """24 channels fill three quarters of a tile; 3 x 40 channels are multiplied 30 at a time."""
    for channels, dilation, step in ((24, (1, 1), 24), (40, (1, 1), 30), (40, (1, 2), 20)):
        operation = Conv2d(1, 8, 8, channels, 16, 3, 3, dilation=dilation, types=BF16, layout=FHWC)
        assert TILES.plan(operation).step == step


def test_the_shapes_of_the_tiles_are_as_the_processor_reads_them():
    """Palette 1 in byte 0; bytes of a row from byte 16 on, two bytes each; rows from byte 48 on."""
    shapes = bytes(AmxMicrokernel((32, 32)).plan(Matmul(20, 32, 24, BF16)).shapes)
    assert len(shapes) == 64 and shapes[0] == 1 and not any(shapes[1:16])
    widths = np.frombuffer(shapes[16:48], "<u2")
    assert widths.tolist() == [64] * 4 + [48] * 2 + [64] * 2 + [0] * 8
    assert list(shapes[48:]) == [16] * 6 + [12] * 2 + [0] * 8


# -- rules -------------------------------------------------------------------------------------------

WHAT = "AMX is for "
REASONS = {
    WHAT + "matmul and convolutions, not for layer_norm": LayerNorm(4, 16),
    WHAT + "matmul and convolutions, not for batch_matmul": BatchMatmul(2, 8, 32, 16, BF16),
    WHAT + "bf16 with f32 sums and i8 with i32 sums, not for f32 with f32": Matmul(8, 32, 16),
    WHAT + "matmul with lhs in layout t, not n": Matmul(8, 32, 16, BF16, lhs_layout="n"),
    WHAT + "forward convolutions, not for input_backward": Conv2d(1, 8, 8, 16, 32, 3, 3, types=BF16, mode="input_backward"),
    WHAT + "convolutions without groups, but got 2": Conv2d(1, 8, 8, 16, 32, 3, 3, types=BF16, groups=2),
    WHAT + "convolutions with channels last, not for nchw_fchw_nchw": Conv2d(1, 8, 8, 16, 32, 3, 3, types=BF16, layout="nchw"),
    "AMX needs a multiple of 2 terms from 8 to 32 that divides 21, and there is none": Conv2d(1, 30, 30, 3, 32, 7, 7, types=BF16),
    "AMX needs a multiple of 4 terms from 16 to 64 that divides 12, and there is none": Matmul(8, 32, 12, I8),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_an_operation_without_a_kernel_has_a_reason_and_no_space(reason: str):
    operation = REASONS[reason]
    assert TILES.invalid_reason(operation, AMX) == reason
    assert AmxMicrokernel.space(operation, AMX) is None
    assert AmxMicrokernel.likely(operation, AMX) == ()


INVALID = {
    "48 filters of a register block do not divide 64 of a workgroup": AmxMicrokernel((64, 64), (16, 48)),
    "24 pixels of a register block are not a multiple of 16": AmxMicrokernel((24, 64), (24, 32)),
    "2 x 3 tiles of sums need 11 tiles, but AMX has 8": AmxMicrokernel((64, 96), (32, 48)),
    "a register block has 3 tiles of pixels, but the operation has 2": AmxMicrokernel((48, 16), (48, 16)),
}


@pytest.mark.parametrize("reason", INVALID)
def test_tiles_that_do_not_fit_are_rejected_with_their_values(reason: str):
    assert INVALID[reason].invalid_reason(Matmul(32, 64, 32, BF16), AMX) == reason


def test_amx_is_for_cpus_that_have_it():
    operation = Matmul(32, 64, 32, BF16)
    assert TILES.invalid_reason(operation, AMX) is None
    for name in ("llvm-cpu:znver4", "llvm-cpu:x86-64-v4"):
        limits = parse_target(name).limits
        assert TILES.invalid_reason(operation, limits) == "the target has no instructions of AMX for bf16"
        assert AmxMicrokernel.space(operation, limits) is None
    reason = "AMX microkernels are for llvm-cpu, but the target is cuda"
    assert TILES.invalid_reason(operation, parse_target("cuda:sm_80").limits) == reason


def test_fields_are_checked_and_named():
    assert TILES.name == "tile_config_amx_64x64_32x32"
    assert replace(TILES, packed=True).name == "tile_config_packed_amx_64x64_32x32"
    for fields, message in (
        ({"distribution": (5,)}, "distribution of an AMX microkernel has 2 tiles, but got [5]"),
        (
            {"registers": (0, 16)},
            "registers: every tile must be a whole number of at least 1, but got [0, 16]",
        ),
        ({"packed": 1}, "packed must be true or false, but got 1"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            AmxMicrokernel(**{"distribution": (64, 64), **fields})
        assert str(caught.value) == message


def test_points_of_the_spaces_are_drawn_and_pack_the_weight_where_it_is_constant():
    rng = np.random.default_rng(0)
    for operation in OPERATIONS:
        (packed,) = AmxMicrokernel.packed_spaces(operation, AMX)
        for space, packs in ((AmxMicrokernel.space(operation, AMX), False), (packed, True)):
            drawn = set(itertools.islice(draw_valid([space], operation, AMX, rng), 5))
            assert drawn and all(each.packed is packs for each in drawn)
    assert list(AmxMicrokernel.packed_spaces(LayerNorm(4, 16), AMX)) == []
    assert Microkernel.space(OPERATIONS[0], AMX) is None

"""MLIR of convolutions of every rank, mode and layout: golden files, and everything parses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from iree.compiler import ir
from test_render import BF16_WIDE, F8, F16, I8, context, loop_extents, rendered, signature

from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, Convolution, Epilogue

__all__ = ["context"]
MODES = ("forward", "input_backward", "weight_backward")
BIAS = Epilogue.parse("bias")

GOLDEN: dict[str, Convolution] = {
    "conv1d_nwc_bias": Conv1d(2, 9, 4, 8, 3, (2,), (1,), epilogue=BIAS),
    "conv1d_ncw_depthwise": Conv1d(2, 9, 4, 4, 3, groups=4, layout="ncw"),
    "conv3d_ndhwc_padded_f16": Conv3d(1, 4, 6, 8, 4, 8, 2, 3, 3, padding=(0, 1, 1), types=F16),
    "conv3d_ncdhw_grouped_i8": Conv3d(1, 4, 6, 8, 4, 8, 2, 3, 3, groups=2, layout="ncdhw", types=I8),
    "conv2d_fhwc_filter": Conv2d(1, 6, 8, 4, 8, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc"),
    "conv2d_other_layouts_grouped": Conv2d(2, 6, 8, 4, 8, 3, 3, groups=2, layout="hcwn_cwfh_wnch", epilogue=BIAS),
    "conv2d_padded_after": Conv2d(1, 6, 8, 4, 8, 3, 3, padding=(0, 1), padding_after=(1, 2)),
    "conv2d_of_one_row": Conv2d(2, 5, 7, 4, 8, 3, 3, (9, 2), (1, 0)),
    "conv2d_input_backward": Conv2d(2, 6, 8, 4, 8, 3, 3, (2, 1), (1, 1), mode="input_backward", epilogue=BIAS),
    "conv2d_input_backward_cropped_f16": Conv2d(
        1, 5, 5, 4, 8, 1, 3, padding=(3, 1), mode="input_backward", layout="nchw", groups=2, types=F16
    ),
    "conv2d_input_backward_pointwise": Conv2d(1, 5, 5, 4, 8, 1, 1, (2, 2), mode="input_backward"),
    "conv2d_input_backward_of_nothing": Conv2d(1, 1, 1, 4, 8, 1, 1, (9, 9), (1, 1), mode="input_backward"),
    "conv2d_weight_backward": Conv2d(2, 6, 8, 4, 8, 3, 3, (2, 1), (1, 0), mode="weight_backward"),
    "conv3d_weight_backward_grouped_bf16": Conv3d(
        1, 4, 6, 8, 4, 8, 2, 3, 3, dilation=(1, 2, 1), groups=2, layout="ncdhw", types=BF16_WIDE, mode="weight_backward"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, golden, context):
    """The text of a module, read by a person once and unchanged since."""
    text = rendered(GOLDEN[case])
    ir.Module.parse(text)
    golden(text)


def every_convolution() -> Iterator[Convolution]:
    kinds = (
        (Conv1d, {"n": 2, "w": 9, "s": 3}, ("nwc", "ncw", "nwc_fwc_ncw", "cwn_wfc_wnc")),
        (
            Conv2d,
            {"n": 2, "h": 6, "w": 9, "r": 2, "s": 3},
            ("nhwc", "nchw", "nhwc_fhwc_nhwc", "hcwn_cwfh_wnch"),
        ),
        (
            Conv3d,
            {"n": 2, "d": 4, "h": 6, "w": 9, "t": 2, "r": 1, "s": 3},
            ("ndhwc", "ncdhw", "dnhcw_cdfwh_hncdw"),
        ),
    )
    windows = ({}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 3, "padding_after": 0})
    others = itertools.cycle(itertools.product((F16, F8, I8), ("none", "bias", "residual")))
    for (kind, extents, layouts), mode in itertools.product(kinds, MODES):
        for layout, window, (c, k, groups) in itertools.product(
            layouts, windows, ((4, 8, 1), (4, 8, 2), (4, 4, 4), (1, 1, 1))
        ):
            steps = {name: (value,) * kind.rank for name, value in window.items()}
            types, epilogue = next(others)
            yield kind(
                **extents, **steps, c=c, k=k, groups=groups, layout=layout, types=types, mode=mode,
                epilogue=Epilogue.parse("none" if mode == "weight_backward" else epilogue),
            )  # fmt: skip


@pytest.mark.slow
def test_every_module_parses_with_its_operands_and_result(context):
    """IREE's verifier has nothing to say about any rank, mode, layout, window and grouping."""
    for operation in every_convolution():
        tensors = [*operation.operands, operation.result, operation.result]
        assert signature(rendered(operation)) == tuple(tensor.mlir for tensor in tensors), operation.name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("kind", "extents", "layouts"),
    [
        (Conv1d, {"n": 2, "w": 11, "s": 3}, ("nwc", "cwn_wfc_wnc")),
        (Conv2d, {"n": 2, "h": 11, "w": 14, "r": 4, "s": 3}, ("nchw", "nhwc_fhwc_nhwc", "hcwn_cwfh_wnch")),
        (Conv3d, {"n": 2, "d": 9, "h": 11, "w": 14, "t": 2, "r": 4, "s": 3}, ("ncdhw", "dnhcw_cdfwh_hncdw")),
    ],
)
def test_the_loops_of_an_operation_are_those_of_its_module(mode, groups, kind, extents, layouts, context):
    """Number, order and extent."""
    for layout in layouts:
        operation = kind(**extents, c=10, k=14, groups=groups, layout=layout, mode=mode)
        assert loop_extents(rendered(operation)) == [loop.extent for loop in operation.loops]

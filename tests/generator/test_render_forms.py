"""MLIR of forms: golden files, and everything parses."""

from __future__ import annotations

import pytest
from iree.compiler import ir
from test_render import CONV_TILES, F16, context, rendered

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Formed
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, Epilogue, Operation

__all__ = ["context"]
FHWC = "nhwc_fhwc_nhwc"
GOLDEN: dict[str, tuple[Operation, Configuration]] = {
    "im2col_fhwc_tiles": (
        Conv2d(1, 6, 8, 4, 8, 3, 3, padding=(1, 1), layout=FHWC),
        Formed("im2col", CpuTiles((8, 8), (4, 8, 2))),
    ),
    "im2col_t_nchw_bias_relu_f16": (
        Conv2d(2, 6, 8, 4, 8, 3, 3, (2, 1), layout="nchw", types=F16, epilogue=Epilogue.parse("bias+relu")),
        Formed("im2col_t"),
    ),
    "im2col_grouped": (Conv2d(2, 6, 8, 8, 8, 3, 3, groups=4), Formed("im2col")),
    "per_group": (
        Conv2d(1, 6, 8, 8, 8, 3, 3, padding=(1, 1), groups=2, epilogue=Epilogue.parse("bias")),
        Formed("per_group"),
    ),
    "im2col_t_weight_backward": (
        Conv2d(2, 6, 8, 4, 8, 3, 3, padding=(1, 1), layout=FHWC, mode="weight_backward"),
        Formed("im2col_t", Default(4)),
    ),
    "permuted_nchw_tiles": (
        Conv2d(2, 6, 8, 4, 8, 3, 3, padding=(1, 1), layout="nchw"),
        Formed("permuted", CONV_TILES),
    ),
    "permuted_input_backward": (
        Conv2d(1, 6, 8, 4, 8, 3, 3, padding=(1, 1), layout=FHWC, mode="input_backward"),
        Formed("permuted"),
    ),
    "winograd_fhwc_tiles": (
        Conv2d(1, 6, 8, 4, 8, 3, 3, padding=(1, 1), layout=FHWC, epilogue=Epilogue.parse("bias+relu")),
        Formed("winograd", CpuTiles((4, 8), (4, 8, 2))),
    ),
    "winograd_2_nchw_input_backward": (
        Conv2d(2, 6, 8, 4, 8, 3, 3, padding=(1, 1), layout="nchw", mode="input_backward"),
        Formed("winograd_2"),
    ),
    "permuted_conv1d": (Conv1d(2, 9, 4, 8, 3, (2,), (1,)), Formed("permuted")),
    "permuted_conv3d": (Conv3d(1, 4, 6, 8, 4, 8, 3, 3, 3, padding=(1, 1, 1)), Formed("permuted")),
    "blocked_tiles": (
        Conv2d(1, 6, 8, 4, 96, 3, 3, padding=(1, 1), layout=FHWC, epilogue=Epilogue.parse("bias")),
        Formed("blocked", CONV_TILES),
    ),
    "taps": (
        Conv2d(2, 6, 8, 4, 8, 2, 2, padding=(1, 1), layout=FHWC, mode="weight_backward"),
        Formed("taps"),
    ),
    "phases_cropped": (
        Conv2d(1, 7, 8, 4, 8, 1, 3, (1, 2), (2, 0), mode="input_backward"),
        Formed("phases"),
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, golden, context):
    """The text of a module, read by a person once and unchanged since."""
    operation, configuration = GOLDEN[case]
    text = rendered(operation, configuration)
    ir.Module.parse(text)
    golden(text)


def test_direct_and_formed_dispatches_share_a_file():
    """The direct ones first; their text is the same as without the others."""
    operation = Conv2d(1, 6, 8, 4, 8, 3, 3, layout="nchw")
    alone, together = (
        rendered(operation, *configurations)
        for configurations in ((Default(),), (Formed("im2col"), Default(), Formed("permuted")))
    )
    assert together.startswith(alone)
    assert together.count("func.func @") == 3

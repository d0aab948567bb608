"""Kernels for the gradient of depthwise filters through the compiler on this CPU: results are verified."""

from __future__ import annotations

import pytest
from compiled_helpers import failures_of, verify_tiles

from dispatch_profiler.configurations import DepthwiseGradient
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Conv1d, Conv2d
from dispatch_profiler.targets import parse_target

FHWC, HWCF, LINE = "nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc", "nwc_fwc_nwc"
#: Channels that leave part of a vector, of a block or of a share empty; strips and parts that do not divide the rows; one
#: part, which needs no further sum; strides, dilations, and padding of one side, and beyond the taps.
RIGHT = [
    (
        Conv2d(2, 9, 7, 40, 40, 3, 3, padding=(1, 1), groups=40, layout=FHWC, mode="weight_backward"),
        DepthwiseGradient((3, 32), (2, 4, 32)),
    ),
    (
        Conv2d(1, 13, 11, 16, 16, 5, 5, (2, 2), (2, 2), groups=16, layout=HWCF, mode="weight_backward"),
        DepthwiseGradient((2, 16), (3, 3, 16)),
    ),
    (
        Conv2d(3, 14, 10, 20, 20, 3, 3, (1, 2), (3, 2), (2, 3), 20, FHWC, padding_after=(0, 4), mode="weight_backward"),
        DepthwiseGradient((4, 16), (5, 2, 16)),
    ),
    (
        Conv2d(2, 7, 7, 50, 50, 7, 7, padding=(3, 3), groups=50, layout=FHWC, mode="weight_backward"),
        DepthwiseGradient((2, 32), (7, 4, 32)),
    ),
    (
        Conv2d(1, 2, 2, 8, 8, 5, 5, padding=(2, 2), groups=8, layout=FHWC, mode="weight_backward"),
        DepthwiseGradient((2, 16), (1, 1, 16)),
    ),
    (
        Conv1d(3, 30, 24, 24, 3, padding=(1,), groups=24, layout=LINE, mode="weight_backward"),
        DepthwiseGradient((2, 16), (1, 4, 16)),
    ),
    (
        Conv2d(1, 6, 6, 8, 8, 3, 3, padding=(6, 6), groups=8, layout=FHWC, mode="weight_backward"),
        DepthwiseGradient((8, 16), (2, 4, 16)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "pairs", [RIGHT[:2], pytest.param(RIGHT, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_results_are_those_of_the_reference(pairs):
    verify_tiles(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
def test_vectors_of_eight_elements(name: str):
    """For CPUs with AVX2; CPUs with AVX-512 run them, too."""
    target = parse_target(f"llvm-cpu:{name}")
    tiles = DepthwiseGradient((5, 24), (2, 4, 8), lanes=8)
    verify_tiles([(RIGHT[0][0], tiles)], target)


@pytest.mark.slow
def test_wrong_kernels_are_found():
    dispatch = Dispatch(*RIGHT[0])
    faults = {
        "rows of the padding": lambda text: text.replace("(1 - tap * 1) ceildiv 1", "(0 - tap * 1) ceildiv 1"),
        "one part": lambda text: text.replace("arith.addf %total, %part", "arith.maximumf %total, %part"),
        "one strip": lambda text: text.replace("arith.addf %known_0", "arith.addf %zeros"),
    }  # fmt: skip
    found = failures_of({dispatch: faults})
    assert found.pop((dispatch, "")) == ""
    assert all(found.values())

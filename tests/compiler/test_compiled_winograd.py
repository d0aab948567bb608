"""Winograd's forms through the compiler on this CPU: applied, vectorized, and their results verified."""

from __future__ import annotations

import re

import pytest
from compiled_helpers import TARGET, Change, failures_of, verify_compiled

from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, ElementTypes, Epilogue

FHWC = "nhwc_fhwc_nhwc"
F64 = ElementTypes("f64", "f64", "f64")
EPILOGUE = Epilogue.parse("bias+residual+relu")
#: Both modes, every layout, pixels that tiles do not divide, one tile, one channel, cropped gradients.
CONVOLUTIONS = (
    Conv2d(1, 8, 8, 16, 32, 3, 3, padding=(1, 1)),
    Conv2d(2, 9, 7, 5, 3, 3, 3, padding=(1, 1), layout=FHWC, epilogue=EPILOGUE),
    Conv2d(2, 6, 11, 8, 4, 3, 3, padding=(0, 2), padding_after=(1, 0), layout="nchw", epilogue=EPILOGUE),
    Conv2d(1, 9, 7, 3, 5, 3, 3, layout="hcwn_cwfh_wnch", types=F64),
    Conv2d(1, 3, 3, 1, 1, 3, 3, layout=FHWC),
    Conv2d(1, 8, 8, 16, 32, 3, 3, padding=(1, 1), mode="input_backward"),
    Conv2d(2, 9, 7, 5, 3, 3, 3, layout=FHWC, mode="input_backward"),
    Conv2d(1, 5, 6, 4, 8, 3, 3, padding=(3, 4), layout="nchw", mode="input_backward", types=F64),
)


@pytest.mark.parametrize(
    ("form", "operations"),
    [
        ("winograd", CONVOLUTIONS[1::4]),
        ("winograd_2", CONVOLUTIONS[2::4]),
        pytest.param("winograd", CONVOLUTIONS, marks=pytest.mark.slow),
        pytest.param("winograd_2", CONVOLUTIONS, marks=pytest.mark.slow),
    ],
)
def test_the_form_is_right_in_both_modes_and_every_layout(form: str, operations):
    verify_compiled([Dispatch(operation, Formed(form)) for operation in operations])


LARGE = Conv2d(1, 14, 14, 32, 64, 3, 3, padding=(1, 1), layout=FHWC)
TILED: tuple[Configuration, ...] = (
    Formed("winograd", CpuTiles((16, 32), (8, 32, 1), (16, 32, 8))),
    Formed("winograd_2", CpuTiles((49, 64), (7, 32, 1))),
)


def test_the_form_with_tiles_is_right():
    """Beside the direct form, in one module."""
    for configuration in TILED:
        assert configuration.invalid_reason(LARGE, TARGET.limits) is None
    verify_compiled([Dispatch(LARGE, each) for each in (Default(), *TILED)])


@pytest.mark.slow
def test_the_form_with_data_tiling_is_right():
    verify_compiled([Dispatch(LARGE, Formed("winograd", Flow("data_tiling")))])


def test_transforms_are_vectorized_along_the_channels():
    """Of each operation that the compiler tiles, the innermost loop has a vector."""
    dispatch = Dispatch(LARGE, Formed("winograd"))
    text = render_module(LARGE, [dispatch])
    built = IreeCompiler().build(BuildRequest(text, (dispatch,), TARGET.compile_flags, 1))
    applied = built.outcomes[dispatch.name].applied
    found = re.findall(r"vector_common_parallel = \[([\d, ]+)\]", applied)
    vectors = [[int(tile) for tile in each.split(",")] for each in found]
    # Transforms of the filter, the image and the products have four, five and six loops.
    assert {len(tiles) for tiles in vectors} >= {4, 5, 6}
    for tiles in vectors:
        parallel = [tile for tile in tiles if tile]
        assert parallel[-1] >= 4, applied


def replaced(pattern: str, text: str) -> Change:
    return lambda source: re.sub(pattern, text, source)


FAULTS = {
    "a coefficient of B^T": replaced(r"(%tiles_column_2 = .*?)-5\.0", r"\1-4.0"),
    "pixels of a tile exchanged": replaced(r"(%tile_rows_1 = .*?)\[0, 1, 0, 0\]", r"\1[0, 2, 0, 0]"),
    "the last tile begins one pixel after the first": replaced(
        r"(%tiles_\d = .*?)\[1, 1, 1, 4, 1\]", r"\1[1, 1, 1, 1, 1]"
    ),
    "ones beyond the image": replaced(
        r"%padded_border = arith.constant 0.0", "%padded_border = arith.constant 1.0"
    ),
}


@pytest.mark.slow  # test_planted_faults has others of this form
def test_faults_of_the_compiled_form_are_found():
    dispatch = Dispatch(CONVOLUTIONS[1], Formed("winograd"))
    found = {fault: why for (_, fault), why in failures_of({dispatch: FAULTS}).items()}
    assert found.pop("") == ""
    assert set(found) == set(FAULTS)
    for fault, why in found.items():
        assert "elements are wrong; the worst: result[" in why, fault

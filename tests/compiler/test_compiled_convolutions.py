"""Convolutions and Winograd's forms through the compiler on this CPU: applied, and their results verified."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import pytest
from compiled_helpers import TARGET, Change, failures_of, verify_compiled
from pairwise import pairwise

from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, Convolution, ElementTypes, Epilogue

#: Extents, with a size that no stride divides, and layouts: both canonical ones, filters in KYXC order, and any.
KINDS = {
    1: (Conv1d, {"n": 2, "w": 12, "s": 3}, ("nwc", "ncw", "nwc_fwc_nwc", "cwn_wfc_ncw")),
    2: (
        Conv2d,
        {"n": 2, "h": 6, "w": 9, "r": 2, "s": 3},
        ("nhwc", "nchw", "nhwc_fhwc_nhwc", "hcwn_cwfh_wnch"),
    ),
    3: (
        Conv3d,
        {"n": 2, "d": 4, "h": 6, "w": 5, "t": 2, "r": 1, "s": 3},
        ("ndhwc", "ncdhw", "ndhwc_fdhwc_ndhwc", "dnhcw_cdfwh_hncdw"),
    ),
}
MODES = ("forward", "input_backward", "weight_backward")
STRIDES = ((1, 1, 1), (2, 2, 2), (1, 3, 2))
#: (before, after); with the last, gradients of stride 1 are cropped.
PADDINGS = ((0, None), (1, None), (0, 2), (3, 1))
#: c, k, groups
CHANNELS = ((3, 5, 1), (4, 6, 2), (4, 4, 4))
TYPES = {
    "f32": ElementTypes(),
    "f16": ElementTypes("f16", "f16", "f16"),
    "bf16": ElementTypes("bf16", "bf16", "f32"),
    "i8": ElementTypes("i8", "i8", "i32"),
    "f64": ElementTypes("f64", "f64", "f64"),
}
EPILOGUES = ("none", "bias+relu", "residual")
#: One with each row, in turn.
OTHERS = list(itertools.product(TYPES, EPILOGUES, (1, 2)))
Row = tuple[int, str, int, tuple[int, ...], tuple[int, int | None], tuple[int, int, int], str, str, int]
EVERY: list[Row] = [
    (*row, *OTHERS[11 * number % len(OTHERS)])
    for number, row in enumerate(itertools.product(KINDS, MODES, range(4), STRIDES, PADDINGS, CHANNELS))
]


def operation_of(row: Row) -> Convolution | None:
    """None if there is no such convolution, or the compiler does not support its types."""
    rank, mode, layout, stride, (before, after), (c, k, groups), types, epilogue, dilation = row
    epilogue = "none" if mode == "weight_backward" else epilogue
    kind, extents, layouts = KINDS[rank]
    try:
        operation = kind(
            **extents, c=c, k=k, groups=groups, stride=stride[-rank:], dilation=(dilation,) * rank,
            padding=(before,) * rank, padding_after=None if after is None else (after,) * rank,
            layout=layouts[layout], types=TYPES[types], epilogue=Epilogue.parse(epilogue), mode=mode,
        )  # fmt: skip
    except OperationError:
        return None
    return None if TARGET.unsupported_reason(operation) else operation


EXISTING = [row for row in EVERY if operation_of(row)]
CHOSEN = pairwise(EXISTING)
FULL = [row for row in EXISTING if row not in CHOSEN]


def groups(rows: list[Row], size: int) -> list[list[Row]]:
    """The rows of each module: starting the compiler takes as long as ten of them."""
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [
        *(pytest.param(rows, id=f"chosen{number}") for number, rows in enumerate(groups(CHOSEN, 12))),
        *(
            pytest.param(rows, id=f"full{number}", marks=pytest.mark.slow)
            for number, rows in enumerate(groups(FULL, 36))
        ),
    ],
)
def test_a_compiled_convolution_is_verified(rows: list[Row]):
    """On integers exactly, and on reals within the bound."""
    verify([operation for row in rows if (operation := operation_of(row))])


def verify(operations: Sequence[Convolution]) -> None:
    verify_compiled([Dispatch(operation, Default()) for operation in operations])


def test_pairs_of_parameters_are_all_compiled():
    """Every rank with every mode, layout, stride, padding and grouping."""
    assert len(CHOSEN) < 60
    for first, second in itertools.combinations(range(6), 2):
        pairs = {(row[first], row[second]) for row in EXISTING}
        assert {(row[first], row[second]) for row in CHOSEN} == pairs


@pytest.mark.slow
def test_taps_that_stand_on_padding_only_contribute_nothing():
    """The whole filter, or some of its taps: elements of gradients that nothing is summed into are zero."""
    every = []
    ranks = ((Conv1d, {"s": 2}), (Conv2d, {"s": 2}), (Conv3d, {"t": 2, "s": 2}))
    for (kind, taps), mode in itertools.product(ranks, MODES):
        extents = {**dict.fromkeys(kind.extent_names(), 1), "c": 2, "k": 3}
        steps = {"stride": (9,) * kind.rank, "padding": (1,) * kind.rank}
        every += [kind(**{**extents, **more}, **steps, mode=mode) for more in ({}, taps)]
    verify(every)


@pytest.mark.slow
def test_a_single_output_reads_a_part_of_its_input():
    """IREE 3.13 rejects an input that is larger than what the taps of a single output read."""
    shapes = (
        {"n": 2},
        {"n": 1, "groups": 2},
        {"n": 2, "groups": 4, "padding": (1, 0)},
        {"n": 2, "layout": "nchw"},
    )
    window = {"h": 5, "w": 9, "c": 4, "k": 4, "r": 3, "s": 3, "stride": (9, 2)}
    verify([Conv2d(**window, mode=mode, **shape) for mode in MODES for shape in shapes])


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_form_with_tiles_is_right():
    """Beside the direct form, in one module."""
    for configuration in TILED:
        assert configuration.invalid_reason(LARGE, TARGET.limits) is None
    verify_compiled([Dispatch(LARGE, each) for each in (Default(), *TILED)])


@pytest.mark.slow
def test_the_form_with_data_tiling_is_right():
    verify_compiled([Dispatch(LARGE, Formed("winograd", Flow("data_tiling")))])


@pytest.mark.slow
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
    "a coefficient of B^T": replaced(r"(%tiles_column_2 = .*?)-1\.953125", r"\1-1.5"),
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

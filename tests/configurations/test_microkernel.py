"""Microkernels: shuffles, addresses and rules, without a compiler.

The addresses are those of the rendered MLIR, evaluated here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from form_interpreter import computed
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.configurations import Axis, Limits, Microkernel, draw_valid, rejection_reason, spaces
from dispatch_profiler.configurations.cpu.microkernel import usual_unroll
from dispatch_profiler.configurations.cpu.plans.microkernel import (
    LANES,
    FilterBlock,
    MicrokernelPlan,
    TileRun,
    Windows,
)
from dispatch_profiler.configurations.cpu.plans.vectors import transposition
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import parse_target

CPU = parse_target("llvm-cpu").limits
FHWC, HWCF = "nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc"
#: Two images, five by eight pixels of the result, three blocks of filters for each of two workgroups.
CONVOLUTION = Conv2d(2, 9, 9, 16, 192, 2, 3, stride=(2, 1), padding=(0, 1), padding_after=(1, 0), layout=FHWC)
TILES = Microkernel((5, 96), (2, 4, 32), unroll=4, margin=16)
#: Two workgroups of 19 rows, the last tile of which has five.
PRODUCT = Matmul(38, 96, 48, rhs_layout="n")
ROWS = Microkernel((19, 96), (14, 1, 32), unroll=8)
ROWS_OF_TERMS = replace(ROWS, unroll=3)


# -- what the kernel computes ------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [8, LANES])
def test_the_shuffles_transpose(lanes: int):
    """As numpy does; each step makes every row once."""
    square = np.arange(lanes * lanes).reshape(lanes, lanes)
    rows = list(square)
    for step in transposition(lanes):
        made = {
            each.result: np.concatenate([rows[each.first], rows[each.second]])[list(each.lanes)]
            for each in step
        }
        assert sorted(made) == list(range(lanes))
        rows = [made[row] for row in range(lanes)]
    assert np.array_equal(rows, square.T)


def addresses(operation: Operation, configuration: Microkernel, name: str) -> list[Callable[..., int]]:
    """The functions of the affine maps of `%name...` in the rendered kernel, by the names of their arguments."""
    text = render_module(operation, [Dispatch(operation, configuration)])
    text = re.sub(r"\bfrom\b", "from_", text)  # a word of Python
    found = re.findall(rf"%{name} = affine.apply affine_map<\((.*?)\) -> \((.*)\)>\(", text)
    assert found
    bodies = [(names, body.replace("floordiv", "//").replace(" mod ", " % ")) for names, body in found]
    return [eval(f"lambda {names}, **others: {body}") for names, body in bodies]


def codes_of(plan: MicrokernelPlan) -> list[tuple[FilterBlock, TileRun, TileRun]]:
    """The codes of register tiles, in the order of the text: those of a narrower last block come first."""
    return list(itertools.product(plan.blocks[::-1], plan.row_runs, plan.column_runs))


def tiles_of(plan: MicrokernelPlan) -> Iterator[tuple[int, dict[str, int]]]:
    """The loops around a register tile, in the order of execution: the number of its code, and its place."""
    parts, parts_of_rows, images = plan.workgroups
    codes = list(enumerate(codes_of(plan)))
    for image, part_of_rows, part in itertools.product(range(images), range(parts_of_rows), range(parts)):
        first_row = part_of_rows * plan.distribution[0]
        for start in range(0, plan.distribution[1], plan.block):
            padded = part * plan.distribution[1] + start
            group, in_group = divmod(padded, plan.padded_group)
            place = {"part_of_images": image, "image": image // plan.planes, "plane": image % plan.planes}
            place |= {
                "block_start": start,
                "padded": padded,
                "group": group,
                "filter": group * plan.group + in_group,
            }
            place["stored"] = group * plan.stored_group + in_group
            computed = plan.blocks[-1 if in_group == plan.padded_group - plan.block else 0]
            for code, (block, rows, columns) in codes:
                if block != computed:
                    continue
                for tile_row in range(rows.start, rows.stop, rows.width):
                    row = min(first_row + tile_row, plan.rows - rows.width)
                    for column in range(columns.start, columns.stop, columns.width):
                        yield code, place | {"tile_row": tile_row, "row": row, "column": column}


#: Padded blocks of filters in each of three groups; the last workgroup has fewer rows, and the last tile of a row fewer columns.
GROUPED = (
    Conv2d(2, 7, 7, 24, 60, 3, 3, groups=3, layout=FHWC),
    Microkernel((2, 96), (2, 3, 32), 8, packed=True),
)
DEPTHWISE = (
    Conv2d(1, 7, 9, 40, 40, 3, 3, padding=(1, 1), groups=40),
    Microkernel((3, 16), (1, 4, 16), 1, packed=True),
)
VOLUME = (
    Conv3d(2, 4, 5, 6, 3, 21, 3, 3, 3, padding=(1, 1, 1), layout="ndhwc_fdhwc_ndhwc"),
    Microkernel((5, 32), (2, 6, 16), 3, packed=True),
)
#: Last blocks that are narrower: in one vector of three, with lanes without filters, in each of two groups and three workgroups.
NARROW = (Matmul(13, 112, 24, rhs_layout="n"), Microkernel((5, 144), (4, 1, 48), 8, packed=True))
NARROW_MASKED = (
    Conv2d(1, 7, 7, 8, 90, 3, 3, padding=(1, 1), layout=FHWC),
    Microkernel((7, 128), (2, 3, 64), 4, packed=True),
)
NARROW_GROUPS = (
    Conv2d(2, 6, 6, 16, 216, 1, 1, groups=2, layout=HWCF),
    Microkernel((4, 96), (2, 3, 48), 4, packed=True),
)
#: Filters of a single vector, in blocks of two.
SINGLE = (
    Conv2d(1, 6, 6, 8, 32, 3, 3, groups=2, layout=FHWC),
    Microkernel((4, 64), (2, 2, 32), 4, packed=True),
)
#: Half a vector after whole ones, in blocks as wide as others; and in groups, where three of its lanes have no filters.
HALF = (Matmul(13, 88, 24), Microkernel((5, 96), (4, 1, 48), 8, packed=True))
HALF_MASKED = (
    Conv2d(1, 6, 6, 8, 42, 3, 3, groups=2, layout=FHWC),
    Microkernel((4, 64), (2, 2, 32), 4, packed=True),
)
NARROWER = [NARROW, NARROW_MASKED, NARROW_GROUPS, SINGLE, HALF, HALF_MASKED]
CASES = [(CONVOLUTION, TILES), (PRODUCT, ROWS)]
PACKED = [(operation, replace(configuration, packed=True)) for operation, configuration in CASES]


@pytest.mark.parametrize(
    ("operation", "configuration"), [*CASES, *PACKED, GROUPED, DEPTHWISE, VOLUME, *NARROWER]
)
def test_every_element_of_the_result_is_stored_once(operation: Operation, configuration: Microkernel):
    """By the tiles of all workgroups; where the last workgroup has fewer rows, it stores some twice."""
    plan = configuration.plan(operation)
    stored = np.zeros(operation.results[0].elements, int)
    stores = iter(addresses(operation, configuration, r"y_at_\d+_\d+"))
    codes = codes_of(plan)
    sizes = [
        len(plan.pixels(rows.width, columns.width)) * len(block.vectors) for block, rows, columns in codes
    ]
    stores_of = [list(itertools.islice(stores, size)) for size in sizes]
    for code, tile in tiles_of(plan):
        left = (tile["group"] + 1) * plan.group - tile["filter"]
        for number, store in enumerate(stores_of[code]):
            vectors = codes[code][0].vectors
            start, lanes = store(**tile), left - number % len(vectors) * LANES
            assert lanes > 0 or plan.is_depthwise
            stored[start : start + min(max(lanes, 0), vectors[number % len(vectors)].lanes)] += 1
    assert np.all(stored >= 1)
    assert np.all(stored == 1) or plan.rows % plan.distribution[0]


@pytest.mark.parametrize(("operation", "configuration"), CASES)
def test_the_pixels_of_a_tile_are_those_of_the_image_and_the_result(
    operation: Operation, configuration: Microkernel
):
    """As numpy slices arrays of their own addresses."""
    plan = configuration.plan(operation)
    image = np.arange(np.prod(plan.image)).reshape(plan.image)
    result = np.arange(plan.rows * plan.columns * plan.filters).reshape(plan.rows, plan.columns, plan.filters)
    rows, columns, _ = plan.registers
    read = image[:: plan.stride[0], :: plan.stride[1], 0][:rows, :columns].ravel()
    written = result[:rows, :columns, 0].ravel()
    assert plan.pixels(rows, columns) == tuple(zip(read.tolist(), written.tolist(), strict=True))


UNPADDED = Conv2d(2, 9, 9, 16, 192, 2, 3, stride=(2, 1), layout=FHWC)


@pytest.mark.parametrize(
    ("operation", "configuration"),
    [
        (UNPADDED, Microkernel((4, 96), (3, 7, 16))),
        (replace(UNPADDED, layout=HWCF), Microkernel((4, 96), (3, 7, 16), packed=True)),
        CASES[1],
        PACKED[1],
    ],
)
def test_the_tiles_of_a_block_prefetch_all_of_the_next(operation: Operation, configuration: Microkernel):
    """Every cache line of 16 elements, and not much else: the filters of a block are side by side in memory.

    Tiles at a border omit taps, and what they would have prefetched meanwhile.
    """
    plan = configuration.plan(operation)
    assert plan.is_prefetched
    (next_of_tile, *_), (tile_of, *_) = (
        addresses(operation, configuration, each) for each in ("next", "tile")
    )
    lines_of = addresses(operation, configuration, r"line_\d+")[: plan.prefetched_lines]
    steps = range(0, plan.terms, plan.unroll)
    lines: dict[int, set[int]] = {}
    for _, tile in tiles_of(plan):
        start = next_of_tile(**tile, tile=tile_of(**tile))
        found = {line(next=start, tile=0, row_taps_tap_term=0, channel=step) // LANES for step in steps for line in lines_of}  # fmt: skip
        lines.setdefault(tile["padded"], set()).update(found)
    per_block = plan.block * plan.terms // LANES
    for padded, found in lines.items():
        first = (padded + plan.block) * plan.terms // LANES
        assert found >= set(range(first, first + per_block))
        assert len(found) <= 1.6 * per_block


@given(
    size=st.integers(1, 12), taps=st.integers(1, 4), stride=st.integers(1, 3), dilation=st.integers(1, 3),
    low=st.integers(0, 5), extent=st.integers(1, 14), width=st.integers(1, 5),
)  # fmt: skip
def test_runs_cover_every_pixel_with_the_taps_that_read_the_image(
    size: int, taps: int, stride: int, dilation: int, low: int, extent: int, width: int
):
    """Each tile once, in order; compared with an image in which numpy has added the padding."""
    padded = np.zeros(low + size + extent * stride + taps * dilation, bool)
    padded[low : low + size] = True
    found: list[tuple[int, int]] = []
    for run in Windows(size, taps, stride, dilation, low).runs(extent, width):
        for start in range(run.start, run.stop, run.width):
            for pixel in range(run.width):
                inside = [pixel in run.inside_at(tap) for tap in range(taps)]
                at = (start + pixel) * stride
                assert inside == padded[at : at + taps * dilation : dilation].tolist()
            found.append((start, run.width))
        assert run.is_whole == all(len(run.inside_at(tap)) == run.width for tap in range(taps))
    assert found == [(start, min(width, extent - start)) for start in range(0, extent, width)]


@pytest.mark.parametrize("operation", [Matmul(38, 192, 48), Conv2d(1, 6, 6, 20, 192, 1, 1, layout=HWCF)])
def test_the_tiles_of_a_block_prefetch_the_next_filters_of_each_term(operation: Operation):
    """Where the filters of a term are side by side: every cache line of the next block, and not much else."""
    rows, tile = (19, (2, 1, 48)) if isinstance(operation, Matmul) else (6, (2, 3, 48))
    configuration = Microkernel((rows, 96), tile, 4)
    plan = configuration.plan(operation)
    assert plan.is_prefetched
    (next_of_tile, *_), (tile_of, *_) = (
        addresses(operation, configuration, each) for each in ("next", "tile")
    )
    lines_of = addresses(operation, configuration, r"line_\d+")[: plan.prefetched_lines]
    lines: dict[int, set[int]] = {}
    for _, place in tiles_of(plan):
        now = {"next": next_of_tile(**place), "tile": tile_of(**place), "row_taps_tap_term": 0}
        found = {
            line(**now, channel=step) // LANES
            for step in range(0, plan.terms, plan.unroll)
            for line in lines_of
        }
        lines.setdefault(place["padded"], set()).update(found)
    for padded, found in lines.items():
        first = (padded + plan.block) // LANES
        wanted = {
            term * plan.filters // LANES + first + line for term in range(plan.terms) for line in range(3)
        }
        assert found >= wanted and len(found) <= 1.6 * len(wanted)


@pytest.mark.parametrize("block", [8, 24])
def test_part_of_a_cache_line_is_prefetched_as_a_whole(block: int):
    """Blocks of 8 filters, and of 24, in vectors of 8 elements."""
    operation, configuration = Matmul(36, 96, 16), Microkernel((18, 96), (3, 1, block), 4, lanes=8)
    plan = configuration.plan(operation)
    lines_of = addresses(operation, configuration, r"line_\d+")[: plan.prefetched_lines]
    found = {
        line(next=block, tile=tile, row_taps_tap_term=0, channel=channel) - block
        for line in lines_of
        for tile in range(plan.tiles)
        for channel in range(0, plan.terms, plan.unroll)
    }
    assert found >= {term * 96 + at for term in range(plan.terms) for at in range(0, block, 16)}


def test_a_single_block_is_not_prefetched():
    """Nor are filters of several taps that are side by side, which are small."""
    assert not Microkernel((19, 32), ROWS.registers).plan(PRODUCT).is_prefetched
    assert not Microkernel((4, 96), (3, 7, 16)).plan(replace(UNPADDED, layout=HWCF)).is_prefetched
    for operation in (PRODUCT, Matmul(38, 96, 48)):
        text = render_module(operation, [Dispatch(operation, Microkernel((19, 32), (2, 1, 32)))])
        assert "memref.prefetch %filters" not in text


@pytest.mark.parametrize(
    ("operation", "configuration", "size"),
    [
        (Matmul(38, 96, 48, rhs_layout="n"), Microkernel((19, 96), (8, 1, 48), 8), (38, 1)),
        (Conv2d(1, 9, 16, 20, 64, 1, 1, (2, 2), layout=HWCF), Microkernel((5, 64), (2, 4, 32), 4), (9, 16)),
    ],
)
def test_a_tile_prefetches_the_pixels_of_the_next(operation: Operation, configuration: Microkernel, size):
    plan = configuration.plan(operation)
    places = addresses(operation, configuration, r"x_at_0_\d+")[
        : len(plan.pixels(*configuration.registers[:2]))
    ]
    ahead = addresses(operation, configuration, r"next_x_\d+")[: len(places)]
    channels = operation.operands[0].shape[-1]
    rows, pixels, _ = configuration.registers
    step = rows * channels if size[1] == 1 else pixels * 2 * channels
    for at, following in zip(places, ahead, strict=True):
        now = at(row_taps_tap_pixel=0, channel=4)
        assert following(x_at_0_0=now, **{f"x_at_0_{i}": now for i in range(1, len(places))}) == now + step


#: The gradient of a weight: two workgroups along rows, whose last tiles have five rows, and an odd number of terms.
GRADIENT = Matmul(38, 96, 51, lhs_layout="n")


def test_rows_of_a_term_are_read_side_by_side():
    """Each row of each term of a tile, from a matrix of terms and rows."""
    plan, stored = ROWS_OF_TERMS.plan(GRADIENT), np.arange(51 * 38).reshape(51, 38)
    (corner_of, *_), (pixel_of, *_) = (
        addresses(GRADIENT, ROWS_OF_TERMS, each) for each in ("corner", "row_taps_tap_pixel")
    )
    codes = len(plan.row_runs)
    every = addresses(GRADIENT, ROWS_OF_TERMS, r"x_at_\d+_\d+")
    first = plan.unroll * plan.registers[0]
    of_code = [every[:first], every[first : first + plan.unroll * 5]]
    for code, place in tiles_of(plan):
        height = codes_of(plan)[code][1].width
        pixel = pixel_of(corner=corner_of(**place), tap_row=0, tap_column=0)
        found = [
            at(row_taps_tap_pixel=pixel, channel=channel)
            for channel in range(0, plan.terms, plan.unroll)
            for at in of_code[code % codes]
        ]
        assert found == stored[:, place["row"] : place["row"] + height].ravel().tolist()


def test_rows_of_a_term_have_no_margin():
    reason = "margin: lhs is stored transposed, so that no pixel has its channels side by side"
    assert replace(ROWS_OF_TERMS, margin=16).invalid_reason(GRADIENT, CPU) == reason
    space = Microkernel.space(replace(GRADIENT, m=1024, k=1024), CPU)
    assert space is not None
    assert {axis.choices for axis in space.axes if axis.name == "margin"} == {(0,)}


def test_each_term_prefetches_both_ends_of_a_later_one():
    """These are in two cache lines at most, which no other tile reads meanwhile."""
    plan = ROWS_OF_TERMS.plan(GRADIENT)
    text = render_module(GRADIENT, [Dispatch(GRADIENT, ROWS_OF_TERMS)])
    names = re.findall(r"memref.prefetch %images\[%(\w+)\]", text)[: 2 * plan.unroll]
    assert names == ["next_x_0", "next_x_13", "next_x_1_0", "next_x_1_13", "next_x_2_0", "next_x_2_13"]
    (ahead, *_) = addresses(GRADIENT, ROWS_OF_TERMS, "next_x_1_13")
    assert ahead(x_at_1_13=100) == 100 + 8 * 38


def test_tiles_that_read_the_same_pixels_prefetch_none():
    text = render_module(CONVOLUTION, [Dispatch(CONVOLUTION, TILES)])
    assert "memref.prefetch %images" not in text


@pytest.mark.parametrize(("type_", "of_line"), [("f32", 1), ("bf16", 2)])
def test_a_tile_prefetches_the_operands_of_its_epilogue_before_its_sums(type_: str, of_line: int):
    """Each line once: bf16 has the elements of two vectors in one."""
    operation = replace(
        Conv2d(
            1, 9, 16, 20, 64, 1, 1, (2, 2), layout="nhwc_fhwc_nhwc", types=ElementTypes(type_, type_, type_)
        ),
        epilogue=Epilogue.parse("bias+residual"),
    )
    configuration = Microkernel((5, 64), (2, 4, 32), 4, packed=True)
    text = render_module(operation, [Dispatch(operation, configuration)])
    names = re.findall(r"memref.prefetch %of_(residual)\w*\[%(\w+)\]", text)
    reads = re.findall(r"vector.load %of_residual\w*\[%(\w+)\]", text)
    assert len(names) * of_line == len(reads) == (2 + 1) * 4 * 2  # tiles of two rows, and one of the last row
    assert text.index("memref.prefetch %of_residual") < text.index("scf.for %channel")
    place = {"part_of_images": 0, "row": 2, "column": 4, "filter": 32}
    ahead, read = (
        [at(**place) for at in addresses(operation, configuration, name)]
        for name in (r"residual\w*_at_\d+_\d+", r"y_at_\d+_\d+")
    )
    assert ahead == read[::of_line]


# -- filters in place --------------------------------------------------------------------------------

#: Two workgroups along rows, each with two register tiles, and a last block of three vectors of which one is half as wide.
FEW = Matmul(12, 88, 40)
IN_PLACE = Microkernel((6, 96), (4, 1, 48), 4)


def test_few_register_tiles_read_filters_in_place():
    """Those of one tap that are side by side, if one workgroup alone adds up a sum, in f32."""
    assert IN_PLACE.plan(FEW).reads_in_place
    assert IN_PLACE.plan(FEW).buffers[3] == 0
    text = render_module(FEW, [Dispatch(FEW, IN_PLACE)])
    assert "%panel" not in text and "%sums = flow.dispatch" in text
    pixels = Conv2d(1, 3, 5, 20, 64, 1, 1, layout=HWCF)
    assert Microkernel((3, 64), (1, 5, 32), 4).plan(pixels).reads_in_place
    others = [
        (replace(FEW, rhs_layout="n"), IN_PLACE),
        (replace(FEW, m=13), IN_PLACE),  # the last workgroup computes five rows of the one before again
        (replace(FEW, types=ElementTypes("f32", "f32", "f16")), IN_PLACE),
        (FEW, replace(IN_PLACE, registers=(1, 1, 48))),
        (replace(pixels, r=2), Microkernel((2, 64), (1, 5, 32), 4)),
    ]
    assert not any(tiles.plan(operation).reads_in_place for operation, tiles in others)
    assert all(tiles.plan(operation).copies for operation, tiles in others)
    packed = replace(IN_PLACE, packed=True).plan(FEW)
    assert not packed.reads_in_place and not packed.copies


def test_filters_are_multiplied_where_they_are_stored():
    """Each by each register tile once, without those that the last block lacks."""
    plan = IN_PLACE.plan(FEW)
    stored = np.arange(plan.terms * plan.filters).reshape(plan.terms, plan.filters)
    (start, *_) = addresses(FEW, IN_PLACE, "from_")
    vectors_of = addresses(FEW, IN_PLACE, r"w_at_\d+_\d+")[: plan.unroll * 3]
    for code, place in tiles_of(plan):
        found = list[int]()
        block, *_ = codes_of(plan)[code]
        for channel in range(0, plan.terms, plan.unroll):
            at = start(**place, row_taps_tap_term=0, channel=channel)
            for number, vector in enumerate(vectors_of):
                lanes = block.vectors[number % 3].lanes
                found += range(vector(from_=at), vector(from_=at) + lanes)
        first = place["filter"]
        assert found == stored[:, first : first + 48].ravel().tolist()


def test_tiles_prefetch_the_next_filters_in_place():
    """Every cache line of the next block in the same slice, or behind the last block, of the first one in the next slice."""
    operation = Matmul(12, 192, 48)
    plan = IN_PLACE.plan(operation)
    (next_of_tile, *_), (tile_of, *_) = (addresses(operation, IN_PLACE, each) for each in ("next", "tile"))
    lines_of = addresses(operation, IN_PLACE, r"line_\d+")[: plan.prefetched_lines]
    lines: dict[tuple[int, int], set[int]] = {}
    for _, place in tiles_of(plan):
        now = {"next": next_of_tile(**place), "tile": tile_of(**place), "row_taps_tap_term": 0}
        for channel in range(0, plan.terms, plan.unroll):
            key = place["padded"], channel // 16
            lines.setdefault(key, set()).update(line(**now, channel=channel) // LANES for line in lines_of)
    for (padded, number), found in lines.items():
        is_last = padded % 96 == 48
        first, term = (padded - 48, 16 * number + 16) if is_last else (padded + 48, 16 * number)
        wanted = range(term * 192 + first, (term + 16) * 192 + first, 192)
        assert found == {row // LANES + line for row in wanted for line in range(3)}


def test_terms_of_filters_in_place_are_added_in_slices():
    """Each from zero: a sum of 40 terms is that of 16, 16 and 8, at the end added to the one before."""
    plan = IN_PLACE.plan(FEW)
    assert plan.slice == 16
    bound = IN_PLACE.error_bound(FEW)
    assert bound is not None and bound.longest_chain(FEW) == 16 + 3
    odd = replace(FEW, k=27)
    assert replace(IN_PLACE, unroll=3).plan(odd).slice == 15
    assert usual_unroll(plan, IN_PLACE.registers) == 4
    assert usual_unroll(replace(plan, packed=True), IN_PLACE.registers) == 8


# -- packed filters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["n", "t", FHWC, HWCF])
def test_packing_stores_the_filters_in_the_order_in_which_they_are_multiplied(layout: str):
    """Block by block, and in a block term by term: of a term, the filters of the block."""
    if layout in ("n", "t"):
        operation: Operation = Matmul(38, 96, 24, rhs_layout=layout)
        terms_of = {"n": "ft->tf", "t": "tf->tf"}[layout]
    else:
        operation = Conv2d(1, 9, 9, 6, 96, 2, 3, layout=layout)
        terms_of = {FHWC: "fhwc->hwcf", HWCF: "hwcf->hwcf"}[layout]
    steps = Microkernel((1, 96), (1, 1, 32), unroll=2, packed=True).packing(operation)
    weight = np.arange(float(operation.operands[1].elements)).reshape(operation.operands[1].shape)
    expected = np.einsum(terms_of, weight).reshape(-1, 96)

    found = computed(steps, {"rhs": weight})[steps[-1].result.name].reshape(3, -1, 32)

    for block, panel in enumerate(found):
        assert np.array_equal(panel, expected[:, 32 * block : 32 * (block + 1)])


@pytest.mark.parametrize(("operation", "configuration"), NARROWER)
def test_panels_of_narrower_blocks_have_no_vector_without_filters(
    operation: Operation, configuration: Microkernel
):
    """Of each group, the filters of all terms in turn, block by block; zeros complete the last vector."""
    plan = configuration.plan(operation)
    steps = configuration.packing(operation)
    weight = np.arange(1.0, operation.operands[1].elements + 1).reshape(operation.operands[1].shape)
    if operation.product is not None:
        layout, order = {"n": "fk", "t": "kf"}[operation.product.rhs_layout], "kf"
    else:
        layout = operation.convolution.filter_layout
        order = "".join(each for each in layout if each not in "fc") + "cf"
    filters = np.einsum(f"{layout}->{order}", weight).reshape(-1, plan.groups, plan.group)
    missing = -plan.group % LANES
    filters = np.pad(filters, ((0, 0), (0, 0), (0, missing)))

    found = computed(steps, {"rhs": weight})[steps[-1].result.name].ravel()

    (start,) = addresses(operation, configuration, "panel")
    assert found.size == plan.buffers[1] == filters.size
    for _, tile in tiles_of(plan):
        at, in_group = start(**tile), tile["padded"] % plan.padded_group
        panel = filters[:, tile["group"], in_group : in_group + plan.block]
        assert np.array_equal(found[at : at + panel.size].reshape(panel.shape), panel)


def test_a_narrower_block_is_masked_only_where_lanes_have_no_filters():
    for (operation, configuration), masked in ((NARROW, []), (NARROW_MASKED, [32]), (NARROW_GROUPS, [16])):
        plan = configuration.plan(operation)
        assert [block.filters for block in plan.blocks if block.is_masked] == masked
        text = render_module(operation, [Dispatch(operation, configuration)])
        assert text.count("scf.if") == 1 and ("vector.maskedstore" in text) == bool(masked)
    operation, configuration = GROUPED  # A block of 32 for 20 filters: no vector is empty.
    assert "scf.if" not in render_module(operation, [Dispatch(operation, configuration)])


def test_the_last_vector_is_half_as_wide_if_half_is_enough():
    """In panels it is whole, so that all vectors are aligned."""
    for (operation, configuration), vectors, masked in (
        (HALF, [[16, 16, 16], [16, 16, 8]], 0),
        (HALF_MASKED, [[16, 8]], 1),
        (NARROW_MASKED, [[16, 16, 16, 16], [16, 16]], 1),
        (
            (HALF[0], replace(HALF[1], registers=(2, 1, 24), distribution=(5, 96), lanes=8)),
            [[8, 8, 8], [8, 8]],
            0,
        ),
    ):
        plan = configuration.plan(operation)
        assert [[each.lanes for each in block.vectors] for block in plan.blocks] == vectors
        text = render_module(operation, [Dispatch(operation, configuration)])
        assert text.count("vector.create_mask") == masked
    assert HALF[1].plan(HALF[0]).buffers[1] == 96 * 24
    plain = replace(HALF[1], packed=False)  # Filters that are not packed are read in whole vectors.
    assert plain.invalid_reason(Matmul(13, 96, 24), CPU) is None
    assert "<8xf32>" not in render_module(Matmul(13, 96, 24), [Dispatch(Matmul(13, 96, 24), plain)])


def test_a_narrower_block_that_is_the_last_of_all_prefetches_none():
    shared = replace(NARROW_GROUPS[1], distribution=(4, 288))
    for (operation, configuration), prefetched in (
        (NARROW, [True, False]),
        ((NARROW_GROUPS[0], shared), [True, True]),
    ):
        assert [block.is_prefetched for block in configuration.plan(operation).blocks] == prefetched
    lines = addresses(NARROW_GROUPS[0], shared, "next")
    (block, _, _), *_ = codes_of(shared.plan(NARROW_GROUPS[0]))
    # The first panel of the second group follows the 108 filters of the first, in seven vectors.
    assert lines[0](stored=96, tile=0) == 112 * 8 and block.filters == 16


@pytest.mark.parametrize(("operation", "configuration"), PACKED)
def test_a_kernel_with_packed_filters_copies_none(operation: Operation, configuration: Microkernel):
    text = render_module(operation, [Dispatch(operation, configuration)])
    assert "%panels" in render_module(operation, [Dispatch(operation, replace(configuration, packed=False))])
    assert "%panels_start" not in text and "vector.shuffle" not in text
    (start,) = addresses(operation, configuration, "panel")
    plan = configuration.plan(operation)
    # The blocks are side by side, in order.
    starts = [start(padded=padded) for padded in range(0, plan.filters, plan.block)]
    assert starts == list(range(0, operation.operands[1].elements, plan.panel))


def test_filters_that_are_stored_as_they_are_multiplied_are_not_packed():
    operation, single = Matmul(38, 32, 48), Microkernel((19, 32), (14, 1, 32))
    reason = "packed: 32 filters are one block, which is stored as it is multiplied"
    assert replace(single, packed=True).invalid_reason(operation, CPU) == reason
    assert single.with_packed_weight(operation) is None
    smaller = replace(single, registers=(14, 1, 16))
    assert smaller.with_packed_weight(operation) == replace(smaller, packed=True)
    assert single.with_packed_weight(replace(operation, rhs_layout="n")) == replace(single, packed=True)
    # Groups have a block each, and a depthwise convolution has an axis of one channel before its filters.
    for groups in (2, 16):
        grouped = Conv2d(1, 8, 8, 16, 16, 3, 3, groups=groups, layout=HWCF)
        unroll = 8 if groups == 2 else 1
        tiles = Microkernel((6, 16 * groups if groups == 2 else 16), (1, 6, 16), unroll, packed=True)
        assert tiles.invalid_reason(grouped, CPU) is None


def test_packed_filters_are_searched_only_where_the_weight_is_constant():
    for operation in (CONVOLUTION, PRODUCT):
        kinds = [
            [
                (each.kind, each.to_configuration(each.draw(np.random.default_rng(0))).packs_weight)
                for each in found
            ]
            for found in (spaces(operation, CPU), spaces(operation, CPU, packed_weights=True))
        ]
        assert (Microkernel, False) in kinds[0] and not any(packs for _, packs in kinds[0])
        assert kinds[1][: len(kinds[0])] == kinds[0] and kinds[1].count((Microkernel, True)) == 1
        (space,) = Microkernel.packed_spaces(operation, CPU)
        found = set(itertools.islice(draw_valid([space], operation, CPU, np.random.default_rng(0)), 20))
        assert len(found) == 20 and all(each.packs_weight for each in found)
    assert list(Microkernel.packed_spaces(LayerNorm(4, 16), CPU)) == []


def test_packed_filters_need_no_sixteen_terms():
    """They are not transposed in registers, 16 terms at a time."""
    operation = Conv2d(1, 8, 8, 3, 32, 2, 2, layout=FHWC)
    configuration = Microkernel((7, 32), (1, 7, 32), 3)
    assert configuration.invalid_reason(operation, CPU) is not None
    assert configuration.with_packed_weight(operation).invalid_reason(operation, CPU) is None


def test_the_kernel_computes_the_epilogue_and_rounds_its_result():
    epilogue = Epilogue.parse("bias+gelu+residual")
    operation = replace(PRODUCT, epilogue=epilogue)
    text = render_module(operation, [Dispatch(operation, ROWS)])
    assert "%erf" in text and "arith.truncf" not in text and "linalg.generic" not in text
    narrow = replace(operation, types=ElementTypes("f32", "f32", "f16"))
    text = render_module(narrow, [Dispatch(narrow, ROWS)])
    assert text.count("= arith.divf %erf_product") == text.count("arith.truncf") > 0
    assert "linalg.generic" not in text


# -- suggestions -------------------------------------------------------------------------------------

#: Operation -> the number of elements that its best register tile loads for each vector of products.
SUGGESTED = {
    Matmul(96, 768, 768, rhs_layout="n"): 1 / 6 + 1 / 4,
    Conv2d(1, 14, 14, 256, 1024, 1, 1, layout=FHWC): 15 / 14 * (1 / 6 + 1 / 4),
    Conv2d(1, 7, 7, 512, 512, 3, 3, padding=(1, 1), layout=FHWC): 8 / 7 * (1 / 4 + 1 / 4),
    Conv2d(1, 56, 56, 64, 48, 1, 1, layout=FHWC): 1 / 8 + 1 / 3,
    # Workgroups share its rows, because a block has all filters: then a tile has one row.
    Conv2d(1, 56, 56, 64, 64, 3, 3, padding=(1, 1), layout=FHWC): 1 / 4 + 1 / 4,
}


@pytest.mark.parametrize("operation", SUGGESTED, ids=lambda operation: operation.name)
def test_suggestions_are_valid_and_load_as_little_as_any_register_tile(operation: Operation):
    found = Microkernel.likely(operation, CPU)
    assert found and len(set(found)) == len(found)
    assert all(rejection_reason(each, operation, CPU) is None for each in found)
    rows, pixels, filters = found[0].registers
    whole = found[0].plan(operation)
    waste = -(-whole.rows // rows) * rows / whole.rows
    assert (1 / (rows * pixels) + LANES / filters) * waste == pytest.approx(SUGGESTED[operation])
    assert all(2 <= np.prod(each.plan(operation).workgroups) <= 16 for each in found)


def test_suggestions_for_constant_weights_pack_them_where_that_changes_them():
    for operation in SUGGESTED:
        packed = Microkernel.likely(operation, CPU, packed_weights=True)
        plain = Microkernel.likely(operation, CPU)
        unroll = 4 if plain[0].plan(operation).all_taps > 1 else 8
        assert packed and all(each.packed and each.unroll == unroll for each in packed)
        assert {each.unroll for each in plain} == {4}
        if (
            operation.operands[1].shape[0] % 48 == 0
        ):  # Otherwise packed filters may be padded to a multiple of 48.
            assert packed == tuple(replace(each, packed=True, unroll=unroll) for each in plain)
    # Of 8 channels and 9 taps, only packed filters can be multiplied; one block of hwcf is stored as it is packed.
    assert Microkernel.likely(Conv2d(1, 8, 8, 8, 64, 3, 3, layout=FHWC), CPU, packed_weights=True)
    single = Microkernel.likely(Conv2d(1, 28, 28, 16, 16, 3, 3, layout=HWCF), CPU, packed_weights=True)
    assert single and not any(each.packed for each in single)


@pytest.mark.parametrize("packed", [False, True])
def test_channels_are_not_computed_in_two_iterations(packed: bool):
    """Two iterations of 8 channels took 1.8 times as long as four of 4, for 14 pixels and 32 filters."""
    for channels, unroll in (
        (16, 4),
        (8, 8 if packed else 2),
        (32, 8 if packed else 4),
        (48, 8 if packed else 4),
    ):
        operation = Conv2d(1, 14, 14, channels, 192, 1, 1, layout=HWCF)
        found = Microkernel.likely(operation, CPU, packed_weights=packed)
        assert {each.unroll for each in found} == {unroll}


@pytest.mark.parametrize(
    ("channels", "taps", "registers", "unroll"),
    [
        (64, 3, (1, 14, 32), 4),
        (64, 3, (1, 4, 64), 4),
        (64, 1, (1, 14, 32), 8),  # its code is short
        (64, 3, (1, 7, 16), 8),  # 4 channels are 28 vectors only
        (8, 3, (1, 14, 32), 8),  # one iteration
        (18, 3, (1, 14, 32), 2),
    ],
)
def test_convolutions_with_several_taps_have_short_code(channels, taps, registers, unroll):
    operation = Conv2d(1, 28, 28, channels, 64, taps, taps, layout=HWCF)
    plan = Microkernel((7, 64), registers, 2, packed=True).plan(operation)
    assert usual_unroll(plan, registers) == unroll
    (space,) = Microkernel.packed_spaces(operation, CPU)
    (axis,) = (each for each in space.axes if each.name == "unroll")
    is_short = taps == 1 or channels == 8
    assert max(axis.choices) == {8: 8, 18: 2}.get(channels, 8 if is_short else 4)


def test_nothing_is_suggested_for_what_no_microkernel_computes():
    assert Microkernel.likely(BatchMatmul(2, 8, 32, 16), CPU) == ()
    assert Microkernel.likely(PRODUCT, parse_target("cuda:sm_80").limits) == ()


# -- rules -------------------------------------------------------------------------------------------

WHAT = "microkernels are for "
STORED = "microkernels that read filters as they are stored "
SHAPES = {
    WHAT + "matmul and convolutions, not for layer_norm": LayerNorm(4, 16),
    WHAT + "f32 and bf16 with f32 sums, and for i8, not for f16 with f32": Matmul(8, 32, 16, ElementTypes("f16", "f16", "f16")),
    WHAT + "f32 and bf16 with f32 sums, and for i8, not for f64 with f64": Matmul(8, 32, 16, ElementTypes("f64", "f64", "f64")),
    "microkernels of i8 are for matmul with a multiple of 4 terms": Matmul(8, 32, 18, ElementTypes("i8", "i8", "i32")),
    STORED + "are for f32, not for bf16": Matmul(8, 32, 16, ElementTypes("bf16", "bf16", "bf16")),
    WHAT + "matmul and convolutions, not for batch_matmul": BatchMatmul(2, 8, 32, 16),
    WHAT + "forward convolutions, and for gradients of inputs that equal one, not for this weight_backward": Conv2d(1, 8, 8, 16, 32, 3, 3, mode="weight_backward"),
    WHAT + "convolutions with channels last, not for nchw_fchw_nchw": Conv2d(1, 8, 8, 16, 32, 3, 3, layout="nchw"),
    "microkernels need 4 filters of a group, but got 2": Conv2d(1, 8, 8, 16, 16, 3, 3, groups=8),
    STORED + "are for convolutions without groups, but got 2": Conv2d(1, 8, 8, 16, 32, 3, 3, groups=2),
    STORED + "need the layout fhwc, fchw, hwcf or chwf of filters, not cfhw": Conv2d(1, 8, 8, 16, 32, 3, 3, layout="nhwc_fchw_nhwc", mode="input_backward"),
    "microkernels that transpose filters need 16 terms, but got 12": Conv2d(1, 8, 8, 3, 32, 2, 2, layout=FHWC),
    "microkernels that transpose filters need 16 terms, but got 15": Matmul(8, 32, 15, rhs_layout="n"),
}  # fmt: skip


@pytest.mark.parametrize("reason", SHAPES)
def test_an_operation_without_microkernels_has_a_reason_and_no_space(reason: str):
    assert Microkernel((1, 16), (1, 1, 16)).invalid_reason(SHAPES[reason], CPU) == reason
    assert Microkernel.space(SHAPES[reason], CPU) is None


def test_pixels_of_bf16_are_the_rows_of_lhs():
    """A conversion would write as much as the kernel reads."""
    bf16 = ElementTypes("bf16", "bf16", "bf16")
    operation, tiles = Matmul(8, 64, 16, bf16, lhs_layout="n"), Microkernel((8, 64), (2, 1, 32), packed=True)
    reason = "microkernels of bf16 are for matmul with lhs in layout t, not n"
    assert tiles.invalid_reason(operation, CPU) == reason
    assert Microkernel.packed_space(operation, CPU) is None
    assert tiles.invalid_reason(replace(operation, lhs_layout="t"), CPU) is None


def test_a_result_of_another_type_is_rounded_from_f32():
    assert ROWS.invalid_reason(Matmul(38, 96, 48, ElementTypes("f32", "f32", "f16")), CPU) is None


INVALID = {
    "a workgroup has 6 rows, but the result has 5": Microkernel((6, 96), (2, 4, 32)),
    "128 filters of a workgroup do not divide 192": Microkernel((5, 128), (2, 4, 32)),
    "a register tile has 9 pixels of a row, but a row has 8": Microkernel((5, 96), (1, 9, 32)),
    "64 filters of a register tile do not divide 96": Microkernel((5, 96), (2, 4, 64)),
    "24 filters of a register tile are not a multiple of 16": Microkernel((5, 96), (2, 4, 24)),
    "a register tile has 2 rows, but a workgroup has 1": Microkernel((1, 96), (2, 4, 32)),
    "3x8x32 needs 51 vector registers of 16 elements, but 32 are available": Microkernel((5, 96), (3, 8, 32)),
    "4x4x32 needs 35 vector registers of 16 elements, but 32 are available": Microkernel((5, 96), (4, 4, 32)),
}


@pytest.mark.parametrize("reason", INVALID)
def test_tiles_that_do_not_fit_are_rejected_with_their_values(reason: str):
    assert TILES.invalid_reason(CONVOLUTION, CPU) is None
    assert INVALID[reason].invalid_reason(CONVOLUTION, CPU) == reason


def test_an_unroll_that_does_not_divide_the_channels_is_rejected():
    operation = Conv2d(1, 5, 8, 4, 32, 1, 1)
    configuration = Microkernel((5, 32), (1, 8, 32), unroll=8)
    assert configuration.invalid_reason(operation, CPU) == "8 channels of an iteration do not divide 4"


def test_one_row_at_a_time_where_a_workgroup_has_part_of_padded_rows():
    """The kernel then finds the taps of a row as it runs, which differ between rows."""
    operation = Conv2d(1, 8, 8, 16, 32, 3, 3, padding=(1, 1), layout=FHWC)
    reason = "a register tile has 2 rows, but a workgroup has 4 of 8 padded rows: then it may have only one"
    assert Microkernel((4, 32), (2, 4, 32)).invalid_reason(operation, CPU) == reason
    for tiles in (Microkernel((4, 32), (1, 8, 32)), Microkernel((8, 32), (2, 4, 32))):
        assert tiles.invalid_reason(operation, CPU) is None
    assert (
        Microkernel((3, 32), (2, 6, 32)).invalid_reason(Conv2d(1, 8, 8, 16, 32, 3, 3, layout=FHWC), CPU)
        is None
    )


def test_panels_of_many_workgroups_are_rejected():
    """8 images x 56 rows x 16 parts of the filters, each with 4,608 terms of 32 filters."""
    operation = Conv2d(8, 58, 58, 512, 512, 3, 3, layout=FHWC)
    reason = "panels of 7168 workgroups take 4032 MiB, but at most 256 are allowed"
    assert Microkernel((1, 32), (1, 14, 32)).invalid_reason(operation, CPU) == reason
    assert Microkernel((56, 64), (1, 14, 32)).invalid_reason(operation, CPU) is None


def test_vectors_of_eight_elements_have_sixteen_registers():
    narrow = Microkernel((5, 96), (1, 4, 24), packed=True, lanes=8)
    assert narrow.invalid_reason(CONVOLUTION, CPU) is None
    assert narrow.name == "tile_config_packed_microkernel_5x96_1x4x24_u4_lanes8"
    wide = replace(narrow, registers=(2, 4, 16))
    assert wide.invalid_reason(CONVOLUTION, CPU) == (
        "2x4x16 needs 19 vector registers of 8 elements, but 16 are available"
    )
    assert replace(narrow, packed=False).invalid_reason(CONVOLUTION, CPU) is None
    avx2 = parse_target("llvm-cpu:x86-64-v3").limits
    found = Microkernel.likely(CONVOLUTION, avx2, packed_weights=True)
    found = (*found, *Microkernel.likely(CONVOLUTION, avx2))
    assert {(each.lanes, each.packed) for each in found} == {(8, True), (8, False)}
    unpacked = Microkernel.space(CONVOLUTION, avx2)
    assert unpacked is not None
    for space in (*Microkernel.packed_spaces(CONVOLUTION, avx2), unpacked):
        drawn = set(itertools.islice(draw_valid([space], CONVOLUTION, avx2, np.random.default_rng(0)), 20))
        assert len(drawn) == 20 and {each.lanes for each in drawn} == {8}


def test_microkernels_are_for_cpus():
    gpu = parse_target("cuda:sm_80").limits
    reason = "microkernels are for llvm-cpu, but the target is cuda"
    assert TILES.invalid_reason(CONVOLUTION, gpu) == reason
    assert Microkernel.space(CONVOLUTION, gpu) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"distribution": (5,)}, "distribution of a microkernel has 2 tiles, but got [5]"),
        ({"registers": (2, 32)}, "registers of a microkernel has 3 tiles, but got [2, 32]"),
        ({"registers": (2, 0, 32)}, "registers: every tile must be a whole number of at least 1, but got [2, 0, 32]"),
        ({"unroll": 5}, "unroll must be one of 1, 2, 3, 4, 8, but got 5"),
        ({"unroll": True}, "unroll must be one of 1, 2, 3, 4, 8, but got True"),
        ({"margin": 8}, "margin must be one of 0, 16, but got 8"),
        ({"lanes": 4}, "lanes must be one of 16, 8, but got 4"),
        ({"packed": 1}, "packed must be true or false, but got 1"),
        ({"packed": "yes"}, "packed must be true or false, but got 'yes'"),
    ],
)  # fmt: skip
def test_fields_are_checked(fields, message: str):
    with pytest.raises(ConfigurationError) as caught:
        Microkernel(**{"distribution": (5, 96), "registers": (2, 4, 32), **fields})
    assert str(caught.value) == message


# -- the search space --------------------------------------------------------------------------------

OPERATIONS = [
    CONVOLUTION,
    PRODUCT,
    Matmul(1, 16, 2),
    Matmul(128, 768, 3072),
    Conv2d(1, 7, 7, 512, 512, 3, 3, padding=(1, 1), layout=FHWC),
    Conv2d(1, 13, 13, 6, 48, 3, 3, layout=HWCF),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.name)
def test_points_of_the_space_are_valid_or_rejected_with_a_reason(operation: Operation):
    """No name stands for two of them, and no plan fails."""
    space = Microkernel.space(operation, CPU)
    rng = np.random.default_rng(0)
    found = {space.to_configuration(space.draw(rng)) for _ in range(300)}
    assert len({each.name for each in found}) == len(found)
    reasons = {each: rejection_reason(each, operation, CPU) for each in found}
    assert all(reason is None or re.search(r"\d", reason) for reason in reasons.values())
    valid = list(itertools.islice(draw_valid([space], operation, CPU, rng), 20))
    assert len(valid) >= min(20, space.size // 2)
    for each in valid:
        assert each.plan(operation).tiles >= 1


def test_margins_are_searched_where_pixels_collide_in_the_cache():
    """At 1,024 bytes of channels, a multiple of which every fourth is a page."""

    def margins(channels: int) -> Axis:
        return next(
            a for a in Microkernel.space(Matmul(8, 32, channels), Limits()).axes if a.name == "margin"
        )

    assert margins(256).choices == (0, 16)
    assert margins(48).choices == (0,)


def test_models_see_the_tiles_of_a_microkernel_as_those_of_the_compiler():
    """Of a workgroup and in registers; the compiler itself is asked for none."""
    assert TILES.lowering(CONVOLUTION) is None
    expected = {
        CONVOLUTION: ((1, 5, 0, 96, 0, 0, 0), (1, 2, 4, 32, 0, 0, 0), (0, 0, 0, 0, 1, 1, 4)),
        PRODUCT: ((19, 96, 0), (14, 32, 0), (0, 0, 8)),
    }
    for operation, configuration in CASES:
        tiling = configuration.tiling(operation)
        assert tuple(tiles for _, tiles in tiling.levels) == expected[operation]
        assert {len(tiles) for tiles in expected[operation]} == {len(tiling.loops)}

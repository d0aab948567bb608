"""The loops, addresses and shuffles of a microkernel, which its template writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.plans.filter_blocks import FilterBlock, Vector
from dispatch_profiler.configurations.cpu.plans.tile_runs import TileRun, Windows
from dispatch_profiler.configurations.cpu.plans.vectors import Shuffle, transposition
from dispatch_profiler.configurations.splits import SLICE, longest_sum
from dispatch_profiler.operations import element_type

#: f32 elements of a vector register: with AVX-512, and with AVX2.
LANES, AVX2_LANES = 16, 8
#: Bytes of a cache line.
LINE = 64
#: MiB of the panels of all workgroups: each workgroup has its own panel.
_MAX_PANELS = 256
#: Channels of a slice, at least.
_SHORTEST_SLICE = 64
#: Terms between loading and prefetching pixels, where each term is in another page.
_TERMS_AHEAD = 8
#: Register tiles of a workgroup for a block of filters that is read in place, at most, and terms of a slice: each term is a
#: stream for the hardware's prefetcher, and slices of 16 take 0.6 of the time of 32 on a Zen 4.
_MOST_IN_PLACE, _SLICE_IN_PLACE = 4, 16


@dataclass(frozen=True)
class MicrokernelPlan:
    """A convolution of nhwc images (a product: of one image with one pixel per row), and its tiles.

    rows, columns      pixels of a result
    channels           that a filter multiplies: the channels of a group. Channels that are multiplied together count as one
    filters            of all groups; each group has equally many
    groups             1 for a depthwise convolution too: each lane of its vectors multiplies a channel of its own
    size               rows and columns of an image
    taps               of a filter; `taps`, `stride`, `dilation` are along rows and columns
    low                padding before the first row and pixel
    planes             of a result, which `plane` computes from the planes of a volume; 1 for an image
    is_reversed        whether panels have the taps of a filter in reverse order, as for the gradient of an input
    lhs_is_transposed  whether the rows of a term are side by side (a product with lhs in layout n), not the terms of a row
    rhs_is_transposed  whether the terms of a filter are side by side (fhwc, fchw), not the filters of a term (hwcf)
    has_taps_inside    whether the taps of a channel follow each other (fchw, or chwf, as in the gradient of an input)
    packed             whether the filters are stored as panels, so that the kernel copies none
    lanes              elements of a vector of sums
    type, result       types of the operands, which are f32, bf16 or i8, and of the result
    together           channels that an instruction multiplies at a time, whose products it adds to one sum: four of i8, and
                       one or two of bf16; where it is one, bf16 is converted to f32: see `converts_images`
    rounds             whether an instruction rounds results to bf16
    """

    images: int
    rows: int
    columns: int
    channels: int
    filters: int
    groups: int
    is_depthwise: bool
    size: tuple[int, int]
    taps: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    low: tuple[int, int]
    planes: int
    plane: Windows
    is_reversed: bool
    lhs_is_transposed: bool
    rhs_is_transposed: bool
    has_taps_inside: bool
    distribution: tuple[int, int]
    registers: tuple[int, int, int]
    unroll: int
    margin: int
    packed: bool
    lanes: int
    type: str
    result: str
    together: int
    rounds: bool

    # -- elements -----------------------------------------------------------------------------

    @property
    def pairs(self) -> bool:
        """Whether bf16 is multiplied in pairs of channels."""
        return self.type == "bf16" and self.together == 2

    @property
    def sums(self) -> str:
        """The type of the sums."""
        return element_type(self.type).accumulator_name

    @property
    def computed(self) -> str:
        """The type in which steps compute."""
        return "f32" if self.result != "i32" else self.sums

    @property
    def element(self) -> str:
        """The type in which the kernel loads filters: bf16 as bits, and channels that are multiplied together as one element."""
        return "i32" if self.together > 1 else {"f32": "f32", "bf16": "i16"}[self.type]

    @property
    def element_bytes(self) -> int:
        return 2 if self.element == "i16" else 4

    @property
    def converts_images(self) -> bool:
        """Whether the images are converted to f32 before the kernel: it would convert each pixel for each filter."""
        return self.element == "i16" and not self.is_depthwise

    @property
    def pixel(self) -> str:
        """The type in which the kernel loads pixels."""
        return "f32" if self.converts_images else self.element

    @property
    def pixel_bytes(self) -> int:
        return 2 if self.pixel == "i16" else 4

    def types_of(self, vector: Vector) -> Mapping[str, Vector]:
        """The types of an epilogue on a vector of sums."""
        return {
            "accumulator": Vector(vector.lanes, self.computed),
            "output": Vector(vector.lanes, self.result),
        }

    # -- extents ------------------------------------------------------------------------------

    @property
    def image(self) -> tuple[int, int, int]:
        """Rows, columns and channels of the images that the kernel reads, with the margin."""
        channels = self.filters if self.is_depthwise else self.channels * self.groups
        return (*self.size, channels + self.margin)

    @property
    def is_sliced(self) -> bool:
        """Whether the channels of each tap are added up in slices, each from zero.

        Between slices, the sums of a register tile are in memory, so short slices take too long unless they save copies.
        """
        is_long = self.terms > longest_sum(element_type("f32")) and self.channels >= _SHORTEST_SLICE
        return (is_long and self.sums == "f32") or self.reads_in_place

    @property
    def slice(self) -> int:
        """Channels that are added one after another; the sums of several slices are then added up."""
        if self.reads_in_place:
            return _SLICE_IN_PLACE // self.unroll * self.unroll
        return self.channels if self.channels <= longest_sum(element_type("f32")) else SLICE

    @property
    def longest_chain(self) -> int:
        """The most additions that a product goes through."""
        slices = self.all_taps * -(-self.channels // self.slice)
        each = self.together * self.slice
        return each + slices if self.is_sliced else self.together * self.terms

    @property
    def terms(self) -> int:
        """Products that are summed for an element of the result."""
        return self.all_taps * self.channels

    @property
    def all_taps(self) -> int:
        """Of all planes."""
        return self.plane.taps * math.prod(self.taps)

    @property
    def block(self) -> int:
        """Filters that are computed together; the last block of a group may have fewer."""
        return self.registers[2]

    @property
    def left(self) -> int:
        """Filters that are left for the last block of a group."""
        return self.group - self.padded_group + self.block

    @property
    def has_narrow_blocks(self) -> bool:
        """Whether the last block of a group may be narrower: not in depthwise convolutions."""
        return not self.is_depthwise

    @property
    def last_block(self) -> int:
        """Filters of the last block of a group, in whole vectors."""
        return -(-self.left // self.lanes) * self.lanes if self.has_narrow_blocks else self.block

    @property
    def wide(self) -> Vector:
        """A vector of sums."""
        return Vector(self.lanes, self.sums)

    @property
    def blocks(self) -> tuple[FilterBlock, ...]:
        """One for most blocks of a group, and one for the last if it is narrower.

        Some CPUs, such as AMD's Zen 4, multiply the halves of vectors of 16 elements one after the other: there, half a
        vector takes half the time. On others, it takes as long as a whole one.
        """
        wide = (self.wide,) * (self.block // self.lanes)
        last = wide[: self.last_block // self.lanes]
        half = Vector(self.lanes // 2, self.sums)
        if self.has_narrow_blocks and self.lanes == LANES and self.left <= self.last_block - half.lanes:
            last = (*last[:-1], half)
        is_masked = self.left < sum(vector.lanes for vector in last)
        loads = [self._loads(len(vectors)) for vectors in (wide, last)]
        is_last_prefetched = self.is_prefetched and (self.groups > 1 or self.reads_in_place)
        if wide == last or self.group <= self.block:
            return (FilterBlock(self.last_block, last, is_masked, self.is_prefetched, loads[1]),)
        return (
            FilterBlock(self.block, wide, False, self.is_prefetched, loads[0]),
            FilterBlock(self.last_block, last, is_masked, is_last_prefetched, loads[1]),
        )

    def _loads(self, vectors: int) -> tuple[tuple[int, ...], ...]:
        """See `FilterBlock.loads`."""
        together = 2 if self.is_depthwise and self.element == "i16" else 1
        starts = range(0, vectors, together)
        return tuple(tuple(range(start, min(start + together, vectors))) for start in starts)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Each kind of vector once."""
        return tuple(dict.fromkeys(vector for block in self.blocks for vector in block.vectors))

    @property
    def group(self) -> int:
        """Filters of a group."""
        return self.filters // self.groups

    @property
    def padded_group(self) -> int:
        """Filters of the blocks of a group, as if all had the same width. Workgroups share them."""
        return -(-self.group // self.block) * self.block

    @property
    def stored_group(self) -> int:
        """Filters of the panels of a group; the last panel may have zeros after the filters."""
        return self.padded_group - self.block + self.last_block

    @property
    def padded_filters(self) -> int:
        """Of all groups."""
        return self.groups * self.padded_group

    @property
    def is_volume(self) -> bool:
        """Whether planes are counted; a volume with one plane has several results if it is padded."""
        return self.planes > 1 or self.plane != Windows(1, 1, 1, 1, 0)

    @property
    def stored(self) -> str:
        """The value of the kernel that is the place of a block among the panels, counting filters.

        It is the place among equally wide blocks unless narrower ones come before it.
        """
        return "stored" if self.groups > 1 and self.stored_group < self.padded_group else "padded"

    @property
    def workgroups(self) -> tuple[int, int, int]:
        """Blocks of filters, blocks of rows, planes of all images. The last block of rows may have fewer."""
        rows, filters = self.distribution
        return self.padded_filters // filters, -(-self.rows // rows), self.images * self.planes

    @property
    def panel(self) -> int:
        """Elements of a panel: the filters of a block, in the order in which they are multiplied.

        That of a narrower block has fewer.
        """
        return self.terms * self.block

    @property
    def reads_in_place(self) -> bool:
        """Whether the kernel multiplies filters where they are stored: few register tiles would read a copy.

        Then a workgroup multiplies a slice of few terms by all of its blocks, before the next slice: reading long parts of few
        rows, not short parts of many, takes half the time, as each row is in another page. Sums of earlier slices are in the
        result, which has to be f32. No workgroup may compute rows of another one, as the last does if it has fewer rows.
        """
        is_stored_so = not (self.packed or self.rhs_is_transposed) and self.all_taps == 1
        is_apart = self.rows % self.distribution[0] == 0 and self.result == "f32"
        return is_stored_so and is_apart and self.tiles <= _MOST_IN_PLACE

    @property
    def copies(self) -> bool:
        """Whether the kernel copies each block of filters into a panel."""
        return not (self.packed or self.reads_in_place)

    def row_of_block(self, block: FilterBlock) -> int:
        """Elements from the filters of a term to the filters of the next term."""
        return self.filters if self.reads_in_place else block.filters

    @property
    def buffers(self) -> tuple[int, int, int, int]:
        """Elements of the images with their margin, of all filters, of the result, and of the copies in all workgroups."""
        return (
            self.images * self.plane.size * math.prod(self.image),
            (self.groups * self.stored_group if self.packed else self.filters) * self.terms,
            self.images * self.planes * self.rows * self.columns * self.filters,
            self.panel * math.prod(self.workgroups) if self.copies else 0,
        )

    @property
    def tiles(self) -> int:
        """Register tiles of a workgroup for one block of filters."""
        return -(-self.distribution[0] // self.registers[0]) * self.tiles_of_row

    @property
    def tiles_of_row(self) -> int:
        """Register tiles side by side; the last one may be narrower."""
        return -(-self.columns // self.registers[1])

    @property
    def transposition(self) -> tuple[tuple[Shuffle, ...], ...]:
        return transposition(self.lanes)

    def row_of_panel(self, row: str) -> str:
        """The row of a panel that holds the filters of a term with the number `row` in the stored order."""
        if not self.has_taps_inside or self.all_taps == 1:
            return row
        return f"({row} mod {self.all_taps} * {self.channels} + {row} floordiv {self.all_taps})"

    def pixels_of(self, rows: Iterable[int], columns: Iterable[int], width: int) -> list[int]:
        """Numbers of the pixels in `rows` and `columns` of a register tile with `width` columns."""
        columns = list(columns)
        return [row * width + column for row in rows for column in columns]

    def readers(self, columns: TileRun) -> list[tuple[int, list[tuple[int, int]]]]:
        """(column, (tap, pixel) that read it) for each column of a row of the image, counted from where a tile begins."""
        return self.windows[1].readers(columns)

    # -- borders ------------------------------------------------------------------------------

    @property
    def windows(self) -> tuple[Windows, Windows]:
        """Along rows and columns. The kernel omits the taps that read the padding."""
        axes = zip(self.size, self.taps, self.stride, self.dilation, self.low, strict=True)
        rows, columns = (Windows(*each) for each in axes)
        return rows, columns

    @property
    def column_runs(self) -> tuple[TileRun, ...]:
        return self.windows[1].runs(self.columns, self.registers[1])

    @property
    def row_runs(self) -> tuple[TileRun, ...]:
        """Of a workgroup. If it has part of the rows, the kernel finds the taps of each row as it runs.

        Where the last workgroup has fewer rows, its tiles begin early enough to end with the last row.
        """
        rows, width = self.distribution[0], self.registers[0]
        if self.has_all_rows:
            return self.windows[0].runs(rows, width)
        full = rows // width * width
        runs = (TileRun(0, full, width, None), TileRun(full, rows, rows - full, None))
        return tuple(run for run in runs if run.stop > run.start)

    @property
    def has_all_rows(self) -> bool:
        """Whether the taps of each row are known. A depthwise convolution, whose taps are unrolled, finds them as it runs."""
        return self.distribution[0] == self.rows and not (self.is_depthwise and self.has_border_rows)

    @property
    def has_border_rows(self) -> bool:
        """Whether a tap of some row reads the padding."""
        return not self.windows[0].are_inside(self.rows)

    @property
    def text_length(self) -> int:
        """Multiply-adds that the template writes: those of each run, each tap where taps are not a loop, and each width of blocks."""
        down = sum(each.width * (1 if each.is_whole else self.taps[0]) for each in self.row_runs)
        right = sum(
            each.width * (1 if each.is_whole and not self.is_depthwise else self.taps[1])
            for each in self.column_runs
        )
        return down * right * sum(len(block.vectors) for block in self.blocks) * self.unroll

    # -- addresses ----------------------------------------------------------------------------

    @property
    def pixel_strides(self) -> tuple[int, int]:
        """Elements from a row, and from a pixel, of an image to the next."""
        *_, columns, channels = (1, 1, 1) if self.lhs_is_transposed else self.image
        return columns * channels, channels

    @property
    def channel_stride(self) -> int:
        """Elements from a channel of a pixel to the next channel."""
        return self.rows if self.lhs_is_transposed else 1

    def pixels(self, rows: int, columns: int) -> tuple[tuple[int, int], ...]:
        """(offset in the image, offset in the result) of each pixel of a register tile with so many rows and columns."""
        down, right = (a * b for a, b in zip(self.stride, self.pixel_strides, strict=True))
        return tuple(
            (row * down + column * right, (row * self.columns + column) * self.filters)
            for row in range(rows)
            for column in range(columns)
        )

    # -- prefetching the filters of the next block, and the pixels of the next tile ----------------

    @property
    def is_prefetched(self) -> bool:
        """A single block has no next one, unless another slice follows."""
        has_next = self.distribution[1] > self.block and not (self.prefetches_rows and self.all_taps > 1)
        return has_next or self.reads_in_place

    @property
    def prefetches_rows(self) -> bool:
        """Whether the filters of a block are not side by side, as if they are packed or transposed, but those of each term."""
        return not (self.packed or self.rhs_is_transposed)

    @property
    def to_next_slice(self) -> int:
        """Elements from behind the filters of a workgroup to the first filter of the next slice, with filters read in place."""
        return self.slice * self.filters - self.distribution[1]

    @property
    def prefetched(self) -> int:
        """Elements that a tile prefetches for each term, so that all tiles together cover the next block."""
        whole_lines = -(-self.block // self.line) * self.line
        return -(-(whole_lines if self.prefetches_rows else self.block) // self.tiles)

    def prefetched_line(self, line: int, term: str) -> str:
        """The place of a line that a tile prefetches with `term`: `next` is the place of the tile's part of the next block.

        If rows are prefetched, `next` is that of the block in each row, and `tile` the tile's number.
        """
        if not self.prefetches_rows:
            return f"next + ({term}) * {self.prefetched} + {line * self.line}"
        number, lines = f"(tile * {self.prefetched_lines} + {line})", -(-self.block // self.line)
        return f"next + ({term} + {number} floordiv {lines}) * {self.filters} + {number} mod {lines} * {self.line}"

    @property
    def line(self) -> int:
        """Elements of a cache line."""
        return LINE // self.element_bytes

    @property
    def prefetched_lines(self) -> int:
        """Cache lines that an iteration prefetches."""
        return -(-self.unroll * self.prefetched // self.line)

    @property
    def prefetches_pixels(self) -> bool:
        """Whether no tile reads the pixels of another, so that each tile has to wait for its own; products and one tap."""
        return self.all_taps == 1 and not self.is_depthwise

    @property
    def to_next_tile(self) -> int:
        """Elements of the image from a register tile to the next one: in the same row, or in a column of pixels below it."""
        down, right = self.pixel_strides
        step = (0, down) if self.columns == 1 else (1, right)
        return self.registers[step[0]] * self.stride[step[0]] * step[1]

    def prefetching_pixels(self, active: Sequence[int], channel: int) -> list[int]:
        """The `active` pixels of a register tile that prefetch with a channel of an iteration, `to_prefetched` elements ahead.

        If the rows of a term are side by side, each term of a tile is in one cache line, or in two.
        """
        if self.lhs_is_transposed:
            return sorted({active[0], active[-1]})
        return list(active) if self.prefetches_pixels and channel == 0 else []

    @property
    def to_prefetched(self) -> int:
        """Elements from a pixel to the pixel that is prefetched with it, of the next tile or of a later term."""
        return _TERMS_AHEAD * self.channel_stride if self.lhs_is_transposed else self.to_next_tile

    # -- validity -----------------------------------------------------------------------------

    def invalid_reason(self) -> str | None:
        """Why these tiles do not cover the operation, with the values; None if they do."""
        rows, filters = self.distribution
        if self.block % self.lanes:
            return f"{self.block} filters of a register tile are not a multiple of {self.lanes}"
        for what, part, whole in (
            (f"{self.block} filters of a register tile", self.block, filters),
            (f"{filters} filters of a workgroup", filters, self.padded_filters),
            (f"{self.unroll} channels of an iteration", self.unroll, self.channels),
        ):
            if whole % part:
                return f"{what} do not divide {whole}"
        if self.registers[0] > rows:
            return f"a register tile has {self.registers[0]} rows, but a workgroup has {rows}"
        if self.registers[1] > self.columns:
            return f"a register tile has {self.registers[1]} pixels of a row, but a row has {self.columns}"
        if rows > self.rows:
            return f"a workgroup has {rows} rows, but the result has {self.rows}"
        panels = self.buffers[3] * 4 / 2**20
        if panels > _MAX_PANELS:
            workgroups = math.prod(self.workgroups)
            return f"panels of {workgroups} workgroups take {panels:.0f} MiB, but at most {_MAX_PANELS} are allowed"
        if self.has_border_rows and self.registers[0] > 1 and self.is_depthwise:
            return f"a register tile has {self.registers[0]} rows, but those of a padded depthwise convolution have one"
        if self.has_border_rows and self.registers[0] > 1 and not self.has_all_rows:
            return (
                f"a register tile has {self.registers[0]} rows, but a workgroup has {rows} of {self.rows} padded rows: "
                "then it may have only one"
            )
        return None

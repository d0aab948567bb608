"""The loops, addresses and shuffles of a microkernel, which its template writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from dispatch_profiler.configurations.splits import SLICE, longest_sum
from dispatch_profiler.operations import ConvolutionGeometry, Operation, element_type

#: Elements of a vector register of AVX-512.
LANES = 16
#: MiB of the panels of all workgroups: each workgroup has its own panel.
_MAX_PANELS = 256
#: Channels of a slice, at least.
_SHORTEST_SLICE = 64


@dataclass(frozen=True)
class Shuffle:
    """`result = shuffle(first, second)`: row numbers before and after one step of a transposition."""

    result: int
    first: int
    second: int
    lanes: tuple[int, ...]


def transposition() -> tuple[tuple[Shuffle, ...], ...]:
    """Steps that transpose 16 vectors of 16 elements: each exchanges the blocks beside the diagonal.

    J. O. Eklundh, "A Fast Computer Method for Matrix Transposing", IEEE Transactions on Computers C-21(7), 1972.
    """
    return tuple(tuple(_exchange(distance)) for distance in (8, 4, 2, 1))


def _exchange(distance: int) -> Iterator[Shuffle]:
    lanes = range(LANES)
    for low in (row for row in lanes if not row & distance):
        high = low | distance
        yield Shuffle(low, low, high, tuple(LANES + (x ^ distance) if x & distance else x for x in lanes))
        yield Shuffle(high, low, high, tuple(LANES + x if x & distance else x | distance for x in lanes))


@dataclass(frozen=True)
class MicrokernelPlan:
    """A convolution of nhwc images (a product: of one image with one pixel per row), and its tiles.

    rows, columns      pixels of a result
    channels, filters  of each pixel; `taps`, `stride`, `dilation` have a value for each spatial axis
    low                padding before the first row and pixel
    rhs_is_transposed  whether the channels of a filter are side by side (fhwc), not the filters of a channel (hwcf)
    packed             whether the filters are stored as panels, so that the kernel copies none
    """

    images: int
    rows: int
    columns: int
    channels: int
    filters: int
    size: tuple[int, int]
    taps: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    low: tuple[int, int]
    rhs_is_transposed: bool
    distribution: tuple[int, int]
    registers: tuple[int, int, int]
    unroll: int
    margin: int
    packed: bool

    # -- extents ------------------------------------------------------------------------------

    @property
    def image(self) -> tuple[int, int, int]:
        """Rows, columns and channels of the images that the kernel reads, with the margin."""
        return (*self.size, self.channels + self.margin)

    @property
    def is_sliced(self) -> bool:
        """Whether the channels of each tap are added up in slices, each from zero.

        Between slices, the sums of a register tile are in memory, so short slices would take too long.
        """
        return self.terms > longest_sum(element_type("f32")) and self.channels >= _SHORTEST_SLICE

    @property
    def slice(self) -> int:
        """Channels that are added one after another; the sums of several slices are then added up."""
        return self.channels if self.channels <= longest_sum(element_type("f32")) else SLICE

    @property
    def longest_chain(self) -> int:
        """The most additions that a product goes through."""
        slices = math.prod(self.taps) * -(-self.channels // self.slice)
        return self.slice + slices if self.is_sliced else self.terms

    @property
    def terms(self) -> int:
        """Products that are summed for an element of the result."""
        return math.prod(self.taps) * self.channels

    @property
    def block(self) -> int:
        """Filters that are computed together."""
        return self.registers[2]

    @property
    def vectors(self) -> int:
        return self.block // LANES

    @property
    def workgroups(self) -> tuple[int, int, int]:
        """Blocks of filters, blocks of rows, images."""
        return self.filters // self.distribution[1], self.rows // self.distribution[0], self.images

    @property
    def panel(self) -> int:
        """Elements of a panel: the filters of a block, in the order in which they are multiplied."""
        return self.terms * self.block

    @property
    def buffers(self) -> tuple[int, int, int, int]:
        """Elements of the images with their margin, of all filters, of the result, and of the copies in all workgroups."""
        return (
            self.images * math.prod(self.image),
            self.filters * self.terms,
            self.images * self.rows * self.columns * self.filters,
            0 if self.packed else self.panel * math.prod(self.workgroups),
        )

    @property
    def tiles(self) -> int:
        """Register tiles of a workgroup for one block of filters."""
        return -(-self.distribution[0] // self.registers[0]) * (self.columns // self.registers[1])

    @property
    def transposition(self) -> tuple[tuple[Shuffle, ...], ...]:
        return transposition()

    def pixels_of(self, rows: Iterable[int], columns: Iterable[int]) -> list[int]:
        """Numbers of the pixels in `rows` and `columns` of a register tile."""
        columns = list(columns)
        return [row * self.registers[1] + column for row in rows for column in columns]

    def sums_of(self, pixels: Iterable[int]) -> list[int]:
        """Numbers of the sums of these pixels: one per vector."""
        return [pixel * self.vectors + vector for pixel in pixels for vector in range(self.vectors)]

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
        """Of a workgroup. If it has part of the rows, the kernel finds the taps of each row as it runs."""
        rows, width = self.distribution[0], self.registers[0]
        if rows == self.rows:
            return self.windows[0].runs(rows, width)
        full = rows // width * width
        runs = (TileRun(0, full, width, None), TileRun(full, rows, rows - full, None))
        return tuple(run for run in runs if run.stop > run.start)

    @property
    def has_border_rows(self) -> bool:
        """Whether a tap of some row reads the padding."""
        return not self.windows[0].are_inside(self.rows)

    # -- addresses ----------------------------------------------------------------------------

    @property
    def pixel_strides(self) -> tuple[int, int]:
        """Elements from a row, and from a pixel, of an image to the next."""
        _, columns, channels = self.image
        return columns * channels, channels

    def pixels(self, rows: int) -> tuple[tuple[int, int], ...]:
        """(offset in the image, offset in the result) of each pixel of a register tile with so many rows."""
        down, right = (a * b for a, b in zip(self.stride, self.pixel_strides, strict=True))
        return tuple(
            (row * down + column * right, (row * self.columns + column) * self.filters)
            for row in range(rows)
            for column in range(self.registers[1])
        )

    # -- prefetching the filters of the next block ------------------------------------------------

    @property
    def is_prefetched(self) -> bool:
        """The filters of a block are side by side if they are packed or transposed; a single block has no next one."""
        return (self.packed or self.rhs_is_transposed) and self.distribution[1] > self.block

    @property
    def prefetched(self) -> int:
        """Elements that a tile prefetches for each term, so that all tiles together cover the next block."""
        return -(-self.block // self.tiles)

    @property
    def prefetched_lines(self) -> int:
        """Cache lines, of 16 elements, that an iteration prefetches."""
        return -(-self.unroll * self.prefetched // LANES)

    # -- validity -----------------------------------------------------------------------------

    def invalid_reason(self) -> str | None:
        """Why these tiles do not cover the operation, with the values; None if they do."""
        rows, filters = self.distribution
        for what, part, whole in (
            (f"{rows} rows of a workgroup", rows, self.rows),
            (f"{filters} filters of a workgroup", filters, self.filters),
            (f"{self.registers[1]} pixels of a register tile", self.registers[1], self.columns),
            (f"{self.block} filters of a register tile", self.block, filters),
            (f"{self.unroll} channels of an iteration", self.unroll, self.channels),
        ):
            if whole % part:
                return f"{what} do not divide {whole}"
        if self.block % LANES:
            return f"{self.block} filters of a register tile are not a multiple of {LANES}"
        if self.registers[0] > rows:
            return f"a register tile has {self.registers[0]} rows, but a workgroup has {rows}"
        panels = self.buffers[3] * 4 / 2**20
        if panels > _MAX_PANELS:
            workgroups = math.prod(self.workgroups)
            return f"panels of {workgroups} workgroups take {panels:.0f} MiB, but at most {_MAX_PANELS} are allowed"
        if self.has_border_rows and rows < self.rows and self.registers[0] > 1:
            return (
                f"a register tile has {self.registers[0]} rows, but a workgroup has {rows} of {self.rows} padded rows: "
                "then it may have only one"
            )
        return None


def microkernel_plan(
    operation: Operation,
    distribution: tuple[int, int],
    registers: tuple[int, int, int],
    unroll: int,
    margin: int,
    packed: bool,
) -> MicrokernelPlan:
    """The plan for an operation that has no `shape_reason`."""
    plan = partial(
        MicrokernelPlan,
        distribution=distribution,
        registers=registers,
        unroll=unroll,
        margin=margin,
        packed=packed,
    )
    product, convolution = operation.product, operation.convolution
    if product is not None:
        return plan(
            images=1,
            rows=product.m,
            columns=1,
            channels=product.k,
            filters=product.n,
            size=(product.m, 1),
            taps=(1, 1),
            stride=(1, 1),
            dilation=(1, 1),
            low=(0, 0),
            rhs_is_transposed=product.rhs_layout == "n",
        )
    assert convolution is not None
    return plan(
        images=convolution.batch,
        rows=convolution.output_size[0],
        columns=convolution.output_size[1],
        channels=convolution.channels,
        filters=convolution.filters,
        size=_two(convolution.size),
        taps=_two(convolution.filter_size),
        stride=_two(convolution.stride),
        dilation=_two(convolution.dilation),
        low=_two(convolution.padding),
        rhs_is_transposed=convolution.filter_layout == "fhwc",
    )


def _two(values: tuple[int, ...]) -> tuple[int, int]:
    first, second = values
    return first, second


def shape_reason(operation: Operation, packed: bool) -> str | None:
    """Why no microkernel computes `operation`, with filters that are `packed` or not, whatever its tiles; None if one may."""
    contraction, product, convolution = operation.contraction, operation.product, operation.convolution
    if contraction is None:
        return f"microkernels are for matmul and conv2d, not for {operation.kind}"
    inputs, sums = contraction.types.input.name, contraction.types.accumulator.name
    if {inputs, sums} != {"f32"}:
        return f"microkernels are for f32 with f32 sums, not for {inputs} with {sums}"
    if convolution is not None:
        return _convolution_reason(operation.kind, convolution, packed)
    if product is None or product.is_batched:
        return f"microkernels are for matmul and conv2d, not for {operation.kind}"
    if product.lhs_layout != "t":
        return f"microkernels are for matmul with lhs in layout t, not {product.lhs_layout}"
    if product.n % LANES:
        return f"microkernels need columns in multiples of {LANES}, but got {product.n}"
    if product.k % 2:
        return f"microkernels need an even number of terms, but got {product.k}"
    return _transposition_reason(product.k) if product.rhs_layout == "n" and not packed else None


def _convolution_reason(kind: str, convolution: ConvolutionGeometry, packed: bool) -> str | None:
    if convolution.spatial_rank != 2:
        return f"microkernels are for matmul and conv2d, not for {kind}"
    if convolution.mode != "forward":
        return f"microkernels are for forward conv2d, not for {convolution.mode}"
    if convolution.groups != 1:
        return f"microkernels are for conv2d without groups, but got {convolution.groups}"
    layouts = (convolution.input_layout, convolution.filter_layout, convolution.output_layout)
    if layouts not in (("nhwc", "fhwc", "nhwc"), ("nhwc", "hwcf", "nhwc")):
        return f"microkernels are for nhwc_fhwc_nhwc and nhwc_hwcf_nhwc, not for {'_'.join(layouts)}"
    if convolution.filters % LANES:
        return f"microkernels need filters in multiples of {LANES}, but got {convolution.filters}"
    if convolution.channels % 2:
        return f"microkernels need an even number of channels, but got {convolution.channels}"
    if packed or convolution.filter_layout == "hwcf":
        return None
    return _transposition_reason(math.prod(convolution.filter_size) * convolution.channels)


def _transposition_reason(terms: int) -> str | None:
    if terms % LANES:
        return f"microkernels that transpose filters need terms in multiples of {LANES}, but got {terms}"
    return None


# -- microkernel runs ------------------------------------------------------------------------------

# Register tiles side by side whose pixels need the same care at the borders of an image.


@dataclass(frozen=True)
class TileRun:
    """Tiles of `width` pixels at `start`, `start + width`, ... before `stop`, along one axis of the result.

    `inside` has, for each tap, the pixels of a tile for which it reads the image; for others it reads the padding,
    which adds nothing. None if unknown, because the kernel determines the taps of a row at run time.
    """

    start: int
    stop: int
    width: int
    inside: tuple[tuple[int, ...], ...] | None

    @property
    def is_whole(self) -> bool:
        """Whether every tap is known to read the image for every pixel."""
        return self.inside is None or all(len(pixels) == self.width for pixels in self.inside)

    def inside_at(self, tap: int) -> tuple[int, ...]:
        """The pixels of a tile for which the tap reads the image."""
        return tuple(range(self.width)) if self.inside is None else self.inside[tap]


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution along one axis: pixel `p` reads `p * stride + tap * dilation - low`, if below `size`."""

    size: int
    taps: int
    stride: int
    dilation: int
    low: int

    def is_inside(self, pixel: int, tap: int) -> bool:
        return 0 <= pixel * self.stride + tap * self.dilation - self.low < self.size

    def are_inside(self, extent: int) -> bool:
        """Whether every tap of `extent` pixels reads the image: the first and the last pixel reach farthest."""
        return self.is_inside(0, 0) and self.is_inside(extent - 1, self.taps - 1)

    def runs(self, extent: int, width: int) -> tuple[TileRun, ...]:
        """Runs that cover `extent` pixels in tiles of `width`; the remainder is a run of one narrower tile."""
        return tuple(self._runs(extent, width))

    def _runs(self, extent: int, width: int) -> Iterator[TileRun]:
        def care(start: int) -> tuple[tuple[tuple[int, ...], ...], int]:
            pixels = min(width, extent - start)
            return tuple(self._inside(start, pixels, tap) for tap in range(self.taps)), pixels

        for (inside, pixels), run in groupby(range(0, extent, width), care):
            starts = list(run)
            yield TileRun(starts[0], starts[-1] + pixels, pixels, inside)

    def _inside(self, start: int, pixels: int, tap: int) -> tuple[int, ...]:
        return tuple(pixel for pixel in range(pixels) if self.is_inside(start + pixel, tap))

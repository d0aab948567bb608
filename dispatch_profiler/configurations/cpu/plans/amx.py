"""The loops and addresses of a kernel for AMX, which its template writes.

AMX has eight registers of 16 rows of 64 bytes, called tiles. One instruction multiplies a tile of pixels (rows of a
product) by a tile of filters (columns), and adds the products to a tile of 16 x 16 sums. Source: Intel 64 and IA-32
Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.plans.fours import EXACT_TERMS
from dispatch_profiler.operations import ConvolutionGeometry, Operation

#: Rows of a tile, and sums of 4 bytes in each of them.
SIDE = 16
#: Bytes of a row of a tile, and tiles of the processor.
_ROW_BYTES, _TILES = 64, 8
#: Type of the factors -> instruction of LLVM, and the type of its sums.
INSTRUCTIONS = {"bf16": ("llvm.x86.tdpbf16ps", "f32"), "i8": ("llvm.x86.tdpbssd", "i32")}
#: Bytes of each tile row that the terms of an instruction fill, at least.
_FEWEST_BYTES = 16


@dataclass(frozen=True)
class LineAxis:
    """Lines along one axis: elements between their first pixels, and pixels between their first results."""

    count: int
    stride: int
    results: int


@dataclass(frozen=True)
class Lines:
    """Pixels that are `stride` elements apart in memory form a line; a tile has up to 16 pixels of one line.

    A row of an image is a line. Where neighbouring rows follow each other, all rows of an image are one line, which
    includes the pixels between the last one of a row and the first one of the next: of each `row` pixels, the first
    `kept` have results.
    """

    axes: tuple[LineAxis, ...]
    pixels: int
    stride: int
    row: int
    kept: int

    @property
    def count(self) -> int:
        return math.prod(axis.count for axis in self.axes)

    @property
    def rows(self) -> int:
        """Pixels of a tile: 16, unless lines are shorter."""
        return min(SIDE, self.pixels)

    @property
    def tiles(self) -> int:
        """Tiles that cover a line. The last one begins early enough to end with the line."""
        return -(-self.pixels // self.rows)

    @property
    def all_tiles(self) -> int:
        return self.count * self.tiles

    @property
    def has_gaps(self) -> bool:
        """Whether some pixels have no result."""
        return self.kept < self.row

    @property
    def results(self) -> int:
        """Pixels of the result."""
        return self.count * -(-self.pixels // self.row) * self.kept


@dataclass(frozen=True)
class TapAxis:
    """Taps along one axis, and the elements between their pixels."""

    count: int
    stride: int


@dataclass(frozen=True)
class AmxPlan:
    """A forward convolution of channels-last images, or a product, whose rows are pixels, in tiles.

    padding    pixels that a copy of the images adds (low, high) along each spatial axis; empty without such a copy
    taps       of the filters, along each axis that has several; `terms` neighbouring elements are multiplied for each
    step       terms of an instruction; it divides `terms`
    filters    results of a pixel
    """

    lines: Lines
    padding: tuple[tuple[int, int], ...]
    taps: tuple[TapAxis, ...]
    terms: int
    step: int
    filters: int
    type: str
    distribution: tuple[int, int]
    registers: tuple[int, int]

    # -- tiles --------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Of a factor."""
        return _bytes(self.type)

    @property
    def group(self) -> int:
        """Terms of a filter that are side by side in its tile: 4 bytes."""
        return 4 // self.bytes

    @property
    def instruction(self) -> str:
        return INSTRUCTIONS[self.type][0]

    @property
    def accumulator(self) -> str:
        return INSTRUCTIONS[self.type][1]

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of pixels, and of filters, of a register block."""
        return self.registers[0] // SIDE, self.registers[1] // SIDE

    @property
    def blocks(self) -> int:
        """Register blocks along the filters; the last one may be partly empty."""
        return -(-self.filters // self.registers[1])

    @property
    def tiles_of_workgroup(self) -> int:
        """Tiles of pixels."""
        return self.distribution[0] // SIDE

    @property
    def blocks_of_workgroup(self) -> int:
        return self.distribution[1] // self.registers[1]

    @property
    def workgroups(self) -> tuple[int, int]:
        """Along the filters and the pixels; the last one of each may have fewer."""
        return -(-self.blocks // self.blocks_of_workgroup), -(
            -self.lines.all_tiles // self.tiles_of_workgroup
        )

    @property
    def is_masked(self) -> bool:
        """Whether some vector of 16 results has fewer filters."""
        return self.filters % SIDE != 0

    @property
    def shapes(self) -> tuple[int, ...]:
        """The 64 bytes that tell the processor the shape of each tile: of the sums, the pixels, and the filters."""
        down, right = self.tiles
        width = [_ROW_BYTES] * (down * right) + [self.step * self.bytes] * down + [_ROW_BYTES] * right
        height = [self.lines.rows] * (down * right + down) + [self.step // self.group] * right
        values = [1] + [0] * 63  # Palette 1 is the only one.
        for tile, (row, rows) in enumerate(zip(width, height, strict=True)):
            values[16 + 2 * tile], values[48 + tile] = row, rows
        return tuple(values)

    # -- filters ------------------------------------------------------------------------------

    @property
    def instructions(self) -> int:
        """Instructions that add up a sum."""
        return math.prod(tap.count for tap in self.taps) * self.terms // self.step

    @property
    def tile_elements(self) -> int:
        """Elements of a tile of filters."""
        return self.step * SIDE

    @property
    def panel(self) -> int:
        """Elements of the packed filters of a register block."""
        return self.instructions * self.tiles[1] * self.tile_elements

    # -- validity -----------------------------------------------------------------------------

    def invalid_reason(self) -> str | None:
        """Why these tiles do not compute the operation, with the values; None if they do."""
        down, right = self.tiles
        for what, part in zip(("pixels", "filters"), self.registers, strict=True):
            if part % SIDE:
                return f"{part} {what} of a register block are not a multiple of {SIDE}"
        needed = down * right + down + right
        if needed > _TILES:
            return f"{down} x {right} tiles of sums need {needed} tiles, but AMX has {_TILES}"
        for what, whole, part in zip(("pixels", "filters"), self.distribution, self.registers, strict=True):
            if whole % part:
                return f"{part} {what} of a register block do not divide {whole} of a workgroup"
        if down > self.lines.all_tiles:
            return (
                f"a register block has {down} tiles of pixels, but the operation has {self.lines.all_tiles}"
            )
        return None


def amx_plan(operation: Operation, distribution: tuple[int, int], registers: tuple[int, int]) -> AmxPlan:
    """The plan for an operation that has no `shape_reason`."""
    product, convolution = operation.product, operation.convolution
    type_ = operation.as_contraction().types.inputs
    if product is not None:
        lines = Lines((), product.m, product.k, product.m, product.m)
        step = _step(product.k, type_)
        return AmxPlan(lines, (), (), product.k, step, product.n, type_, distribution, registers)
    assert convolution is not None
    padding = tuple(zip(convolution.padding, convolution.padding_after, strict=True))
    taps, terms = _taps(convolution)
    return AmxPlan(
        min(_lines(convolution), key=lambda lines: lines.all_tiles * lines.rows),
        padding if any(map(any, padding)) else (),
        taps,
        terms,
        _step(terms, type_),
        convolution.filters,
        type_,
        distribution,
        registers,
    )


def _lines(convolution: ConvolutionGeometry) -> Iterator[Lines]:
    """The ways to divide the pixels into lines."""
    channels, width = convolution.channels, convolution.output_size[-1]
    sizes, strides = convolution.padded_size, convolution.stride
    steps = _steps((*sizes, channels))
    if sizes == convolution.output_size:  # Each pixel has a result: all pixels of all images are one line.
        count = convolution.batch * math.prod(sizes)
        yield Lines((), count, channels, count, count)
        return
    extents = (convolution.batch, *convolution.output_size)
    distances = (math.prod(sizes) * channels, *(a * b for a, b in zip(strides, steps, strict=True)))
    axes = tuple(map(LineAxis, extents, distances, _steps(extents)))
    yield Lines(axes, width, distances[-1], width, width)
    if convolution.spatial_rank > 1 and strides[-2:] == (1, 1):
        pixels = (extents[-2] - 1) * sizes[-1] + width
        yield Lines(axes[:-1], pixels, channels, sizes[-1], width)


def _taps(convolution: ConvolutionGeometry) -> tuple[tuple[TapAxis, ...], int]:
    """The taps, and how many neighbouring elements each multiplies."""
    steps = _steps((*convolution.padded_size, convolution.channels))
    distances = (a * b for a, b in zip(convolution.dilation, steps, strict=True))
    axes = [TapAxis(*each) for each in zip(convolution.filter_size, distances, strict=True)]
    terms = convolution.channels
    if axes[-1].stride == terms:  # Neighbouring taps multiply neighbouring elements.
        terms *= axes.pop().count
    return tuple(axis for axis in axes if axis.count > 1), terms


def _steps(extents: Sequence[int]) -> tuple[int, ...]:
    """Elements from one position along each axis but the last to the next: (5, 4, 3) -> (12, 3)."""
    return tuple(math.prod(extents[axis + 1 :]) for axis in range(len(extents) - 1))


def _step(terms: int, type_: str) -> int:
    """The most terms of an instruction that divide `terms`; 0 if they would leave most of each tile empty."""
    group, most = 4 // _bytes(type_), _ROW_BYTES // _bytes(type_)
    fitting = [each for each in range(group, most + 1, group) if terms % each == 0]
    return max((each for each in fitting if each * _bytes(type_) >= _FEWEST_BYTES), default=0)


def _bytes(type_: str) -> int:
    return {"bf16": 2, "i8": 1}[type_]


def shape_reason(operation: Operation) -> str | None:
    """Why no kernel for AMX computes `operation`, whatever its tiles; None if one may."""
    contraction, product, convolution = operation.contraction, operation.product, operation.convolution
    if contraction is None:
        return f"AMX is for matmul and convolutions, not for {operation.kind}"
    inputs, sums = contraction.types.inputs, contraction.types.accumulator.name
    is_real = (inputs, sums) == ("i8", "f32")
    if inputs not in INSTRUCTIONS or (INSTRUCTIONS[inputs][1] != sums and not is_real):
        known = " and ".join(f"{each} with {sum_} sums" for each, (_, sum_) in INSTRUCTIONS.items())
        return f"AMX is for {known}, not for {inputs} with {sums}"
    if convolution is not None:
        return _convolution_reason(convolution, inputs)
    if product is None or product.is_batched:
        return f"AMX is for matmul and convolutions, not for {operation.kind}"
    if product.lhs_layout != "t":
        return f"AMX is for matmul with lhs in layout t, not {product.lhs_layout}"
    if is_real and product.k > EXACT_TERMS:
        return f"AMX is for at most {EXACT_TERMS} terms of i8 with {contraction.types.result} results, not {product.k}"
    return _terms_reason(product.k, inputs)


def _convolution_reason(convolution: ConvolutionGeometry, type_: str) -> str | None:
    if convolution.mode != "forward":
        return f"AMX is for forward convolutions, not for {convolution.mode}"
    if convolution.groups != 1:
        return f"AMX is for convolutions without groups, but got {convolution.groups}"
    if not (convolution.input_layout == convolution.output_layout and convolution.is_channels_last):
        layouts = (convolution.input_layout, convolution.filter_layout, convolution.output_layout)
        return f"AMX is for convolutions with channels last, not for {'_'.join(layouts)}"
    return _terms_reason(_taps(convolution)[1], type_)


def _terms_reason(terms: int, type_: str) -> str | None:
    if _step(terms, type_) == 0:
        fewest = _FEWEST_BYTES // _bytes(type_)
        most, group = _ROW_BYTES // _bytes(type_), 4 // _bytes(type_)
        return f"AMX needs a multiple of {group} terms from {fewest} to {most} that divides {terms}, and there is none"
    return None

"""The loops and shuffles of a kernel that multiplies along terms, which its template writes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dispatch_profiler.configurations.cpu.plans.filter_blocks import Vector
from dispatch_profiler.configurations.cpu.plans.fours import FOURS, I8, fours_reason
from dispatch_profiler.configurations.splits import longest_sum
from dispatch_profiler.operations import ConvolutionGeometry, Operation, element_type

#: Filters of a register tile: their sums of a row are stored as one vector.
FILTERS = (4, 8, 16)
#: Types of lhs, rhs and results. Weights of i8 have scales, which a step of the epilogue multiplies sums by.
_TYPES = frozenset(
    (lhs, rhs, result) for lhs in ("f32", "bf16", "f16") for rhs in (lhs, "i8") for result in (lhs, "f32")
)


@dataclass(frozen=True)
class Fold:
    """`result = shuffle(first, second, low) + shuffle(first, second, high)`: numbers of vectors before and after a step."""

    result: int
    first: int
    second: int
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True)
class DotPlan:
    """A product of rows with filters whose terms are side by side, and its tiles.

    rows, filters  of the result
    terms          of a row of lhs, and of a filter; of i8, four neighbouring ones count as one
    distribution   rows and filters of a workgroup
    registers      rows and filters whose sums stay in registers
    lanes          elements of a vector of terms
    types          of elements of lhs, of rhs, and of the result. Unless lhs and rhs are i8, all are f32 in registers
    """

    rows: int
    filters: int
    terms: int
    distribution: tuple[int, int]
    registers: tuple[int, int]
    lanes: int
    types: tuple[str, str, str] = ("f32", "f32", "f32")

    @property
    def workgroups(self) -> tuple[int, int]:
        """Shares of the filters, and parts of the rows; the last ones may be smaller."""
        rows, filters = self.distribution
        return -(-self.filters // filters), -(-self.rows // rows)

    @property
    def row_tiles(self) -> int:
        """Register tiles of a workgroup for the same filters."""
        return -(-min(self.distribution[0], self.rows) // self.registers[0])

    @property
    def is_i8(self) -> bool:
        """Whether i8 is multiplied by i8, in fours."""
        return self.types[:2] == I8

    @property
    def sums(self) -> str:
        """The type of the sums."""
        return "i32" if self.is_i8 else "f32"

    @property
    def computed(self) -> str:
        """The type in which steps compute."""
        return "f32" if self.types[2] != "i32" else self.sums

    @property
    def row_bytes(self) -> int:
        """Of a row of lhs."""
        return self.terms * self._term_bytes(0)

    @property
    def filter_bytes(self) -> int:
        """Of a filter."""
        return self.terms * self._term_bytes(1)

    def _term_bytes(self, operand: int) -> int:
        return FOURS if self.is_i8 else element_type(self.types[operand]).bytes

    # -- terms --------------------------------------------------------------------------------

    @property
    def whole_terms(self) -> int:
        """Terms that fill vectors."""
        return self.terms // self.lanes * self.lanes

    @property
    def left(self) -> int:
        """Terms that are left for a vector with a mask."""
        return self.terms - self.whole_terms

    @property
    def prefetched(self) -> int:
        """Of the filters of the next register tile, those that each row tile prefetches, so that together they prefetch all."""
        return -(-self.registers[1] // self.row_tiles)

    @property
    def longest_chain(self) -> int:
        """The most additions that a product goes through: in its lane, and of all lanes."""
        return -(-self.terms // self.lanes) + self.lanes.bit_length() - 1

    @property
    def terms_of(self) -> Vector:
        """A vector of terms, and of the sums of their products."""
        return Vector(self.lanes, self.sums)

    @property
    def vectors_of_sums(self) -> int:
        """Of a register tile: of the products of each row and filter, and of i8, of the elements of each row."""
        rows, filters = self.registers
        return rows * filters + (rows if self.is_i8 else 0)

    @property
    def sums_of(self) -> Vector:
        """A vector of the sums of a row, as steps have it: one for each filter of a register tile."""
        return Vector(self.registers[1], self.computed)

    @property
    def results_of(self) -> Vector:
        """The same, as it is stored."""
        return Vector(self.registers[1], self.types[2])

    @property
    def folds(self) -> tuple[tuple[Fold, ...], ...]:
        """The steps after which one vector has the sums of the filters of a row in order."""
        return folds(self.lanes, self.registers[1])

    def invalid_reason(self) -> str | None:
        """Why these tiles do not cover the operation, with the values; None if they do."""
        for what, part, tile, whole in zip(
            ("rows", "filters"), self.distribution, self.registers, (self.rows, self.filters), strict=True
        ):
            if tile > whole:
                return f"a register tile has {tile} {what}, but there are {whole}"
            if part < tile:
                return f"a register tile has {tile} {what}, but a workgroup has {part}"
            if part - tile >= whole:
                return f"a workgroup has {part} {what}, but there are {whole}"
            if part % tile:
                return f"{tile} {what} of a register tile do not divide {part} of a workgroup"
        chain, most = self.longest_chain, longest_sum(element_type("f32"))
        if chain > most and not self.is_i8:
            return (
                f"{self.terms} terms take {chain} additions one after another, but at most {most} are allowed"
            )
        return None


def folds(lanes: int, count: int) -> tuple[tuple[Fold, ...], ...]:
    """The steps that add up the lanes of each of `count` vectors, both powers of two: they leave one vector of `count` sums.

    Each of the first steps halves the vectors. Lane `i` of those that are left has a part of the sum with the number
    `i` modulo the vectors in one. The last steps halve the lanes.
    """
    steps, together, left = list[tuple[Fold, ...]](), 1, count
    while left > 1:
        left //= 2
        low, high = _interleaved(lanes, together)
        steps.append(tuple(Fold(n, 2 * n, 2 * n + 1, low, high) for n in range(left)))
        together *= 2
    while lanes > count:
        lanes //= 2
        steps.append((Fold(0, 0, 0, tuple(range(lanes)), tuple(range(lanes, 2 * lanes))),))
    return tuple(steps)


def _interleaved(lanes: int, together: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lanes of two vectors that are added: groups of `together` lanes, in turn from the first and the second vector.

    Groups are taken from the same 16 bytes where possible, which takes one instruction.
    """
    within = max(4 // together, 2)
    low, high = list[int](), list[int]()
    for start in range(0, lanes // together, within):
        half = within // 2
        for group in range(start, start + half):
            for vector in range(2):
                first = vector * lanes + group * together
                low.extend(range(first, first + together))
                high.extend(range(first + half * together, first + (half + 1) * together))
    return tuple(low), tuple(high)


def dot_plan(
    operation: Operation, distribution: tuple[int, int], registers: tuple[int, int], lanes: int
) -> DotPlan:
    """The plan for an operation that has no `shape_reason`."""
    product, convolution = operation.product, operation.convolution
    of = operation.as_contraction().types
    types = of.lhs, of.rhs, of.result
    if product is not None:
        terms = product.k // (FOURS if types[:2] == I8 else 1)
        return DotPlan(product.m, product.n, terms, distribution, registers, lanes, types)
    assert convolution is not None
    rows = convolution.batch * math.prod(convolution.output_size)
    return DotPlan(rows, convolution.filters, convolution.channels, distribution, registers, lanes, types)


def shape_reason(operation: Operation) -> str | None:
    """Why the kernel does not compute `operation`, whatever its tiles; None if it may."""
    contraction, product, convolution = operation.contraction, operation.product, operation.convolution
    what = "dot microkernels are for"
    if contraction is None or (product is not None and product.is_batched):
        return f"{what} matmul and convolutions with one tap, not for {operation.kind}"
    types = contraction.types
    known = types.lhs, types.rhs, types.result
    if known[:2] == I8:
        reason = fours_reason(operation)
        if reason:
            return f"of i8, {what} {reason}"
    elif types.accumulator.name != "f32" or known not in _TYPES:
        return (
            f"{what} f32, bf16, f16, i8 and weights of i8, not for {types.inputs} with {types.accumulator.name}"
            f" and {types.result} results"
        )
    if convolution is not None:
        return _convolution_reason(convolution, what)
    assert product is not None
    if (product.lhs_layout, product.rhs_layout) != ("t", "n"):
        return (
            f"{what} lhs in layout t and rhs in layout n, not {product.lhs_layout} and {product.rhs_layout}"
        )
    return None


def _convolution_reason(convolution: ConvolutionGeometry, what: str) -> str | None:
    axes = convolution.spatial_letters
    layouts = (convolution.input_layout, convolution.filter_layout, convolution.output_layout)
    if convolution.mode != "forward" or convolution.groups != 1:
        return f"{what} forward convolutions without groups"
    if layouts[0] != layouts[2] or not convolution.is_channels_last or layouts[1][0] != "f":
        return f"{what} channels last, and filters in f{axes}c or fc{axes}, not for {'_'.join(layouts)}"
    if math.prod(convolution.filter_size) > 1 or convolution.size != convolution.output_size:
        return f"{what} convolutions with one tap, without stride and padding"
    return None

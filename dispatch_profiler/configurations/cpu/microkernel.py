"""A vector kernel that the generator writes instruction by instruction, for products and convolutions on CPUs.

The compiler's own tiles read filters in their stored layout, or copy all of them first. This kernel copies a
block of filters at a time into the order in which they are multiplied, keeps it in the cache, and prefetches
the next block meanwhile. Filters that are constants can be put into this order once, when they are loaded. Where few
register tiles would read the copy, filters of a term that are side by side are multiplied in place.
Source of the algorithm: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS
34(3), 2008.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    WrittenKernel,
    backend_invalid_reason,
    by,
    check_flag,
    convert_tiles,
)
from dispatch_profiler.configurations.cpu.plans.fours import fours_reason, i8_reason
from dispatch_profiler.configurations.cpu.plans.microkernel import AVX2_LANES, LANES, MicrokernelPlan
from dispatch_profiler.configurations.cpu.plans.tiling import microkernel_plan
from dispatch_profiler.configurations.forms.builder import Step
from dispatch_profiler.configurations.forms.packing import pack_into_panels
from dispatch_profiler.configurations.lowering import Lowering
from dispatch_profiler.configurations.space import Axis, Space, divisors, tile_axes
from dispatch_profiler.configurations.splits import SlicedSums
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import ConvolutionGeometry, ErrorBound, Operation

#: Channels that are computed by one iteration of the innermost loop.
_UNROLL = (1, 2, 3, 4, 8)
#: Channels that are enough with several taps, if an iteration multiplies this many vectors.
_USUAL_UNROLL, _ENOUGH_PRODUCTS = 4, 64
#: Elements; 16 are a cache line.
_MARGINS = (0, 16)
#: Types of both operands.
_TYPES = ("f32", "bf16", "i8")
#: Filters of a group. Fewer would leave most lanes of a vector empty.
_FEWEST_FILTERS = 4


@dataclass(frozen=True)
class Microkernel(WrittenKernel):
    """Tiles in elements: `Microkernel((14, 64), (1, 14, 32))` for conv2d, `Microkernel((64, 64), (14, 1, 32))` for matmul.

    distribution  rows of the result and filters that a workgroup computes; of a product, its rows and columns
    registers     rows, pixels of a row, and filters whose sums stay in registers. A row of a product is one pixel
    unroll        channels of an iteration of the innermost loop
    margin        elements that are added to the channels of each pixel: without them, pixels whose channels are a
                  multiple of 4 KiB evict each other from the cache
    packed        the filters are packed into panels, one for each block, at load time: they must be constants
    lanes         elements of a vector: 16, or 8 for CPUs without AVX-512
    pairs         bf16 is multiplied in pairs of channels, by an instruction of AVX-512-BF16; otherwise it is converted to
                  f32

    bf16 and i8 must be packed. i8 is multiplied in fours, by an instruction of AVX-512-VNNI or AVX-VNNI.
    """

    kind: ClassVar[str] = "microkernel"
    yaml_key: ClassVar[str] = "microkernel"
    yaml_field: ClassVar[str] = "registers"
    template: ClassVar[str] = "microkernel.mlir.j2"
    kernel_suffix: ClassVar[str] = "_microkernel"

    distribution: tuple[int, int]
    registers: tuple[int, int, int]
    unroll: int = 4
    margin: int = 0
    packed: bool = False
    lanes: int = LANES
    pairs: bool = False
    rounds: bool = False

    def __post_init__(self) -> None:
        convert_tiles(self, "a microkernel", distribution=2, registers=3)
        for field, known in (("unroll", _UNROLL), ("margin", _MARGINS), ("lanes", tuple(_REGISTERS))):
            if type(getattr(self, field)) is not int or getattr(self, field) not in known:
                raise ConfigurationError(
                    f"{field} must be one of {', '.join(map(str, known))}, but got {getattr(self, field)!r}"
                )
        check_flag("packed", self.packed)
        check_flag("pairs", self.pairs)
        check_flag("rounds", self.rounds)

    @property
    def name(self) -> str:
        """`tile_config_[packed_]microkernel_14x64_1x14x32_u4[_margin16][_lanes8][_pairs][_rounds]`"""
        label = "packed_microkernel" if self.packed else "microkernel"
        margin = f"_margin{self.margin}" if self.margin else ""
        lanes = f"_lanes{self.lanes}" if self.lanes != LANES else ""
        pairs = "_pairs" if self.pairs else ""
        rounds = "_rounds" if self.rounds else ""
        tiles = f"{by(self.distribution)}_{by(self.registers)}"
        return f"tile_config_{label}_{tiles}_u{self.unroll}{margin}{lanes}{pairs}{rounds}"

    def plan(self, operation: Operation) -> MicrokernelPlan:
        """The loops and addresses that the template writes."""
        return microkernel_plan(operation, self)

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        plan = self.plan(operation)
        return SlicedSums(plan.longest_chain) if plan.is_sliced else None

    # -- packing ------------------------------------------------------------------------------

    @property
    def packs_weight(self) -> bool:
        return self.packed

    def with_packed_weight(self, operation: Operation) -> Microkernel | None:
        if self.packed or shape_reason(operation, packed=True) or self._stored_reason(operation):
            return None
        return replace(self, packed=True)

    def packing(self, operation: Operation) -> tuple[Step, ...]:
        if not self.packed:
            return ()
        plan = self.plan(operation)
        return pack_into_panels(
            operation, plan.block, plan.last_block, together=plan.together, unsigned=plan.type == "i8"
        )

    # -- rules --------------------------------------------------------------------------------

    def tiling(self, operation: Operation) -> Lowering:
        """Its workgroup and register tiles as compiler tiles, so that models of compiler tiles apply."""
        rows, filters = self.distribution
        high, wide, block = self.registers
        tiles = (
            {"m": (rows, high, 0), "n": (filters, block, 0), "k": (0, 0, self.unroll)}
            if operation.convolution is None
            else {
                "n": (1, 1, 0), "od": (1, 1, 0), "oh": (rows, high, 0), "ow": (0, wide, 0),
                "g": (1, 1, 0), "oc": (filters, block, 0), "ic": (0, 0, self.unroll),
            }
        )  # fmt: skip
        each = (tiles.get(loop.name, (0, 0, 1)) for loop in operation.loops)
        names = ("distribution", "vector_common_parallel", "vector_reduction")
        levels = tuple(zip(names, zip(*each, strict=True), strict=True))
        return Lowering("iree_cpu", "Default", operation.loops, levels)

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        foreign = backend_invalid_reason("microkernels are", "llvm-cpu", limits)
        foreign = foreign or shape_reason(operation, self.packed)
        foreign = foreign or self._bf16_reason(operation, limits) or i8_reason(operation, limits)
        if foreign:
            return foreign
        plan = self.plan(operation)
        if self.margin and plan.lhs_is_transposed:
            return "margin: lhs is stored transposed, so that no pixel has its channels side by side"
        reason = plan.invalid_reason() or self._registers_reason()
        return reason or (self._stored_reason(operation) if self.packed else None)

    def _bf16_reason(self, operation: Operation, limits: Limits) -> str | None:
        type_ = operation.element_type.name
        if type_ != "f32" and self.margin:
            return f"margin: only pixels of f32 can have one, not those of {type_}"
        if self.pairs and not has_pairs(operation):
            return (
                "pairs: they are for bf16 with an even number of channels, and not for depthwise convolutions"
            )
        if self.pairs and not (limits.multiplies_bf16 and self.lanes == LANES):
            return (
                "pairs: the target has no instructions of AVX-512-BF16, or vectors of 8 elements were chosen"
            )
        if self.rounds and not rounds_results(operation, limits):
            return "rounds: it is for results in bf16, on targets with instructions of AVX-512-BF16"
        if self.rounds and self.lanes != LANES:
            return f"rounds: it is for vectors of {LANES} elements, not {self.lanes}"
        return None

    def _stored_reason(self, operation: Operation) -> str | None:
        plan = self.plan(operation)
        is_one_block = plan.last_block == plan.filters and plan.groups == 1
        is_moved = plan.rhs_is_transposed or plan.is_depthwise or plan.is_reversed or plan.together > 1
        if is_one_block and not is_moved:
            return f"packed: {plan.filters} filters are one block, which is stored as it is multiplied"
        return None

    def _registers_reason(self) -> str | None:
        return registers_reason(self.registers, registers_needed(*self.registers, self.lanes), self.lanes)

    # -- suggestions and the search space -----------------------------------------------------

    @classmethod
    def likely(
        cls, operation: Operation, limits: Limits, *, packed_weights: bool = False
    ) -> tuple[Microkernel, ...]:
        if limits.backend != "llvm-cpu" or shape_reason(operation, packed_weights):
            return ()
        lanes, features = vector_lanes(limits), bf16_features(operation, limits)
        whole = smallest_plan(operation, packed_weights, lanes, features["pairs"])
        most = _UNROLL[-1] if packed_weights else cls.unroll
        is_packed = operation.element_type.name != "f32"
        tiles = [
            cls(
                distribution,
                registers,
                usual_unroll(whole, registers, most),
                packed=is_packed,
                lanes=lanes,
                **features,
            )
            for distribution, registers in likely_tiles(whole)
        ]
        if packed_weights:
            tiles = [each.with_packed_weight(operation) or each for each in tiles]
        return tuple(each for each in tiles if each.invalid_reason(operation, limits) is None)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        return _space(cls, operation, limits, packed=False)

    @classmethod
    def packed_space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        return _space(cls, operation, limits, packed=True)


def _space(
    kind: type[Microkernel], operation: Operation, limits: Limits, *, packed: bool
) -> Space[Configuration] | None:
    """The search space; None if no microkernel computes `operation`."""
    if limits.backend != "llvm-cpu" or shape_reason(operation, packed) or i8_reason(operation, limits):
        return None
    lanes, features = vector_lanes(limits), bf16_features(operation, limits)
    smallest = smallest_plan(operation, packed, lanes, features["pairs"])
    has_margin = (
        smallest.type == "f32" and not smallest.lhs_is_transposed and smallest.image[2] * 4 % 1024 == 0
    )
    blocks = blocks_of_group(smallest)
    rows = divisors(smallest.rows, smallest.rows)
    padded = {
        block * n for block in blocks for n in divisors(padded_filters(smallest, block) // block, 2**20)
    }
    tile = {
        "rows": tuple(range(1, min(smallest.rows, 28) + 1)),
        "pixels": divisors(smallest.columns, 28),
        "filters": tuple(blocks),
    }
    return Space(
        kind,
        (
            *tile_axes("distribution", {"rows": rows, "filters": tuple(sorted(padded))}),
            *tile_axes("registers", tile),
            Axis("unroll", _searched_unrolls(smallest)),
            Axis("margin", _MARGINS if has_margin else (0,)),
            *((Axis("packed", (True,)),) if packed else ()),
            *((Axis("lanes", (lanes,)),) if lanes != LANES else ()),
            *(Axis(feature, (True,)) for feature, is_used in features.items() if is_used),
        ),
    )


def vector_lanes(limits: Limits) -> int:
    """Elements of the vectors that suit a target: those of AVX-512 unless it is known to have narrower ones."""
    return AVX2_LANES if limits.vector_bytes is not None and limits.vector_bytes < 4 * LANES else LANES


def has_pairs(operation: Operation) -> bool:
    """Whether the channels of an operation of bf16 can be multiplied in pairs."""
    product, convolution = operation.product, operation.convolution and operation.convolution.as_forward
    if operation.element_type.name != "bf16":
        return False
    if convolution is not None:
        return convolution.variant != "depthwise" and convolution.channels_per_group % 2 == 0
    return product is not None and product.k % 2 == 0


def multiplies_pairs(operation: Operation, limits: Limits) -> bool:
    """Whether the target has fast instructions for the pairs of channels that the operation has."""
    return limits.has_fast_bf16 and vector_lanes(limits) == LANES and has_pairs(operation)


def rounds_results(operation: Operation, limits: Limits) -> bool:
    """Whether the target has an instruction that rounds the results of the operation, which are bf16."""
    contraction = operation.contraction
    return limits.multiplies_bf16 and contraction is not None and contraction.types.output.name == "bf16"


def bf16_features(operation: Operation, limits: Limits) -> dict[str, bool]:
    """The fields `pairs` and `rounds` of the microkernels that suit the operation and the target."""
    rounds = vector_lanes(limits) == LANES and rounds_results(operation, limits)
    return {"pairs": multiplies_pairs(operation, limits), "rounds": rounds}


def smallest_plan(operation: Operation, packed: bool, lanes: int, pairs: bool) -> MicrokernelPlan:
    """The plan with the smallest tiles, for its extents."""
    smallest = Microkernel((1, lanes), (1, 1, lanes), 1, packed=packed, lanes=lanes, pairs=pairs)
    return smallest.plan(operation)


def blocks_of_group(whole: MicrokernelPlan) -> list[int]:
    """Filters that may be computed together. No vector of a block is empty in every group."""
    return [whole.lanes * n for n in range(1, _MOST_VECTORS + 1) if whole.lanes * (n - 1) < whole.group]


def padded_filters(whole: MicrokernelPlan, block: int) -> int:
    """Filters of all groups in blocks of `block`."""
    return whole.groups * -(-whole.group // block) * block


def unrolls(channels: int) -> tuple[int, ...]:
    """Channels that an iteration can compute."""
    several = tuple(n for n in _UNROLL if n % 2 == 0 and channels % n == 0)
    return several or ((3,) if channels % 3 == 0 else (1,))


# -- operations that microkernels compute, whatever their tiles ------------------------------------


def shape_reason(operation: Operation, packed: bool) -> str | None:
    """Why no microkernel computes `operation`, with filters that are `packed` or not, whatever its tiles; None if one may.

    Only packed filters can be divided into groups, and of bf16.
    """
    contraction, product, convolution = operation.contraction, operation.product, operation.convolution
    if contraction is None or (product is not None and product.is_batched):
        return f"microkernels are for matmul and convolutions, not for {operation.kind}"
    types = contraction.types
    inputs, sums = types.inputs, types.accumulator.name
    if inputs not in _TYPES or sums not in ("f32", "i32"):
        return f"microkernels are for f32 and bf16 with f32 sums, and for i8, not for {inputs} with {sums}"
    if inputs == "i8":
        reason = fours_reason(operation)
        if reason:
            return f"microkernels of i8 are for {reason}"
    if inputs != "f32" and not packed:
        return f"microkernels that read filters as they are stored are for f32, not for {inputs}"
    if convolution is not None:
        return _convolution_reason(convolution, packed)
    assert product is not None
    if product.lhs_layout != "t" and inputs != "f32":
        return f"microkernels of {inputs} are for matmul with lhs in layout t, not {product.lhs_layout}"
    return None if packed else _stored_reason(product.k, product.rhs_layout == "n")


def _convolution_reason(given: ConvolutionGeometry, packed: bool) -> str | None:
    convolution = given.as_forward
    if convolution is None:
        return f"microkernels are for forward convolutions, and for gradients of inputs that equal one, not for this {given.mode}"
    if not (convolution.input_layout == convolution.output_layout and convolution.is_channels_last):
        layouts = (convolution.input_layout, convolution.filter_layout, convolution.output_layout)
        return f"microkernels are for convolutions with channels last, not for {'_'.join(layouts)}"
    if convolution.variant != "depthwise" and convolution.filters_per_group < _FEWEST_FILTERS:
        return (
            f"microkernels need {_FEWEST_FILTERS} filters of a group, but got {convolution.filters_per_group}"
        )
    if packed:
        return None
    if convolution.groups != 1:
        return f"microkernels that read filters as they are stored are for convolutions without groups, but got {convolution.groups}"
    axes = convolution.spatial_letters
    known = (f"f{axes}c", f"fc{axes}", f"{axes}cf", f"c{axes}f")
    if convolution.filter_layout not in known:
        *others, last = known
        return (
            f"microkernels that read filters as they are stored need the layout {', '.join(others)} or {last} of filters, "
            f"not {convolution.filter_layout}"
        )
    terms = math.prod(convolution.filter_size) * convolution.channels
    return _stored_reason(terms, convolution.filter_layout.startswith("f"))


def _stored_reason(terms: int, is_transposed: bool) -> str | None:
    """Why a microkernel cannot read filters as they are stored; None if it can."""
    if is_transposed and terms < LANES:
        return f"microkernels that transpose filters need {LANES} terms, but got {terms}"
    return None


# -- microkernel rules -----------------------------------------------------------------------------

# Tiles of microkernels that are likely to be fast, from arithmetic alone.


#: Elements of a vector -> vector registers of AVX-512, and of AVX2. A kernel that needs more registers stores and reloads
#: some of them in every step.
_REGISTERS = {LANES: 32, AVX2_LANES: 16}
#: Workgroups that keep a few cores equally busy, although each packs its own filters.
_WORKGROUPS = (8, 4, 2, 16)
#: Fewer sums than these do not hide the latency of a multiply-add; half of them do in depthwise convolutions, which keep
#: the filters of a row of taps in registers.
_FEWEST_SUMS = 16
#: Vectors of a block at most. With few rows, narrow blocks may keep more cores busy.
_MOST_VECTORS = 4
_USUAL_WIDTHS = range(4, 15)
_TILES = 3


def widest_unroll(channels: int, most: int = _UNROLL[-1]) -> int:
    """The most channels, up to `most`, that an iteration can compute.

    Without copies in between, more channels at a time were faster: 350 instead of 277 GFLOP/s for 14x14x1024 1x1 256.
    Not so in two iterations: LLVM then stores and reloads the sums of large register tiles, in up to twice the time.
    """
    fitting = [n for n in unrolls(channels) if n <= most]
    return max((n for n in fitting if channels != 2 * n), default=max(fitting))


def usual_unroll(whole: MicrokernelPlan, registers: tuple[int, int, int], most: int = _UNROLL[-1]) -> int:
    """The channels of an iteration of a register tile, up to `most`; `whole` gives the extents.

    With several taps, no more than make up an iteration. Its code is written for each tap and each border, so that twice
    as many channels take twice as long to compile, and the kernel is no faster: with 8 channels instead of 4, eight 3x3
    convolutions with 20 to 28 sums in registers take 0.995 to 1.002 times as long on two cores of a Zen 4. Nor if `whole` reads
    filters in place: twice as many leave two iterations of a slice.
    """
    sums = math.prod(registers) // whole.lanes
    is_enough = _has_long_code(whole) and sums * _USUAL_UNROLL >= _ENOUGH_PRODUCTS
    is_limited = is_enough or whole.reads_in_place
    return widest_unroll(whole.channels, min(most, _USUAL_UNROLL) if is_limited else most)


def _searched_unrolls(whole: MicrokernelPlan) -> tuple[int, ...]:
    """The channels of an iteration that a search tries: see `usual_unroll`."""
    is_limited = _has_long_code(whole) and whole.lanes == LANES
    return tuple(n for n in unrolls(whole.channels) if n <= _USUAL_UNROLL or not is_limited)


def _has_long_code(whole: MicrokernelPlan) -> bool:
    """Whether there are several taps, and so many channels that all of them are no single iteration."""
    return whole.all_taps > 1 and whole.channels > _UNROLL[-1]


def registers_available(lanes: int) -> int:
    """Vector registers of `lanes` elements."""
    return _REGISTERS[lanes]


def registers_reason(tile: tuple[int, ...], needed: int, lanes: int) -> str | None:
    """Why a register tile cannot be used that needs so many vector registers; None if they are available."""
    available = registers_available(lanes)
    if needed <= available:
        return None
    return f"{by(tile)} needs {needed} vector registers of {lanes} elements, but {available} are available"


def registers_needed(rows: int, pixels: int, filters: int, lanes: int) -> int:
    """Vector registers of a tile: its sums, a vector of filters for each of them, and one pixel."""
    vectors = filters // lanes
    return rows * pixels * vectors + vectors + 1


def likely_tiles(whole: MicrokernelPlan) -> Iterator[tuple[tuple[int, int], tuple[int, int, int]]]:
    """(distribution, registers) pairs, the likeliest first; `whole` gives the extents. Some may be invalid.

    The best register tiles multiply each element that they load most often, and leave little in remainders.
    """
    choices = ((tuple(_distributions(whole, *tile)), tile) for tile in register_tiles(whole))
    for distributions, tile in islice((each for each in choices if each[0]), _TILES):
        yield from ((distribution, tile) for distribution in distributions)


def register_tiles(whole: MicrokernelPlan) -> list[tuple[int, int, int]]:
    """Register tiles of an operation with these extents; the first load the least for each product."""
    return sorted(_register_tiles(whole), key=lambda tile: (_loads(whole, *tile), tile))


def _register_tiles(whole: MicrokernelPlan) -> Iterator[tuple[int, int, int]]:
    has_one_row = whole.is_depthwise and whole.has_border_rows
    registers = registers_available(whole.lanes)
    heights = range(1, 2 if has_one_row else min(whole.rows, registers) + 1)
    widths = _widths(whole.columns, registers)
    tiles = [
        (rows, pixels, block)
        for block in blocks_of_group(whole)
        for pixels in widths
        for rows in heights
        if registers_needed(rows, pixels, block, whole.lanes) <= registers
    ]
    most = max(math.prod(tile) for tile in tiles) // whole.lanes
    usual = min(_FEWEST_SUMS, registers // 2) // (2 if whole.is_depthwise else 1)
    fewest = usual if most >= usual else most // _MOST_VECTORS
    return (tile for tile in tiles if math.prod(tile) // whole.lanes >= fewest)


def _widths(columns: int, most: int) -> list[int]:
    """Pixels of a tile along a row: divisors, so that no tile is narrower, if one of them has a usual width."""
    whole = list(divisors(columns, most))
    if columns <= max(_USUAL_WIDTHS) or any(width in _USUAL_WIDTHS for width in whole):
        return whole
    return sorted({-(-columns // tiles) for tiles in range(1, columns + 1)})


def _loads(whole: MicrokernelPlan, rows: int, pixels: int, filters: int) -> float:
    """Vectors and pixels loaded for each vector of products, of all pixels and filters including the remainders."""
    plan = replace(whole, registers=(rows, pixels, filters))
    blocks = plan.padded_group // filters
    loads = 1 / (rows * pixels) + (1 if plan.is_depthwise else blocks * plan.lanes / plan.stored_group)
    for extent, tile in ((plan.rows, rows), (plan.columns, pixels)):
        loads *= -(-extent // tile) * tile / extent
    return loads * plan.stored_group / plan.group


def _distributions(whole: MicrokernelPlan, rows: int, pixels: int, filters: int) -> Iterator[tuple[int, int]]:
    """Up to two distributions: shares of the filters, and of the rows if filters are few."""
    blocks = padded_filters(whole, filters) // filters
    distributions: dict[tuple[int, int], None] = {}
    for workgroups in _WORKGROUPS:
        parts = math.gcd(blocks, workgroups)
        # At padded borders, a register tile of several rows needs a workgroup with all of them.
        parts_of_rows = 1 if whole.has_border_rows and rows > 1 else workgroups // parts
        share, rest = divmod(whole.rows, parts_of_rows)
        if rest == 0 and share >= rows and parts * parts_of_rows > 1:
            distributions[share, blocks // parts * filters] = None
    yield from islice(distributions, 2)

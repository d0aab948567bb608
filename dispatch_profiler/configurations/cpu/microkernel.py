"""A vector kernel that the generator writes instruction by instruction, for f32 products and convolutions on CPUs.

The compiler's own tiles read filters in their stored layout, or copy all of them first. This kernel copies a
block of filters at a time into the order in which they are multiplied, keeps it in the cache, and prefetches
the next block meanwhile. Filters that are constants can be put into this order once, when they are loaded.
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
    backend_invalid_reason,
    by,
    check_flag,
    check_tiles,
)
from dispatch_profiler.configurations.cpu.microkernel_plan import (
    LANES,
    MicrokernelPlan,
    microkernel_plan,
    shape_reason,
)
from dispatch_profiler.configurations.forms.builder import Step
from dispatch_profiler.configurations.forms.packing import pack_into_panels
from dispatch_profiler.configurations.lowering import Lowering
from dispatch_profiler.configurations.space import Axis, Space, divisors, tile_axes
from dispatch_profiler.configurations.splits import SlicedSums
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import ErrorBound, Operation

#: Channels that are computed by one iteration of the innermost loop.
_UNROLL = (2, 4, 8)
#: Elements; 16 are a cache line.
_MARGINS = (0, 16)


@dataclass(frozen=True)
class Microkernel(Configuration):
    """Tiles in elements: `Microkernel((14, 64), (1, 14, 32))` for conv2d, `Microkernel((64, 64), (14, 1, 32))` for matmul.

    distribution  rows of the result and filters that a workgroup computes; of a product, its rows and columns
    registers     rows, pixels of a row, and filters whose sums stay in registers. A row of a product is one pixel
    unroll        channels of an iteration of the innermost loop
    margin        elements that are added to the channels of each pixel: without them, pixels whose channels are a
                  multiple of 4 KiB evict each other from the cache
    packed        the filters are packed into panels, one for each block, at load time: they must be constants
    """

    kind: ClassVar[str] = "microkernel"
    yaml_key: ClassVar[str] = "microkernel"
    yaml_field: ClassVar[str] = "registers"
    can_be_inner: ClassVar[bool] = False
    template: ClassVar[str] = "microkernel.mlir.j2"
    kernel_suffix: ClassVar[str] = "_microkernel"
    provider: ClassVar[str] = "Microkernel"
    field_names: ClassVar[tuple[str, ...]] = ("distribution_tile", "vector_tile")

    distribution: tuple[int, int]
    registers: tuple[int, int, int]
    unroll: int = 4
    margin: int = 0
    packed: bool = False
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    def __post_init__(self) -> None:
        for field, count in (("distribution", 2), ("registers", 3)):
            tiles = check_tiles(field, getattr(self, field))
            if len(tiles) != count:
                raise ConfigurationError(f"{field} of a microkernel has {count} tiles, but got {list(tiles)}")
            object.__setattr__(self, field, tiles)
        for field, known in (("unroll", _UNROLL), ("margin", _MARGINS)):
            if type(getattr(self, field)) is not int or getattr(self, field) not in known:
                raise ConfigurationError(
                    f"{field} must be one of {', '.join(map(str, known))}, but got {getattr(self, field)!r}"
                )
        check_flag("packed", self.packed)

    @property
    def name(self) -> str:
        """`tile_config_[packed_]microkernel_14x64_1x14x32_u4[_margin16]`"""
        label = "packed_microkernel" if self.packed else "microkernel"
        margin = f"_margin{self.margin}" if self.margin else ""
        return f"tile_config_{label}_{by(self.distribution)}_{by(self.registers)}_u{self.unroll}{margin}"

    def fields(self) -> dict[str, str]:
        return dict(zip(self.field_names, (by(self.distribution), by(self.registers)), strict=True))

    def plan(self, operation: Operation) -> MicrokernelPlan:
        """The loops and addresses that the template writes."""
        return microkernel_plan(
            operation, self.distribution, self.registers, self.unroll, self.margin, self.packed
        )

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
        return pack_into_panels(operation, self.registers[2]) if self.packed else ()

    # -- rules --------------------------------------------------------------------------------

    def tiling(self, operation: Operation) -> Lowering:
        """Its workgroup and register tiles as compiler tiles, so that models of compiler tiles apply."""
        rows, filters = self.distribution
        is_product = operation.convolution is None
        outer = (rows, filters) if is_product else (1, rows, 0, filters)
        inner = self.registers[::2] if is_product else (1, *self.registers)
        terms = (self.unroll,) if is_product else (1, 1, self.unroll)
        levels = (
            ("distribution", (*outer, *(0 for _ in terms))),
            ("vector_common_parallel", (*inner, *(0 for _ in terms))),
            ("vector_reduction", (*(0 for _ in inner), *terms)),
        )
        return Lowering("iree_cpu", "Default", operation.loops, levels)

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        foreign = backend_invalid_reason("microkernels are", "llvm-cpu", limits)
        foreign = foreign or shape_reason(operation, self.packed)
        if foreign:
            return foreign
        reason = self.plan(operation).invalid_reason() or self._registers_reason()
        return reason or (self._stored_reason(operation) if self.packed else None)

    def _stored_reason(self, operation: Operation) -> str | None:
        plan = self.plan(operation)
        if plan.block == plan.filters and not plan.rhs_is_transposed:
            return f"packed: {plan.filters} filters are one block, which is stored as it is multiplied"
        return None

    def _registers_reason(self) -> str | None:
        needed = registers_needed(*self.registers)
        if needed > REGISTERS:
            return f"{by(self.registers)} needs {needed} vector registers of {LANES} elements, but {REGISTERS} are available"
        return None

    # -- suggestions and the search space -----------------------------------------------------

    @classmethod
    def likely(
        cls, operation: Operation, limits: Limits, *, packed_weights: bool = False
    ) -> tuple[Microkernel, ...]:
        if limits.backend != "llvm-cpu" or shape_reason(operation, packed_weights):
            return ()
        whole = smallest_plan(operation, packed_weights)
        unroll = widest_unroll(whole.channels, _UNROLL[-1] if packed_weights else cls.unroll)
        tiles = [cls(distribution, registers, unroll) for distribution, registers in likely_tiles(whole)]
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
    if limits.backend != "llvm-cpu" or shape_reason(operation, packed):
        return None
    smallest = smallest_plan(operation, packed)
    blocks = [LANES * n for n in (1, 2, 3, 4) if smallest.filters % (LANES * n) == 0]
    rows = divisors(smallest.rows, smallest.rows)
    filters = tuple(LANES * n for n in divisors(smallest.filters // LANES, smallest.filters))
    tile = {
        "rows": tuple(range(1, min(smallest.rows, 28) + 1)),
        "pixels": divisors(smallest.columns, 28),
        "filters": tuple(blocks),
    }
    return Space(
        kind,
        (
            *tile_axes("distribution", {"rows": rows, "filters": filters}),
            *tile_axes("registers", tile),
            Axis("unroll", tuple(n for n in _UNROLL if smallest.channels % n == 0)),
            Axis("margin", _MARGINS if smallest.channels * 4 % 1024 == 0 else (0,)),
            *((Axis("packed", (True,)),) if packed else ()),
        ),
    )


def smallest_plan(operation: Operation, packed: bool) -> MicrokernelPlan:
    """The plan with the smallest tiles, for its extents."""
    return microkernel_plan(operation, (1, LANES), (1, 1, LANES), 2, 0, packed)


# -- microkernel rules -----------------------------------------------------------------------------

# Tiles of microkernels that are likely to be fast, from arithmetic alone.


#: Vector registers of AVX-512. A kernel that needs more registers stores and reloads some of them in every step.
REGISTERS = 32
#: Workgroups that keep a few cores equally busy, although each packs its own filters.
_WORKGROUPS = (8, 4, 2, 16)
#: Fewer sums than these do not hide the latency of a multiply-add.
_FEWEST_SUMS = 16
_TILES = 3


def widest_unroll(channels: int, most: int = _UNROLL[-1]) -> int:
    """The most channels, up to `most`, that an iteration can compute.

    Without copies in between, more channels at a time were faster: 350 instead of 277 GFLOP/s for 14x14x1024 1x1 256.
    """
    return max(n for n in _UNROLL if channels % n == 0 and n <= most)


def registers_needed(rows: int, pixels: int, filters: int) -> int:
    """Vector registers of a tile: its sums, a vector of filters for each of them, and one pixel."""
    vectors = filters // LANES
    return rows * pixels * vectors + vectors + 1


def likely_tiles(whole: MicrokernelPlan) -> Iterator[tuple[tuple[int, int], tuple[int, int, int]]]:
    """(distribution, registers) pairs, the likeliest first; `whole` gives the extents. Some may be invalid.

    The best register tiles multiply each element that they load most often, and leave no remainder.
    """
    choices = ((tuple(_distributions(whole, *tile)), tile) for tile in register_tiles(whole))
    for distributions, tile in islice((each for each in choices if each[0]), _TILES):
        yield from ((distribution, tile) for distribution in distributions)


def register_tiles(whole: MicrokernelPlan) -> list[tuple[int, int, int]]:
    """Register tiles of an operation with these extents; the first load the least for each product."""
    return sorted(_register_tiles(whole), key=lambda tile: (_loads(whole, *tile), tile))


def _register_tiles(whole: MicrokernelPlan) -> Iterator[tuple[int, int, int]]:
    for vectors in divisors(whole.filters // LANES, 4):
        for pixels in divisors(whole.columns, REGISTERS):
            for rows in range(1, min(whole.rows, REGISTERS) + 1):
                tile = rows, pixels, vectors * LANES
                if rows * pixels * vectors >= _FEWEST_SUMS and registers_needed(*tile) <= REGISTERS:
                    yield tile


def _loads(whole: MicrokernelPlan, rows: int, pixels: int, filters: int) -> float:
    """Vectors and pixels loaded for each vector of products, of all rows including the remainder."""
    tiles = -(-whole.rows // rows)
    return (1 / (rows * pixels) + LANES / filters) * tiles * rows / whole.rows


def _distributions(whole: MicrokernelPlan, rows: int, pixels: int, filters: int) -> Iterator[tuple[int, int]]:
    """Up to two distributions: shares of the filters, and of the rows if filters are few."""
    blocks = whole.filters // filters
    distributions: dict[tuple[int, int], None] = {}
    for workgroups in _WORKGROUPS:
        parts = math.gcd(blocks, workgroups)
        # At padded borders, a register tile of several rows needs a workgroup with all of them.
        parts_of_rows = 1 if whole.has_border_rows and rows > 1 else workgroups // parts
        share, rest = divmod(whole.rows, parts_of_rows)
        if rest == 0 and share >= rows and parts * parts_of_rows > 1:
            distributions[share, blocks // parts * filters] = None
    yield from islice(distributions, 2)

"""Tile configurations for IREE's CPU code generation.

There are three levels: `distribution` divides the work among threads, `cache` blocks each part, and
`vector` is computed in registers by one innermost step. Tiles follow the order of
`Operation.parallel_axes` and then `reduction_axes`, not the order of the linalg form, so that one
configuration serves both layouts of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    backend_invalid_reason,
    by,
    check_flag,
    check_tiles,
    check_whole,
    contraction_invalid_reason,
)
from dispatch_profiler.configurations.lowering import Levels, Lowering, lowering_config_text
from dispatch_profiler.configurations.space import (
    Axis,
    Point,
    Space,
    divisors,
    slices_of,
    tile_axes,
    tiles_of,
)
from dispatch_profiler.configurations.splits import (
    slices_of_long_sum,
    split_invalid_reason,
    split_loops,
    split_suffix,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Loop, Operation, RowSums

#: Axis of the result -> filter axis that slides along it.
_TAPS = {"oh": "kh", "ow": "kw"}
#: Largest vector tile along a row in the search space (see "row tiles" below).
_MAX_LANES = 64
#: Axis -> its largest vector tile in the search space; 1 for other axes.
_MAX_VECTOR = {
    "m": 32,
    "k": 64,
    "ow": 32,
    "oc": 128,
    "ic": 32,
    "row": 4,
    "column": 128,
    "channel": 128,
    "outer": 16,
    "inner": 128,
}


@dataclass(frozen=True)
class CpuTiles(Configuration):
    """Tiles in elements: `CpuTiles((64, 128), (8, 32, 4))` for m, n and m, n, k.

    distribution  one tile for each parallel axis
    vector        one tile for each parallel axis, then each reduction axis
    cache         as vector, or empty for none
    peel          peel off remainders, so that the vector tile need not divide the problem
    split_k       slices of the reduction, for matmul
    """

    kind: ClassVar[str] = "cpu_tiles"
    yaml_key: ClassVar[str] = "distribution"
    field_names: ClassVar[tuple[str, ...]] = ("distribution_tile", "cache_tile", "vector_tile", "peel")

    distribution: tuple[int, ...]
    vector: tuple[int, ...]
    cache: tuple[int, ...] = ()
    peel: bool = False
    split_k: int = 1

    def __post_init__(self) -> None:
        for field in ("distribution", "vector", "cache"):
            object.__setattr__(self, field, check_tiles(field, getattr(self, field)))
        if not self.distribution or len(self.vector) <= len(self.distribution):
            raise ConfigurationError(
                "vector needs a tile for each axis of distribution and at least one reduction axis, "
                f"but got distribution={list(self.distribution)}, vector={list(self.vector)}"
            )
        if self.cache and len(self.cache) != len(self.vector):
            raise ConfigurationError(
                f"cache needs as many tiles as vector, but got {list(self.cache)}, {list(self.vector)}"
            )
        check_flag("peel", self.peel)
        check_whole("split_k", self.split_k)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        row_sums = operation.row_sums
        if limits.backend != "llvm-cpu" or _foreign_reason(operation):
            return None
        if row_sums is not None and (row_sums.rows < 2 or not lanes_of(row_sums)):
            return None
        return _CpuSpace(cls, _space_axes(operation), operation)

    @property
    def name(self) -> str:
        tiles = [by(level) for level in (self.distribution, self.cache, self.vector) if level]
        return "_".join(["tile_config", *tiles]) + ("_peel" if self.peel else "") + split_suffix(self.split_k)

    def fields(self) -> dict[str, str]:
        values = (by(self.distribution), by(self.cache), by(self.vector), str(self.peel).lower())
        return dict(zip(self.field_names, values, strict=True))

    # -- tiles by loop ------------------------------------------------------------------------

    def _tiles(self, operation: Operation, tiles: tuple[int, ...]) -> dict[str, int]:
        axes = (*operation.parallel_axes, *operation.reduction_axes)
        return dict(zip(axes, tiles, strict=False))

    def slices(self, operation: Operation) -> int:
        if self.split_k > 1 or len(operation.reduction_axes) != 1:
            return self.split_k
        tile = self._tiles(operation, self.vector).get(operation.reduction_axes[0], 1)
        slices = slices_of_long_sum(operation, multiple=max(1, tile))
        # The remainder of a slice can be peeled, too.
        return slices_of_long_sum(operation) if slices == 1 and self.peel else slices

    def lowering(self, operation: Operation) -> Lowering:
        row_sums = operation.row_sums
        if row_sums is not None:
            return row_lowering(row_sums, self.distribution, self.vector)
        loops = split_loops(operation, self.slices(operation))
        vector = self._tiles(operation, self.vector)
        cache = self._tiles(operation, self.cache)
        # Loops without an axis (batch, groups, slices) have tile 1.
        distribution = self._tiles(operation, self.distribution)

        def level(tiles: dict[str, int], iterator: str) -> tuple[int, ...]:
            return tuple(tiles.get(x.name, 1) if x.iterator == iterator else 0 for x in loops)

        levels = [("distribution", level(distribution, "parallel"))]
        if self.cache:
            levels += [
                ("cache_parallel", level(cache, "parallel")),
                ("cache_reduction", level(cache, "reduction")),
            ]
        levels += [
            ("vector_common_parallel", level(vector, "parallel")),
            ("vector_reduction", level(vector, "reduction")),
        ]
        return Lowering(
            dialect="iree_cpu",
            pipeline=_pipeline(operation),
            loops=loops,
            levels=tuple(levels),
            options=("enable_loop_peeling",) if self.peel else (),
        )

    # -- validity -----------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        foreign = backend_invalid_reason("these tiles are", "llvm-cpu", limits)
        foreign = foreign or _foreign_reason(operation)
        if foreign:
            return foreign
        axes = (*operation.parallel_axes, *operation.reduction_axes)
        if len(self.vector) != len(axes) or len(self.distribution) != len(operation.parallel_axes):
            return (
                f"{operation.kind} takes {len(operation.parallel_axes)} distribution and {len(axes)} vector "
                f"tiles ({', '.join(axes)}), but got {len(self.distribution)} and {len(self.vector)}"
            )
        split = split_invalid_reason(operation, self.split_k)
        if split:
            return split
        return next(self._violations(operation, limits), None)

    def _violations(self, operation: Operation, limits: Limits) -> Iterator[str]:
        extents = {loop.name: loop.extent for loop in split_loops(operation, self.slices(operation))}
        # The remainder does not depend on the slices of a long sum, which may hold whole vectors.
        whole = {loop.name: loop.extent for loop in split_loops(operation, self.split_k)}
        vector = self._tiles(operation, self.vector)
        cache = self._tiles(operation, self.cache)
        distribution = self._tiles(operation, self.distribution)
        fits = True
        for axis, tile in vector.items():
            extent = extents.get(axis)
            if extent is None:
                if tile > 1:
                    yield f"this {operation.kind} has no loop {axis}, but its vector tile is {tile}"
                continue
            if tile > extent:
                yield f"vector tile {tile} exceeds {axis}={extent}"
            fits = fits and whole[axis] % tile == 0
            if extent % tile and not self.peel:
                yield f"vector tile {tile} does not divide {axis}={extent}, and peel is off"
            for outer_name, outer in (("cache", cache), ("distribution", distribution)):
                if outer.get(axis, tile) % tile:
                    yield f"{outer_name} tile {outer[axis]} is not a multiple of vector tile {tile} along {axis}"
        if self.peel and fits:
            yield "every vector tile divides the problem, so there is nothing to peel"
        row_sums = operation.row_sums
        if row_sums is not None:
            yield from row_violations(row_sums, self.vector, self.cache, self.peel)
        yield from self._too_wide(operation, limits)

    def _too_wide(self, operation: Operation, limits: Limits) -> Iterator[str]:
        # The initial zeros are one vector: the vector tile, or the cache tile if that splits the
        # reduction, because they then stay outside its loop.
        axes = operation.parallel_axes
        cut = any(
            self._tiles(operation, self.cache).get(loop.name, loop.extent) < loop.extent
            for loop in split_loops(operation, self.slices(operation))
            if loop.iterator == "reduction"
        )
        level, tiles = ("cache", self.cache) if cut else ("vector", self.vector)
        vectors = (
            (level, math.prod(tiles[: len(axes)])),
            ("vector", _vectorized_elements(operation, self._tiles(operation, self.vector))),
        )
        type_ = operation.accumulator
        for level, elements in vectors:
            size = elements * type_.bytes
            if limits.max_vector_bytes is not None and size >= limits.max_vector_bytes:
                yield (
                    f"the {level} tile has {size} B of {type_.name}, but the compiler "
                    f"needs vectors below {limits.max_vector_bytes} B: use a smaller {level} tile"
                )


def _foreign_reason(operation: Operation) -> str | None:
    """A reason if `operation` is a convolution that the compiler has no kernel for, or several loop nests: it has no tiles."""
    if operation.attention is not None:
        return f"these tiles are for one loop nest, but {operation.kind} has several"
    if operation.contraction is None:
        return None
    return contraction_invalid_reason("these tiles are for", operation)


def _vectorized_elements(operation: Operation, vector: dict[str, int]) -> int:
    """Elements of the vector that one step multiplies: the product of all tiles, including the reduction's.

    A convolution becomes a matrix product if its filter has one tap or slides along one axis only; the
    taps along that axis are processed one at a time. Otherwise it is not vectorized: 0.
    """
    convolution = operation.convolution
    if convolution is None or math.prod(convolution.filter_size) == 1:
        return math.prod(vector.values())
    slides_once = any(vector[out] == vector[tap] == 1 for out, tap in _TAPS.items())
    if convolution.variant != "dense" or not slides_once:
        return 0
    return math.prod(tile for axis, tile in vector.items() if axis not in _TAPS.values())


def _pipeline(operation: Operation) -> str:
    """Named linalg convolutions are first decomposed to one dimension; other operations are tiled twice."""
    convolution = operation.convolution
    is_named_convolution = convolution is not None and convolution.variant != "grouped"
    return "ConvTileAndDecomposeExpert" if is_named_convolution else "DoubleTilingExpert"


# -- the search space ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CpuSpace(Space[Configuration]):
    """Tiles of three levels, `cached` or not, and slices, rounded to valid values.

    A distribution tile becomes a multiple of the vector tile. A cache tile becomes a multiple of the vector
    tile that divides the distribution tile. `peel` is set if a vector tile does not divide the problem.
    """

    operation: Operation

    def to_configuration(self, point: Point) -> Configuration:
        return _nearest_valid(self.operation, **self.fields(point))


def _space_axes(operation: Operation) -> tuple[Axis, ...]:
    extents = {loop.name: loop.extent for loop in operation.loops}
    axes = (*operation.parallel_axes, *operation.reduction_axes)
    # A filter with several taps is vectorized only if it slides along one axis: a row of pixels.
    convolution = operation.convolution
    is_product = convolution is None or math.prod(convolution.filter_size) == 1
    max_vector = {**_MAX_VECTOR, "oh": 8 if is_product else 1}
    if convolution is None:
        max_vector["n"] = 128

    row_sums = operation.row_sums
    if row_sums is not None:
        return _row_axes(row_sums)

    def tiles(axis: str, most: int) -> tuple[int, ...]:
        return tiles_of(extents.get(axis, 1), most)

    def vector(axis: str) -> tuple[int, ...]:
        if axis in _TAPS and is_product:
            # Rows of pixels are then one loop, and compiling the remainder of a tile takes minutes.
            return divisors(extents[axis], max_vector[axis])
        if axis == "kw" and extents["kw"] > 1:
            return (1, extents["kw"])
        return tiles(axis, max_vector.get(axis, 1))

    return (
        *tile_axes("distribution", {axis: tiles(axis, 512) for axis in operation.parallel_axes}),
        Axis("cached", (False, True)),
        *tile_axes("cache", {axis: tiles(axis, 512) for axis in axes}),
        *tile_axes("vector", {axis: vector(axis) for axis in axes}),
        Axis("split_k", slices_of(operation)),
    )


def _row_axes(row_sums: RowSums) -> tuple[Axis, ...]:
    """Vector tiles divide the problem (see "row tiles" below)."""
    lanes = [tile for tile in lanes_of(row_sums) if tile <= _MAX_LANES]
    vector = {"row": divisors(row_sums.rows, 16), "column": tuple(lanes or lanes_of(row_sums)[:1])}
    return (
        *tile_axes("distribution", {"row": divisors(row_sums.rows, 512)}),
        Axis("cached", (False,)),
        *tile_axes("cache", dict.fromkeys(vector, (1,))),
        *tile_axes("vector", vector),
        Axis("split_k", (1,)),
    )


def _nearest_valid(
    operation: Operation,
    distribution: tuple[int, ...],
    cached: bool,
    cache: tuple[int, ...],
    vector: tuple[int, ...],
    split_k: int,
) -> CpuTiles:
    """The configuration nearest to these tiles in which each level is a multiple of the next."""
    limits = _extents(operation, split_k)
    units = [min(tile, limit) for tile, limit in zip(vector, limits, strict=True)]
    shares = [max(1, tile // unit) for tile, unit in zip(distribution, units, strict=False)]
    blocks: list[int] = []
    if cached:
        blocks = [max(1, min(each) // unit) for *each, unit in zip(cache, limits, units, strict=True)]
        blocks[: len(shares)] = [divisors(*each)[-1] for each in zip(shares, blocks, strict=False)]
    return CpuTiles(
        tuple(share * unit for share, unit in zip(shares, units, strict=False)),
        tuple(units),
        tuple(block * unit for block, unit in zip(blocks, units, strict=False)),
        any(limit % unit for limit, unit in zip(limits, units, strict=True)),
        split_k,
    )


@lru_cache(maxsize=1024)
def _extents(operation: Operation, split_k: int) -> tuple[int, ...]:
    """The extent of each axis that has a tile; 1 for axes without a loop."""
    extents = {loop.name: loop.extent for loop in split_loops(operation, split_k)}
    return tuple(extents.get(axis, 1) for axis in (*operation.parallel_axes, *operation.reduction_axes))


# -- row tiles -------------------------------------------------------------------------------------

# CPU tiles of operations that sum the rows of a matrix and then compute every element: layer norms.
#
# The compiler adds the elements of a vector tile up in every step of a row, which is slow. Here a row is split
# into chunks of as many elements as the vector tile has columns, its lanes:
#
#     x (rows, size)  ->  x (rows, chunks, lanes)  ->  sums over chunks (rows, lanes)  ->  sums (rows)
#
# Everything is one dispatch. Its root is the last sum over lanes; the operations around it have tiles that follow from the
# root's. No other sum may follow the root: the compiler leaves its initial zeros out of the loops of a workgroup, and does
# not compile 4096 rows and more then.


@dataclass(frozen=True)
class RowLowering(Lowering):
    """Tiles of the root, whose loops are rows and lanes, and of the operations around it."""

    #: Parts of a row, of `lanes` elements each.
    chunks: int = 1

    @property
    def lanes(self) -> int:
        return self.loops[1].extent

    @property
    def others(self) -> tuple[str, ...]:
        return (self.rows_config, self.lanes_config, self.chunk_sums_config, self.elements_config)

    @property
    def rows_config(self) -> str:
        """`lowering_config` of an operation on one number per row."""
        return self._config(("vector_common_parallel", (self._rows,)))

    @property
    def lanes_config(self) -> str:
        """`lowering_config` of an operation on (rows, lanes)."""
        return self._config(("vector_common_parallel", (self._rows, self.lanes)))

    @property
    def chunk_sums_config(self) -> str:
        """`lowering_config` of a sum over chunks."""
        return self._config(
            ("vector_common_parallel", (self._rows, self.lanes, 0)), ("vector_reduction", (0, 0, 1))
        )

    @property
    def lane_sums_config(self) -> str:
        """`lowering_config` of a sum over lanes that is not the root."""
        return self._config(*self.levels[1:])

    @property
    def elements_config(self) -> str:
        """`lowering_config` of an operation on (rows, size)."""
        return self._config(
            ("vector_common_parallel", (self._rows, 0)), ("vector_inner_parallel", (0, self.lanes))
        )

    @property
    def _rows(self) -> int:
        return dict(self.levels)["vector_common_parallel"][0]

    def _config(self, *levels: tuple[str, tuple[int, ...]]) -> str:
        return lowering_config_text(self.dialect, levels)


def row_lowering(row_sums: RowSums, distribution: tuple[int, ...], vector: tuple[int, ...]) -> RowLowering:
    """The lowering for `distribution` rows per workgroup and `vector` rows x columns per step."""
    rows, lanes = vector
    levels: Levels = (
        ("distribution", (distribution[0], 0)),
        ("vector_common_parallel", (rows, 0)),
        ("vector_reduction", (0, lanes)),
    )
    loops = (Loop("row", row_sums.rows, "parallel"), Loop("lane", lanes, "reduction"))
    return RowLowering("iree_cpu", "DoubleTilingExpert", loops, levels, chunks=row_sums.size // lanes)


def lanes_of(row_sums: RowSums) -> tuple[int, ...]:
    """Vector tiles along a row: divisors that leave at least two chunks of at least two elements."""
    return divisors(row_sums.size, row_sums.size // 2)[1:]


def row_violations(
    row_sums: RowSums, vector: tuple[int, ...], cache: tuple[int, ...], peel: bool
) -> Iterator[str]:
    """Reasons why these tiles cannot be used for rows, besides the reasons that apply to every operation."""
    # The compiler folds loops of extent 1 away, and the tiles with them.
    if row_sums.rows < 2:
        yield "tiles of rows need at least 2 rows"
    if vector[1] not in lanes_of(row_sums):
        yield f"a row is split into 2 or more chunks of 2 or more elements: vector tile {vector[1]} does not fit column={row_sums.size}"
    if cache or peel:
        yield "cache tiles and peel do not apply to rows"

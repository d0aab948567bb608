"""Tile configurations of IREE's CPU code generation.

Three levels: `distribution` cuts the work into pieces for threads, `cache` blocks each piece,
`vector` is what one innermost step computes in registers. Tiles are written in the order in which
people speak of a problem (`Operation.parallel_axes` then `reduction_axes`), not in that of its
linalg form, so that one configuration serves both layouts of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    Lowering,
    backend_invalid_reason,
    by,
    check_split,
    check_tiles,
    contraction_invalid_reason,
    split_invalid_reason,
    split_loops,
    split_suffix,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation


@dataclass(frozen=True)
class CpuTiles(Configuration):
    """Tiles in elements: `CpuTiles((64, 128), (8, 32, 4))` for m, n and m, n, k.

    distribution  one tile for each parallel axis
    vector        one tile for each parallel axis, then each reduction axis
    cache         as vector, or empty for none
    peel          split off what the vector tile leaves over, so that it need not divide the problem
    split_k       slices of the reduction, for matmul
    """

    kind: ClassVar[str] = "cpu_tiles"
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
                "vector needs a tile for each axis of distribution and at least one reduction, "
                f"but got distribution={list(self.distribution)}, vector={list(self.vector)}"
            )
        if self.cache and len(self.cache) != len(self.vector):
            raise ConfigurationError(
                f"cache needs as many tiles as vector, but got {list(self.cache)}, {list(self.vector)}"
            )
        if not isinstance(self.peel, bool):
            raise ConfigurationError(f"peel must be true or false, but got {self.peel!r}")
        check_split(self.split_k)

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

    def lowering(self, operation: Operation) -> Lowering:
        loops = split_loops(operation, self.split_k)
        vector = self._tiles(operation, self.vector)
        cache = self._tiles(operation, self.cache)
        # Loops that no axis names (batch, groups, slices) are done one at a time.
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
        foreign = foreign or contraction_invalid_reason("these tiles are for", operation)
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
        return next(self._misfits(operation, limits), None)

    def _misfits(self, operation: Operation, limits: Limits) -> Iterator[str]:
        extents = {loop.name: loop.extent for loop in split_loops(operation, self.split_k)}
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
            fits = fits and extent % tile == 0
            if extent % tile and not self.peel:
                yield f"vector tile {tile} does not divide {axis}={extent}, and nothing is peeled"
            for outer_name, outer in (("cache", cache), ("distribution", distribution)):
                if outer.get(axis, tile) % tile:
                    yield f"{outer_name} tile {outer[axis]} is no multiple of vector tile {tile} along {axis}"
        if self.peel and fits:
            yield "every vector tile divides the problem: there is nothing to peel"
        yield from self._too_wide(operation, limits)

    def _too_wide(self, operation: Operation, limits: Limits) -> Iterator[str]:
        # The initial zeros are one vector: of the vector tile, or of the cache tile if the reduction
        # is cut there, because then they stay outside its loop.
        axes = operation.parallel_axes
        cut = any(
            self._tiles(operation, self.cache).get(loop.name, loop.extent) < loop.extent
            for loop in split_loops(operation, self.split_k)
            if loop.iterator == "reduction"
        )
        level, tiles = ("cache", self.cache) if cut else ("vector", self.vector)
        size = math.prod(tiles[: len(axes)]) * operation.accumulator.bytes
        if limits.max_vector_bytes is not None and size >= limits.max_vector_bytes:
            yield (
                f"the {level} tile holds {size} B of {operation.accumulator.name}, but the compiler "
                f"takes vectors under {limits.max_vector_bytes} B: use a smaller {level} tile"
            )


def _pipeline(operation: Operation) -> str:
    """Convolutions that linalg names are decomposed to one dimension first; the rest is tiled twice."""
    convolution = operation.convolution
    is_named_convolution = convolution is not None and convolution.variant != "grouped"
    return "ConvTileAndDecomposeExpert" if is_named_convolution else "DoubleTilingExpert"

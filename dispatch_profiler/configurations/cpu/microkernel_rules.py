"""Tiles of microkernels that are likely to be fast, from arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from dispatch_profiler.configurations.cpu.microkernel_plan import LANES, MicrokernelPlan
from dispatch_profiler.configurations.space import divisors

#: Vector registers of AVX-512. A kernel that needs more registers stores and reloads some of them in every step.
REGISTERS = 32
#: Workgroups that keep a few cores equally busy, although each packs its own filters.
_WORKGROUPS = (8, 4, 2, 16)
#: Fewer sums than these do not hide the latency of a multiply-add.
_FEWEST_SUMS = 16
_TILES = 3


def registers_needed(rows: int, pixels: int, filters: int) -> int:
    """Vector registers of a tile: its sums, a vector of filters for each of them, and one pixel."""
    vectors = filters // LANES
    return rows * pixels * vectors + vectors + 1


def likely_tiles(whole: MicrokernelPlan) -> Iterator[tuple[tuple[int, int], tuple[int, int, int]]]:
    """(distribution, registers) pairs, the likeliest first; `whole` gives the extents. Some may be invalid.

    The best register tiles multiply each element that they load most often, and leave no remainder.
    """
    ranked = sorted(_register_tiles(whole), key=lambda tile: (_loads(whole, *tile), tile))
    choices = ((tuple(_distributions(whole, *tile)), tile) for tile in ranked)
    for distributions, tile in islice((each for each in choices if each[0]), _TILES):
        yield from ((distribution, tile) for distribution in distributions)


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

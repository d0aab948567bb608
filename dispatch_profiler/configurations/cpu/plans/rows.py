"""The register tiles of a microkernel for any number of rows, which its template writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from dispatch_profiler.configurations.cpu.plans.microkernel import MicrokernelPlan
from dispatch_profiler.configurations.cpu.plans.tile_runs import TileRun

#: Register tiles, side by side along the rows of a workgroup, that together prefetch the next block of filters.
_PREFETCHING_TILES = 4


@dataclass(frozen=True)
class Division:
    """How up to `rows` rows are divided: among at most `parts`, and the filters into shares of so many `filters`."""

    rows: int
    parts: int
    filters: int


@dataclass(frozen=True)
class RowsPlan:
    """The plan of the tallest register tiles, for the most rows, and the divisions in the order of their rows."""

    tallest: MicrokernelPlan
    divisions: tuple[Division, ...]

    @property
    def height(self) -> int:
        """Rows of the tallest register tiles."""
        return self.tallest.registers[0]

    @property
    def prefetching_tiles(self) -> int:
        """The first tiles of a workgroup, which prefetch the next block of filters together."""
        return _PREFETCHING_TILES

    @property
    def heights(self) -> range:
        """Rows of all register tiles: as few as possible are computed twice if all tiles of a call are equally tall."""
        return range(1, self.height + 1)

    @cached_property
    def of_heights(self) -> dict[int, MicrokernelPlan]:
        """The plan of tiles of each height.

        Low tiles are alone in a workgroup, so that each prefetches all of the next block; others do so together.
        """
        return {height: self._of_height(height) for height in self.heights}

    def _of_height(self, height: int) -> MicrokernelPlan:
        is_alone = 2 * height <= self.height
        rows = height * (1 if is_alone else _PREFETCHING_TILES)
        filters = min(2 * self.tallest.block, self.tallest.padded_filters)
        return replace(self.tallest, registers=(height, 1, self.tallest.block), distribution=(rows, filters))

    def run(self, rows: int) -> TileRun:
        """A register tile of so many rows, all of whose products are of the matrix."""
        return TileRun(0, rows, rows, None)

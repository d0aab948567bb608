"""Register tiles side by side whose pixels need the same care at the borders of an image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby


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

    def readers(self, run: TileRun) -> list[tuple[int, list[tuple[int, int]]]]:
        """(pixel of the image, (tap, pixel of the tile) that read it) for each, counted from where a tile begins."""
        found: dict[int, list[tuple[int, int]]] = {}
        for tap in range(self.taps):
            for pixel in run.inside_at(tap):
                found.setdefault(pixel * self.stride + tap * self.dilation, []).append((tap, pixel))
        return sorted(found.items())

    def _inside(self, start: int, pixels: int, tap: int) -> tuple[int, ...]:
        return tuple(pixel for pixel in range(pixels) if self.is_inside(start + pixel, tap))

"""The blocks of filters that a microkernel computes, and their vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Vector:
    """A vector of sums, or of results."""

    lanes: int
    element: str = "f32"

    @property
    def is_integer(self) -> bool:
        return self.element == "i32"

    @property
    def name(self) -> str:
        """Its type: `vector<16xf32>`."""
        return f"vector<{self.lanes}x{self.element}>"


@dataclass(frozen=True)
class FilterBlock:
    """Filters that are computed together. Equal blocks share the text that computes them.

    filters        in whole vectors, as in panels
    vectors        the last one may have half as many lanes as others
    is_masked      whether the last vector has lanes without filters, in the last one of these blocks
    is_prefetched  whether the block after it is prefetched meanwhile
    loads          numbers of vectors that are loaded together: one, or two of bf16, which are separated into even and odd
                   channels by one instruction each, without moving lanes. Sums are put in order at the end
    """

    filters: int
    vectors: tuple[Vector, ...]
    is_masked: bool
    is_prefetched: bool
    loads: tuple[tuple[int, ...], ...]

    def vector_of(self, number: int) -> Vector:
        """The vector of the sum with this number."""
        return self.vectors[number % len(self.vectors)]

    def sums_of(self, pixels: Iterable[int]) -> list[int]:
        """Numbers of the sums of these pixels: one per vector."""
        count = len(self.vectors)
        return [pixel * count + vector for pixel in pixels for vector in range(count)]

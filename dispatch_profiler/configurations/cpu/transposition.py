"""How vectors of a register are transposed, by shuffles of two vectors at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Shuffle:
    """`result = shuffle(first, second)`: row numbers before and after one step of a transposition."""

    result: int
    first: int
    second: int
    lanes: tuple[int, ...]


def transposition(lanes: int = 16) -> tuple[tuple[Shuffle, ...], ...]:
    """Steps that transpose `lanes` (16 or 8) vectors of as many elements: each exchanges the blocks beside the diagonal.

    J. O. Eklundh, "A Fast Computer Method for Matrix Transposing", IEEE Transactions on Computers C-21(7), 1972.
    """
    return tuple(tuple(_exchange(distance, lanes)) for distance in (8, 4, 2, 1) if distance < lanes)


def _exchange(distance: int, lanes: int) -> Iterator[Shuffle]:
    every = range(lanes)
    for low in (row for row in every if not row & distance):
        high = low | distance
        yield Shuffle(low, low, high, tuple(lanes + (x ^ distance) if x & distance else x for x in every))
        yield Shuffle(high, low, high, tuple(lanes + x if x & distance else x | distance for x in every))

"""Where the elements of a tensor are in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Strided:
    """A tensor in the memory of the input `source`, or of the result: offset and strides in elements.

    `shared` successive heads, or channels, are one in memory: the second stride leads to the next of these.
    """

    source: int
    offset: int
    strides: tuple[int, ...]
    shared: int = 1

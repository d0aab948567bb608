"""Elementwise work on large arrays: in blocks that stay in the caches, side by side in a few threads.

numpy gives the interpreter's lock away while it computes, and a block of 1 MiB costs no page faults for what
lies between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

#: Of a block; float64 needs 8 bytes for each.
_ELEMENTS = 2**17
_THREADS = 4


def in_blocks(work: Callable[[slice], _T], count: int, size: int | None = None) -> Sequence[_T]:
    """What `work` makes of each block of `count` elements, in their order. Raises what `work` raises.

    A block has `size` elements; None: as many as suit a chain of steps in float64.
    """
    size = size or _ELEMENTS
    blocks = [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]
    if len(blocks) < 2:
        return [work(block) for block in blocks]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, blocks))

"""Elementwise work on large arrays: parallel threads, each on blocks that fit into the CPU's caches.

numpy releases the GIL while it computes, and intermediate arrays of 1 MiB cause no page faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dispatch_profiler.cores import usable_processes

_T = TypeVar("_T")

#: Elements of a block; float64 needs 8 bytes for each.
_ELEMENTS = 2**17
#: More threads wait for each other, or for the memory.
_THREADS = 8


def in_blocks(work: Callable[[slice], _T], count: int, size: int | None = None) -> Sequence[_T]:
    """The results of `work` for each block of `count` elements, in order. Raises the errors of `work`.

    A block has `size` elements, by default a number that suits several steps in float64.
    """
    size = size or _ELEMENTS
    blocks = [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]
    if len(blocks) < 2:
        return [work(block) for block in blocks]
    with ThreadPoolExecutor(min(_THREADS, usable_processes())) as pool:
        return list(pool.map(work, blocks))


def rows_in_blocks(work: Callable[[slice], _T], rows: int, columns: int) -> Sequence[_T]:
    """The results of `work` for blocks of whole rows of `columns` elements. See `in_blocks`."""
    return in_blocks(work, rows, max(1, _ELEMENTS // max(1, columns)))

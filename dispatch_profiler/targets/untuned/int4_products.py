"""The microkernel of a product with a weight of 4-bit numbers if none was tuned.

Measured on two cores of a Xeon with AVX-512, for 8192 x 2048 and 2048 x 8192, groups of 32 and 128, with 1 to 1024 rows: up to ten
rows are fastest if terms are unpacked in registers, once for each five rows at most. With more rows, blocks of 32 to 128 terms
differ by less than 10 %.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatch_profiler.configurations import Int4Microkernel
from dispatch_profiler.configurations.cpu.int4_microkernel import MOST_ROWS, MOST_UNPACKED_ROWS
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Int4Geometry, Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.packed_microkernels import has_known_vectors

#: Workgroups of a thread at least, so that all threads are done at about the same time.
_OF_THREAD = 4
#: Rows at most for which terms are unpacked in registers.
_UNPACKED_ROWS = 10
#: Terms of a block with few and with many rows, and rows from which on they are many.
_FEW_TERMS, _MANY_TERMS, _MANY_ROWS = 64, 128, 32
#: Rows of a workgroup, whose sums stay in the second cache.
_PART = 192


def ranked_int4_microkernels(
    operation: Operation, target: Target, threads: int | None = None
) -> Iterator[Int4Microkernel]:
    """The microkernel that is likely the fastest on `threads` (default: those at hand).

    None for other operations, and if the vectors of `target` have another or an unknown width.
    """
    product = operation.int4_product
    if product is None or not has_known_vectors(target):
        return
    found = _likely(product, threads or usable_threads())
    if found.invalid_reason(operation, target.limits) is None:
        yield found


def _likely(product: Int4Geometry, threads: int) -> Int4Microkernel:
    parts = -(-product.m // _PART)
    share = max(1, product.panels * parts // (threads * _OF_THREAD))
    if product.m <= _UNPACKED_ROWS:
        tiles = -(-product.m // MOST_UNPACKED_ROWS)
        return Int4Microkernel(-(-product.m // tiles), min(share, product.panels))
    rows = _rows_of_tile(product.m)
    wanted = _FEW_TERMS if product.m < _MANY_ROWS else _MANY_TERMS
    block = max(wanted // product.group, 1) * product.group
    part = 0 if parts == 1 else _PART // rows * rows
    return Int4Microkernel(rows, min(share, product.panels), min(block, product.k), part)


def _rows_of_tile(rows: int) -> int:
    """Rows of a register tile: as many as possible, unless tiles of four to six leave fewer rows for the last tile."""
    return min((MOST_ROWS, 5, 4), key=lambda each: (-(-rows // each) * each - rows, -each))

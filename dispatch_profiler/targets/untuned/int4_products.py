"""The microkernel of a product with a weight of 4-bit numbers if none was tuned.

Measured on two cores of a Xeon with AVX-512, for 8192 x 2048 and 2048 x 8192, groups of 32 and 128, with 1 to 1024 rows: up to ten
rows are fastest if terms are unpacked in registers, once for each five rows at most. With more rows, blocks of 32 to 128 terms
differ by less than 10 %. In bf16, and 4096 x 11008, too, products of whole numbers took 0.6 to 0.9 of the time with any number of
rows. Since each workgroup converts its rows, there are few workgroups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import Int4Microkernel
from dispatch_profiler.configurations.cpu.int4_microkernel import (
    MOST_ROWS,
    MOST_SCRATCH,
    MOST_UNPACKED_ROWS,
    integers_reason,
)
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
#: Of whole numbers: rows of a workgroup, and workgroups of a thread at least.
_INTEGER_PART, _OF_INTEGER_THREAD = 50, 2


def ranked_int4_microkernels(
    operation: Operation, target: Target, threads: int | None = None
) -> Iterator[Int4Microkernel]:
    """The microkernel that is likely the fastest on `threads` (default: those at hand).

    None for other operations, and if the vectors of `target` have another or an unknown width.
    """
    product = operation.int4_product
    if product is None or not has_known_vectors(target):
        return
    multiplies = integers_reason(operation, target.limits) is None
    count = threads or usable_threads()
    found = _of_integers(operation, product, count) if multiplies else _likely(product, count)
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


def _of_integers(operation: Operation, product: Int4Geometry, threads: int) -> Int4Microkernel:
    most = MOST_UNPACKED_ROWS
    rows = product.m if product.m <= most else _rows_of_tile(product.m, most)
    parts = -(-product.m // _INTEGER_PART)
    part = 0 if parts == 1 else _INTEGER_PART // rows * rows
    whole = Int4Microkernel(rows, product.panels, part=part, integers=True)
    parts = whole.plan(operation).workgroups[1]
    most_shares = MOST_SCRATCH * 2**20 // (4 * whole.plan(operation).scratch * parts)
    shares = min(-(-threads * _OF_INTEGER_THREAD // parts), max(most_shares, 1))
    return replace(whole, share=-(-product.panels // shares))


def _rows_of_tile(rows: int, most: int = MOST_ROWS) -> int:
    """Rows of a register tile: `most`, unless tiles of one or two fewer leave fewer rows for the last tile."""
    return min((most, most - 1, most - 2), key=lambda each: (-(-rows // each) * each - rows, -each))

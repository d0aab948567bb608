"""The microkernel for any number of rows or images, by the rule of microkernels for one number of them.

For products, the rule expects the register tiles to take the least time over all numbers of rows, and the divisions to take
the least time for each power of two. Each image is computed as if it were the only one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from dispatch_profiler.configurations import Configuration, ImagesMicrokernel, RowsMicrokernel
from dispatch_profiler.configurations.cpu.microkernel import (
    bf16_features,
    padded_filters,
    shape_reason,
    smallest_plan,
    usual_unroll,
    vector_lanes,
)
from dispatch_profiler.configurations.cpu.plans.microkernel import MicrokernelPlan
from dispatch_profiler.configurations.space import divisors
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.packed_microkernels import (
    has_known_vectors,
    plan_cycles,
    ranked_microkernels,
    register_tiles_to_try,
)

#: The most rows, or images, that a kernel is made for.
LARGEST_BATCH = 2**20
#: From so many rows on, the work is divided alike.
_LARGE = 2**13
#: Powers of two from one number of rows to the next for which register tiles are compared.
_APART = 4
#: Terms of an iteration at most: the code is written for each height of register tiles.
_UNROLL = 4
#: Parts of the rows, and shares of the filters, for each thread at most.
_OF_THREAD = 8


def of_any_batch(operation: Operation) -> Operation | None:
    """`operation` with the most rows or images, which a kernel for any number computes; None for other kinds."""
    return operation.with_batch(LARGEST_BATCH)


def any_batch_kernel(
    operation: Operation, target: Target, threads: int | None = None
) -> Configuration | None:
    """The kernel for any number of rows or images up to the number in `operation`, on `threads` (default: those at hand).

    None if none is valid, or if the vectors of `target` have another or an unknown width.
    """
    if operation.convolution is not None:
        return images_microkernel(operation, target, threads)
    return rows_microkernel(operation, target, threads)


def images_microkernel(
    operation: Operation, target: Target, threads: int | None = None
) -> ImagesMicrokernel | None:
    """The microkernel for any number of images up to the number in `operation`. See `any_batch_kernel`."""
    of_image = operation.with_batch(1)
    if operation.convolution is None or of_image is None:
        return None
    every = map(ImagesMicrokernel.of, ranked_microkernels(of_image, target, threads))
    valid = (
        each for each in every if each is not None and each.invalid_reason(operation, target.limits) is None
    )
    return next(valid, None)


def rows_microkernel(
    operation: Operation, target: Target, threads: int | None = None
) -> RowsMicrokernel | None:
    """The microkernel for any number of rows up to the number in `operation`, a product. See `any_batch_kernel`."""
    limits = target.limits
    if (
        operation.product is None
        or operation.with_batch(1) is None
        or not has_known_vectors(target)
        or shape_reason(operation, True)
    ):
        return None
    threads, most = threads or usable_threads(), operation.operands[0].shape[0]
    rows = [2**n for n in range(int(math.log2(min(most, _LARGE))) + 1)]
    features = bf16_features(operation, limits)
    whole = smallest_plan(operation, True, vector_lanes(limits), features["pairs"])

    def made(tile: tuple[int, int], divisions: tuple[tuple[int, int, int], ...]) -> RowsMicrokernel:
        unroll = usual_unroll(whole, (tile[0], 1, tile[1]), _UNROLL)
        return RowsMicrokernel(tile, divisions, unroll, lanes=whole.lanes, **features)

    tiles = dict.fromkeys((high, block) for high, _, block in register_tiles_to_try(whole))
    valid = [
        tile for tile in tiles if made(tile, ((most, 1, tile[1]),)).invalid_reason(operation, limits) is None
    ]
    if not valid:
        return None
    tile = min(valid, key=lambda each: sum(_least(whole, each, m, threads)[0] for m in rows[::_APART]))
    chosen = [(m, *_least(whole, tile, m, threads)[1]) for m in rows]
    return made(tile, _merged(chosen, most))


def _least(
    whole: MicrokernelPlan, tile: tuple[int, int], rows: int, threads: int
) -> tuple[float, tuple[int, int]]:
    """The logarithm of the fewest cycles that the rule expects for so many rows, and the (parts, filters) of these."""
    return min(
        (math.log(plan_cycles(plan, threads)), (-(-rows // plan.distribution[0]), plan.distribution[1]))
        for plan in _divided(whole, tile, rows, threads)
    )


def _divided(
    whole: MicrokernelPlan, tile: tuple[int, int], rows: int, threads: int
) -> Iterator[MicrokernelPlan]:
    """The divisions of so many rows into parts of whole register tiles, and of the filters into equal shares."""
    tiles = -(-rows // tile[0])
    height = -(-rows // tiles)
    of_rows = replace(whole, rows=rows, size=(rows, 1), registers=(height, 1, tile[1]))
    blocks = padded_filters(whole, tile[1]) // tile[1]
    most = _OF_THREAD * threads
    for of_part in sorted({-(-tiles // parts) for parts in range(1, min(most, tiles) + 1)}):
        parts = -(-tiles // of_part)
        for shares in divisors(blocks, max(most // parts, 1)):
            part = min(of_part * height, rows)
            yield replace(of_rows, distribution=(part, blocks // shares * tile[1]))


def _merged(chosen: list[tuple[int, int, int]], most: int) -> tuple[tuple[int, int, int], ...]:
    """A division for each run of equal ones: up to half way to the rows of the next, on a logarithmic scale."""
    runs = [list(run) for _, run in groupby(chosen, key=lambda each: each[1:])]
    ends = [math.isqrt(2 * run[-1][0] ** 2) for run in runs[:-1]]
    return tuple((end, *run[0][1:]) for end, run in zip([*ends, most], runs, strict=True))

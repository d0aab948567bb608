"""The microkernel for any number of rows or images, by the rule of microkernels for one number of them.

For products, the rule expects the register tiles to take the least time over all numbers of rows, and the divisions to take
the least time for each power of two. Each image is computed as if it were the only one.

A search measures further ones (`batch_space`): other register tiles, the divisions that the rule ranks next, other unrolling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, islice, pairwise
from typing import TypeAlias

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
#: Terms of an iteration, and divisions after the one that the rule expects to be the fastest, that a search tries.
_UNROLLS, _FURTHER = (2, 8), 3
#: Microkernels of an image that a search tries first, and in all.
_FIRST_IMAGES, _IMAGES = 6, 16
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
    space = batch_space(operation, target, threads)
    return None if space is None else space.first[0]


def batch_space(operation: Operation, target: Target, threads: int | None = None) -> BatchSpace | None:
    """What a search may try beside `any_batch_kernel`, which comes first; None without such a kernel."""
    if operation.convolution is not None:
        return ImagesSpace.of(operation, target, threads)
    return RowsSpace.of(operation, target, threads)


def images_microkernel(
    operation: Operation, target: Target, threads: int | None = None
) -> ImagesMicrokernel | None:
    """The microkernel for any number of images up to the number in `operation`. See `any_batch_kernel`."""
    space = ImagesSpace.of(operation, target, threads)
    return None if space is None else space.every[0]


def rows_microkernel(
    operation: Operation, target: Target, threads: int | None = None
) -> RowsMicrokernel | None:
    """The microkernel for any number of rows up to the number in `operation`, a product. See `any_batch_kernel`."""
    space = RowsSpace.of(operation, target, threads)
    return None if space is None else space.kernel(space.tiles[0])


@dataclass(frozen=True)
class ImagesSpace:
    """Microkernels for any number of images, the likely fastest for a single one first."""

    every: tuple[ImagesMicrokernel, ...]

    @classmethod
    def of(cls, operation: Operation, target: Target, threads: int | None) -> ImagesSpace | None:
        """See `batch_space`."""
        of_image = operation.with_batch(1)
        if operation.convolution is None or of_image is None:
            return None
        made = map(ImagesMicrokernel.of, ranked_microkernels(of_image, target, threads))
        valid = (
            each
            for each in made
            if each is not None and each.invalid_reason(operation, target.limits) is None
        )
        every = tuple(islice(valid, _IMAGES))
        return cls(every) if every else None

    @property
    def first(self) -> Sequence[Configuration]:
        """The kernels to measure first: the rule's choice, then others."""
        return self.every[:_FIRST_IMAGES]

    def further(self, chosen: Sequence[Configuration]) -> Sequence[Configuration]:
        """The kernels to measure after those of `first`, of which `chosen` were the fastest at some sizes."""
        return self.every[_FIRST_IMAGES:]

    def joined(self, fastest: Mapping[int, Configuration], most: int) -> Configuration:
        """The kernel for up to `most` sizes that is like the fastest of its kind for each measured size."""
        return next(iter(fastest.values()))

    def kind(self, configuration: Configuration) -> object:
        """What kernels that can be `joined` have in common."""
        return configuration


@dataclass(frozen=True)
class RowsSpace:
    """Microkernels for any number of rows up to `most`, with the register tiles (rows, filters) in the order of the rule."""

    whole: MicrokernelPlan
    features: Mapping[str, bool]
    most: int
    threads: int
    tiles: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, operation: Operation, target: Target, threads: int | None) -> RowsSpace | None:
        """See `batch_space`."""
        limits = target.limits
        if (
            operation.product is None
            or operation.with_batch(1) is None
            or not has_known_vectors(target)
            or shape_reason(operation, True)
        ):
            return None
        threads, most = threads or usable_threads(), operation.operands[0].shape[0]
        features = bf16_features(operation, limits)
        whole = smallest_plan(operation, True, vector_lanes(limits), features["pairs"])
        space = cls(whole, features, most, threads, ())
        tiles = [
            tile
            for tile in dict.fromkeys((high, block) for high, _, block in register_tiles_to_try(whole))
            if space.made(tile, ((most, 1, tile[1]),)).invalid_reason(operation, limits) is None
        ]
        return replace(space, tiles=tuple(sorted(tiles, key=space._cycles))) if tiles else None

    def _cycles(self, tile: tuple[int, int]) -> float:
        """The sum of the logarithms of what the rule expects for some numbers of rows."""
        return sum(_ranked(self.whole, tile, m, self.threads)[0][0] for m in self._rows[::_APART])

    @property
    def _rows(self) -> list[int]:
        """The numbers of rows that have divisions of their own."""
        return [2**n for n in range(int(math.log2(min(self.most, _LARGE))) + 1)]

    def made(
        self, tile: tuple[int, int], divisions: tuple[tuple[int, int, int], ...], most_unroll: int = _UNROLL
    ) -> RowsMicrokernel:
        """The kernel of a tile with these divisions, with as many terms in an iteration as its code may have."""
        unroll = usual_unroll(self.whole, (tile[0], 1, tile[1]), most_unroll)
        return RowsMicrokernel(tile, divisions, unroll, lanes=self.whole.lanes, **self.features)

    def kernel(self, tile: tuple[int, int], rank: int = 0, most_unroll: int = _UNROLL) -> RowsMicrokernel:
        """The kernel of a tile with the divisions that the rule ranks so high for each number of rows, from 0."""
        chosen = []
        for m in self._rows:
            ranked = _ranked(self.whole, tile, m, self.threads)
            chosen.append((m, *ranked[min(rank, len(ranked) - 1)][1]))
        return self.made(tile, _merged(chosen, self.most), most_unroll)

    @property
    def first(self) -> Sequence[Configuration]:
        """See `ImagesSpace.first`."""
        return tuple(map(self.kernel, self.tiles))

    def further(self, chosen: Sequence[Configuration]) -> Sequence[Configuration]:
        """See `ImagesSpace.further`."""
        tiles = [tile for tile in self.tiles if any(self.kernel(tile) == each for each in chosen)]
        others = [self.kernel(tile, rank) for rank in range(1, _FURTHER + 1) for tile in tiles]
        unrolled = [self.kernel(tile, 0, unroll) for unroll in _UNROLLS for tile in tiles]
        known = self.first
        return tuple(each for each in dict.fromkeys((*others, *unrolled)) if each not in known)

    def joined(self, fastest: Mapping[int, Configuration], most: int) -> Configuration:
        """See `ImagesSpace.joined`. `fastest` has kernels that differ in their divisions only, by numbers of rows."""
        rows = sorted(fastest)
        ends = [*(math.isqrt(one * other) for one, other in pairwise(rows)), most]
        divisions: list[tuple[int, int, int]] = []
        for begin, end, m in zip([0, *ends[:-1]], ends, rows, strict=True):
            kernel = _checked(fastest[m])
            divisions += [
                (min(up_to, end), parts, filters)
                for up_to, parts, filters in kernel.divisions
                if up_to > begin and _begin(kernel, up_to) < end
            ]
        runs = [list(run) for _, run in groupby(divisions, key=lambda each: each[1:])]
        first = _checked(fastest[rows[0]])
        height, block = first.registers
        # Taller tiles would never be used.
        registers = min(height, most), block
        return replace(first, registers=registers, divisions=tuple(run[-1] for run in runs))

    def kind(self, configuration: Configuration) -> object:
        """See `ImagesSpace.kind`."""
        kernel = _checked(configuration)
        return kernel.registers, kernel.unroll


#: What a search may try for an operation.
BatchSpace: TypeAlias = "ImagesSpace | RowsSpace"


def _checked(configuration: Configuration) -> RowsMicrokernel:
    assert isinstance(configuration, RowsMicrokernel)  # it comes from a space of them
    return configuration


def _begin(kernel: RowsMicrokernel, up_to: int) -> int:
    """The most rows of the division before the one for rows `up_to`; 0 before the first."""
    return max((each[0] for each in kernel.divisions if each[0] < up_to), default=0)


@lru_cache(maxsize=256)
def _ranked(
    whole: MicrokernelPlan, tile: tuple[int, int], rows: int, threads: int
) -> Sequence[tuple[float, tuple[int, int]]]:
    """The logarithm of the cycles that the rule expects for so many rows, with (parts, filters): the fewest first."""
    return sorted(
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

"""Divides a range of sizes into buckets with a kernel each, by the times of every kernel at some of the sizes.

The goal is the geometric mean, over the sizes, of the time relative to the fastest kernel for each size: no size counts more
because it takes longer, and being slower by a factor at one size is as bad as at any other. As the fastest time of a size is
the same whatever is chosen, the mean of the logarithms of the times has the same order.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

#: Buckets at most: each is a kernel to compile, and code to keep.
MOST_BUCKETS = 3
#: The relative gain in the geometric mean over all sizes for which another bucket is worthwhile, and another layout of the
#: packed weight, which takes as much memory as the weight.
BUCKET_GAIN, LAYOUT_GAIN = 0.02, 0.05


@dataclass(frozen=True)
class Bucket:
    """The sizes from the position `first` to the position `last`, both included, and the kernel for them."""

    first: int
    last: int
    kernel: int


def best_buckets(
    seconds: Sequence[Sequence[float]], layouts: Sequence[Hashable], most: int = MOST_BUCKETS
) -> tuple[Bucket, ...]:
    """The buckets for the times of each kernel at each size, in order; kernels with equal `layouts` share a packed weight.

    Of equally good kernels, the first is chosen.
    """
    sums = [_cumulated(each) for each in seconds]
    sizes = len(seconds[0])
    best: tuple[float, tuple[Bucket, ...]] | None = None
    for count in range(1, min(most, sizes) + 1):
        for shared in _subsets(list(dict.fromkeys(layouts)), count):
            usable = [at for at, each in enumerate(layouts) if each in shared]
            cost = math.log1p(BUCKET_GAIN) * (count - 1) + math.log1p(LAYOUT_GAIN) * (len(shared) - 1)
            for parts in _divisions(sizes, count):
                found = [min((sums[at][end] - sums[at][begin], at) for at in usable) for begin, end in parts]
                total = sizes * cost + sum(each for each, _ in found)
                if best is None or total < best[0] - 1e-12:
                    buckets = zip(parts, found, strict=True)
                    best = total, tuple(Bucket(begin, end - 1, at) for (begin, end), (_, at) in buckets)
    assert best is not None  # there is a kernel and a size
    return _merged(best[1])


def _cumulated(seconds: Sequence[float]) -> list[float]:
    sums = [0.0]
    for each in seconds:
        sums.append(sums[-1] + math.log(each))
    return sums


def _subsets(layouts: Sequence[Hashable], most: int) -> Iterator[tuple[Hashable, ...]]:
    for count in range(1, min(most, len(layouts)) + 1):
        yield from combinations(layouts, count)


def _divisions(sizes: int, count: int) -> Iterator[list[tuple[int, int]]]:
    for borders in combinations(range(1, sizes), count - 1):
        yield list(pairwise((0, *borders, sizes)))


def _merged(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Neighbors with the same kernel become one."""
    found: list[Bucket] = []
    for each in buckets:
        if found and found[-1].kernel == each.kernel:
            found[-1] = Bucket(found[-1].first, each.last, each.kernel)
        else:
            found.append(each)
    return tuple(found)


def ranges_of(
    buckets: Sequence[Bucket], sizes: Sequence[int], least: int, most: int
) -> tuple[tuple[int, int], ...]:
    """The first and the last size of each bucket: a border lies half way between two measured sizes, on a logarithmic scale."""
    ends = [math.isqrt(sizes[each.last] * sizes[each.last + 1]) for each in buckets[:-1]]
    starts = [least, *(end + 1 for end in ends)]
    return tuple(zip(starts, [*ends, most], strict=True))

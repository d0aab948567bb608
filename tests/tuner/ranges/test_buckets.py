"""Buckets of sizes, by the times of each kernel at each size."""

from __future__ import annotations

import itertools
import math
import random

from dispatch_profiler.tuner.ranges.buckets import (
    BUCKET_GAIN,
    LAYOUT_GAIN,
    MOST_BUCKETS,
    Bucket,
    best_buckets,
    ranges_of,
)


def test_one_kernel_that_is_the_fastest_everywhere_is_one_bucket():
    assert best_buckets([[2.0, 4.0, 8.0], [1.0, 2.0, 4.0]], "aa") == (Bucket(0, 2, 1),)


def test_of_equally_fast_kernels_the_first_is_chosen():
    assert best_buckets([[1.0, 1.0], [1.0, 1.0]], "aa") == (Bucket(0, 1, 0),)


def test_kernels_that_win_at_different_sizes_are_buckets():
    seconds = [[1.0, 1.0, 9.0, 9.0], [2.0, 2.0, 3.0, 3.0]]
    assert best_buckets(seconds, "ab") == (Bucket(0, 1, 0), Bucket(2, 3, 1))


def test_another_bucket_has_to_gain_more_than_its_cost():
    sizes, gain = 4, (1.0 + BUCKET_GAIN) ** 4
    for factor, count in ((0.99, 1), (1.01, 2)):
        # All of the gain is at one size: it is its mean over all sizes that counts.
        seconds = [[1.0] * sizes, [1.0 / (gain * factor), *[10.0] * (sizes - 1)]]
        assert len(best_buckets(seconds, "aa")) == count


def test_another_layout_has_to_gain_more_than_another_bucket():
    both = (1.0 + BUCKET_GAIN) * (1.0 + LAYOUT_GAIN)
    for factor, layouts, count in ((1.0, "aa", 2), (1.0, "ab", 1), (both, "ab", 2)):
        gain = ((1.0 + BUCKET_GAIN) * 1.01 * factor) ** 2
        seconds = [[1.0, 1.0], [1.0 / gain, 10.0]]
        assert len(best_buckets(seconds, layouts)) == count


def test_no_choice_of_three_buckets_is_better():
    """Compared with all choices of a kernel for each size."""
    draw = random.Random(3)
    for _ in range(5):
        seconds = [[draw.uniform(1.0, 2.0) for _ in range(5)] for _ in range(3)]
        found = best_buckets(seconds, "aab")
        kernels = [each.kernel for each in found for _ in range(each.first, each.last + 1)]
        assert cost(seconds, kernels) <= 1e-9 + min(
            cost(seconds, choice)
            for choice in itertools.product(range(3), repeat=5)
            if len(list(itertools.groupby(choice))) <= MOST_BUCKETS
        )


def cost(seconds: list[list[float]], kernels: object) -> float:
    chosen = list(kernels)  # type: ignore[call-overload]
    buckets = len(list(itertools.groupby(chosen))) - 1
    layouts = len({"aab"[each] for each in chosen}) - 1
    each = buckets * math.log(1.0 + BUCKET_GAIN) + layouts * math.log(1.0 + LAYOUT_GAIN)
    return len(chosen) * each + sum(math.log(seconds[at][size]) for size, at in enumerate(chosen))


def test_ranges_cover_all_sizes_once():
    buckets = (Bucket(0, 1, 0), Bucket(2, 2, 1), Bucket(3, 4, 0))
    ranges = ranges_of(buckets, (1, 9, 64, 513, 4096), 1, 4096)
    assert ranges == ((1, 24), (25, 181), (182, 4096))

"""What samples say of the value that they were drawn around, whatever their distribution is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache


def quantile(samples: Sequence[float], part: float) -> float:
    """The value below which `part` (0 to 1) of `samples` lie, interpolated between neighbours.

    Hyndman and Fan's definition 7, which numpy and most others use.
    """
    ordered = sorted(samples)
    position = part * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of the median by order statistics: it assumes nothing of the distribution.

    Below 6 samples, min and max do not reach 95 % (n samples reach 1 - 2**(1-n)); they are the answer
    all the same. Source: David and Nagaraja, "Order Statistics", 7.1.
    """
    ordered = sorted(samples)
    rank = _rank(len(ordered), confidence)
    return ordered[rank], ordered[-1 - rank]


@cache
def _rank(count: int, confidence: float) -> int:
    """The largest r such that samples r and count - 1 - r (from 0, in order) enclose the median.

    P(median below sample r) = P(Binomial(count, 1/2) <= r) must be at most (1 - confidence) / 2.
    """
    # Whole numbers of 2**count: for a thousand samples no float holds them.
    allowed = int(Fraction((1.0 - confidence) / 2.0) * 2**count)
    rank, below = 0, 1
    while rank + 1 <= (count - 1) // 2:
        below += math.comb(count, rank + 1)
        if below > allowed:
            break
        rank += 1
    return rank

"""Calculations with intervals and counts; no clock, no device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A median with its 95 % confidence interval, in any unit."""

    median: float
    low: float
    high: float

    def overlaps(self, other: Figure) -> bool:
        """Do the intervals have a value in common?"""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Rate:
    """Figures per second, and the relative half-width of their intervals."""

    per_second: float
    half_width: float


def rate_ratio(ours: Rate, theirs: Rate) -> float:
    """Our rate as a multiple of theirs, at equal information.

    An interval half as wide takes four times the samples, so a rate is weighted by the inverse square of the
    width. 60 a minute to within 2 % against 10 a minute to within 1 %: 6 / 4 = 1.5.
    """
    return ours.per_second / theirs.per_second * (theirs.half_width / ours.half_width) ** 2


def overlapping(one: Mapping[str, Figure], other: Mapping[str, Figure]) -> float:
    """Percent of the names in both whose intervals overlap."""
    both = one.keys() & other.keys()
    return 100 * sum(one[name].overlaps(other[name]) for name in both) / len(both)


def kendall_tau(one: Mapping[str, Figure], other: Mapping[str, Figure]) -> tuple[float, int]:
    """Kendall's tau over the pairs whose intervals are disjoint in either run, and the number of such pairs.

    0 if there are none: then the ranks are unknown.
    """
    agree = pairs = 0
    for left, right in itertools.combinations(sorted(one.keys() & other.keys()), 2):
        if all(run[left].overlaps(run[right]) for run in (one, other)):
            continue
        pairs += 1
        signs = [run[left].median < run[right].median for run in (one, other)]
        agree += signs[0] == signs[1]
    return (2 * agree - pairs) / max(1, pairs), pairs


def allowed(trials: int, rate: float, risk: float = 0.02) -> int:
    """The fewest failures in `trials` that a true failure `rate` exceeds with a probability below `risk`.

    Few trials cannot show a small rate: one failure in eight is 12.5 %, even if the true rate is 2 %.
    """
    at_most = 0.0
    for failures in range(trials + 1):
        at_most += math.comb(trials, failures) * rate**failures * (1 - rate) ** (trials - failures)
        if 1 - at_most < risk:
            return failures
    return trials

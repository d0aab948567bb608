"""Confidence intervals of the centre of samples, for any distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache

import numpy as np

#: The minimum and maximum of six samples enclose the median with 95 % confidence, the minimum and maximum of five do not. Of
#: sixteen samples, three on either side may be left out, so the interval tolerates as many outliers.
_MIN_PLACES = 6
_MIN_BATCHES = 6
#: Autocorrelation cannot be detected in fewer samples.
_MIN_SERIES = 10


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
    """Confidence interval of the median by order statistics; it assumes nothing about the distribution.

    With few samples, even the minimum and maximum do not reach `confidence` (n samples reach
    1 - 2**(1-n)). The interval is then extended to Student's where that is wider. With one sample, nothing is
    known: both ends are infinite. Source: David and Nagaraja, "Order Statistics", 7.1.
    """
    return _enclosing(samples, _rank(len(samples), confidence), confidence)


def series_interval(samples: Sequence[float] | np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """`median_interval` of autocorrelated samples, in the order taken.

    Their effective sample size is their number divided by their `dependence`. The interval leaves out the
    same fraction of the samples as for that many independent samples.
    """
    count = len(samples)
    independent = max(1, math.floor(count / dependence(samples)))
    left_out = _rank(independent, confidence) * count // independent
    return _enclosing(samples, min(left_out, (count - 1) // 2), confidence)


def batched_interval(
    samples: Sequence[float], places: Sequence[int], batches: Sequence[int]
) -> tuple[float, float]:
    """95 % confidence interval of the median of samples taken in several batches, over time and over places.

    `batches` is the number of samples in each batch, in order; for `places` see `by_place`. Samples of one
    batch share the state of the machine, so with six or more batches the interval is computed from the batch
    medians. With fewer, or if `batches` is empty, it encloses `series_interval` of the samples and of their
    medians by place.
    """
    medians = by_batch(samples, batches)
    if medians:
        return median_interval(medians)
    over_time, over_places = series_interval(samples), series_interval(by_place(samples, places))
    return min(over_time[0], over_places[0]), max(over_time[1], over_places[1])


def by_batch(samples: Sequence[float], batches: Sequence[int]) -> tuple[float, ...]:
    """The medians of the sample batches, in order; empty if there are fewer than six."""
    medians = tuple(statistics.median(each) for each in _parts(samples, batches) if each)
    return medians if len(medians) >= _MIN_BATCHES else ()


def _parts(samples: Sequence[float], counts: Sequence[int]) -> Iterator[Sequence[float]]:
    begin = 0
    for count in counts:
        yield samples[begin : begin + count]
        begin += count


def signed_rank_interval(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """The Hodges-Lehmann estimate of the centre of `values`, and both ends of its confidence interval.

    The estimate is the median of the means of all pairs, including each value with itself. The ends are
    the outermost of these means that Wilcoxon's signed rank test retains; infinite if there are too few
    values. Nearly a third of the values may be outliers (Hollander, Wolfe and Chicken, "Nonparametric
    Statistical Methods", 3.1 to 3.3).
    """
    ordered = np.asarray(values, dtype=float)
    first, second = np.triu_indices(len(ordered))
    means = np.sort((ordered[first] + ordered[second]) / 2.0)
    centre = float(np.median(means))
    # P(W <= left_out) is at most half of the error probability; W is the sum of the positive ranks.
    left_out = int(np.searchsorted(signed_rank_cdf(len(ordered)), (1.0 - confidence) / 2.0, side="right")) - 1
    if left_out < 0:
        return centre, -math.inf, math.inf
    return centre, float(means[left_out]), float(means[-1 - left_out])


@cache
def signed_rank_cdf(count: int) -> np.ndarray:
    """Exact P(W <= w) for w = 0, 1, ... and `count` ranks, each positive with probability 1/2."""
    mass = np.zeros(count * (count + 1) // 2 + 1)
    mass[0] = 1.0
    for rank in range(1, count + 1):
        mass[rank:] = (mass[rank:] + mass[:-rank]) / 2.0  # the right side is computed before it is stored
        mass[:rank] /= 2.0
    return np.cumsum(mass)


def by_place(samples: Sequence[float], places: Sequence[int]) -> tuple[float, ...]:
    """The median of the samples of each place, in order of first appearance.

    Samples of one place share its effect, so each place counts once. Fewer than six places give no
    interval, so every sample counts, as if places had no effect. `places` is the place of each sample;
    empty if unknown.
    """
    found: dict[int, list[float]] = {}
    for sample, place in zip(samples, places, strict=bool(places)):
        found.setdefault(place, []).append(sample)
    if len(found) < _MIN_PLACES or len(found) == len(samples):
        return tuple(samples)
    return tuple(statistics.median(each) for each in found.values())


def _enclosing(
    samples: Sequence[float] | np.ndarray, left_out: int, confidence: float
) -> tuple[float, float]:
    ordered = sorted(map(float, samples))
    count = len(ordered)
    if count == 1:
        return -math.inf, math.inf
    low, high = ordered[left_out], ordered[-1 - left_out]
    if 2.0 ** (1 - count) <= 1.0 - confidence:
        return low, high
    median = statistics.median(ordered)
    reach = student_reach(confidence, count - 1) * statistics.stdev(ordered) / math.sqrt(count)
    return min(low, median - reach), max(high, median + reach)


def dependence(series: Sequence[float] | np.ndarray) -> float:
    """The factor by which the variance of the median exceeds its variance for independent samples; at least 1.

    1 + 2 * the sum of the autocorrelations of sign(x - median), which determine the variance of a median
    (Sen, J. Multivariate Analysis 2, 1972), summed by the initial monotone sequence estimator (Geyer,
    Statistical Science 7, 1992). 1 if there are too few samples to detect any.
    """
    count = len(series)
    signs = np.sign(np.asarray(series, dtype=float) - np.median(series))
    power = float(signs @ signs)
    if count < _MIN_SERIES or power == 0.0:
        return 1.0
    correlations = [float(signs[lag:] @ signs[: count - lag]) / power for lag in range(count // 2)]
    total, last = 0.0, math.inf
    for even, odd in zip(correlations[::2], correlations[1::2], strict=False):
        last = min(last, even + odd)
        if last <= 0.0:
            break
        total += last
    return max(1.0, 2.0 * total - 1.0)


@cache
def _rank(count: int, confidence: float) -> int:
    """The largest r such that samples r and count - 1 - r (from 0, in order) enclose the median.

    P(median below sample r) = P(Binomial(count, 1/2) <= r) must be at most (1 - confidence) / 2.
    """
    # Integers in units of 2**-count: a float overflows at a thousand samples.
    allowed = int(Fraction((1.0 - confidence) / 2.0) * 2**count)
    rank, below = 0, 1
    while rank + 1 <= (count - 1) // 2:
        below += math.comb(count, rank + 1)
        if below > allowed:
            break
        rank += 1
    return rank


# -- student ---------------------------------------------------------------------------------------

# Student's t distribution, without importing scipy, which takes half a second.


#: Halvings of (0, pi/2) after which a float no longer changes.
_HALVINGS = 60


@cache
def student_reach(confidence: float, freedom: int) -> float:
    """The t for which |T| stays below t with probability `confidence` (0 to below 1).

    `freedom` is the number of degrees of freedom, at least 1: one less than the samples of a mean.
    `student_reach(0.95, 4)` -> 2.776
    """
    low, high = 0.0, math.pi / 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) * tan(angle)).

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    is_odd = freedom % 2
    cosine = math.cos(angle)
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(2 + is_odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    part = math.sin(angle) * total
    return 2.0 / math.pi * (angle + part) if is_odd else part

"""How much faster the entries of a library make their problems: than the compiler's default, and than untuned launches.

    comparison of an entry with the fastest untuned configuration x times of the search -> speedup over any untuned one

A launch without an entry runs the kernel that rules choose, else the fastest known form, else the compiler's default. So
an entry may be much faster than the compiler's default, and yet what a launch runs anyway: both speedups are stated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations import Configuration, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Estimate
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.targets import Target, fastest_form, untuned_kernels
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation

#: The speedup over itself.
SAME = Estimate(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class EntrySpeedups:
    """The speedups of an entry over the compiler's default, and over a launch without the entry; None if unknown."""

    over_default: Estimate | None
    over_launch: Estimate | None

    @property
    def is_launched_anyway(self) -> bool:
        """Whether a launch without the entry runs the same configuration."""
        return self.over_launch == SAME


def launched(dispatch: Dispatch, target: Target) -> Configuration:
    """What a launch runs without an entry, for a constant weight if the configuration of `dispatch` packs it."""
    operation, packs = dispatch.operation, dispatch.configuration.packs_weight
    ruled = next(iter(untuned_kernels(operation, target, packs_weight=packs)), None)
    return ruled or fastest_form(operation, target, packed_weights=packs) or Default()


def entry_speedups(
    dispatch: Dispatch, reference: str, speedup: Estimate, evaluations: Sequence[Evaluation], target: Target
) -> EntrySpeedups:
    """The speedups of the entry `dispatch`, which is `speedup` times as fast as the configuration named `reference`.

    `evaluations` are those of its search: their ratios lead from `reference` to other configurations.
    """

    def over(base: Configuration) -> Estimate | None:
        if base == dispatch.configuration:
            return SAME
        return _product(search_ratio(evaluations, base.name, reference), speedup)

    return EntrySpeedups(over(Default()), over(launched(dispatch, target)))


def search_ratio(evaluations: Iterable[Evaluation], slow: str, fast: str) -> Estimate | None:
    """The time of the configuration named `slow`, relative to the one named `fast`; None if a time is unknown."""
    if slow == fast:
        return SAME
    times = {each.configuration.name: each.record.measurement for each in evaluations if each.milliseconds}
    one, other = times.get(slow), times.get(fast)
    return None if one is None or other is None or other.median_ms <= 0.0 else ratio_of(one, other)


def ratio_of(slow: Measurement, fast: Measurement) -> Estimate:
    """The ratio of two separate measurements: the interval has all ratios of their 95 % intervals."""
    (slow_low, slow_high), (fast_low, fast_high) = slow.interval_ms, fast.interval_ms
    value = slow.median_ms / fast.median_ms
    low = slow_low / fast_high if fast_high else 0.0
    high = slow_high / fast_low if fast_low else math.inf
    return Estimate(value, min(low, value), max(high, value))


def _product(one: Estimate | None, other: Estimate) -> Estimate | None:
    """The product of independent estimates, with an interval of the logarithms' errors combined."""
    if one is None or one.value <= 0.0 or other.value <= 0.0:
        return None
    value = one.value * other.value
    below = math.hypot(*(_log(each.value) - _log(each.low) for each in (one, other)))
    above = math.hypot(*(_log(each.high) - _log(each.value) for each in (one, other)))
    return Estimate(value, value * math.exp(-below), value * math.exp(above))


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf

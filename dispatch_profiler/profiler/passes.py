"""Measurements of one dispatch that were taken at different times, made into one.

Noise of a machine comes in spells: minutes in which a neighbour has half of a core, or the clock is
lower. Within one of them samples agree with each other and tell nothing of it. So every dispatch is
measured in two passes, the others of its operation in between, and what both say must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dispatch_profiler.profiler.measure import Measurement, MeasureOptions

#: Passes whose medians differ by less are of the same machine.
_APART = 0.05


def first_pass(options: MeasureOptions) -> MeasureOptions:
    """Half of what `options` ask for."""
    stop = options.stop
    count = None if stop.count is None else -(-stop.count // 2)
    return replace(options, stop=replace(stop, count=count, seconds=stop.seconds / 2.0))


def later_pass(options: MeasureOptions, before: Measurement) -> MeasureOptions | None:
    """The other half, in samples as long as those before; None if nothing is left to take."""
    stop = options.stop
    count = None if stop.count is None else stop.count // 2
    if count == 0 or _is_long(before, options):
        return None
    return replace(
        options, stop=replace(stop, count=count, seconds=stop.seconds / 2.0), batch=before.executions
    )


def _is_long(before: Measurement, options: MeasureOptions) -> bool:
    """Did three samples take all the time that there is?"""
    taken = sum(before.samples_ms) * before.executions / 1e3
    return options.stop.count is None and len(before.samples_ms) <= 3 and taken >= options.stop.seconds


def agree(one: Measurement, other: Measurement) -> bool:
    """Are these of the same machine?"""
    low, high = sorted((one, other), key=lambda each: each.median_ms)
    if high.median_ms <= (1.0 + _APART) * low.median_ms:
        return True
    return high.interval_ms[0] <= low.interval_ms[1]


def joined(passes: Sequence[Measurement]) -> Measurement:
    """All samples of passes, in the order taken; with a warning if the passes do not agree."""
    warnings = dict.fromkeys(warning for each in passes for warning in each.warnings)
    if not all(agree(passes[0], each) for each in passes[1:]):
        medians = ", ".join(f"{each.median_ms:.4g}" for each in passes)
        warnings[f"it took {medians} ms at different times"] = None
    last = passes[-1]
    return replace(
        last,
        samples_ms=tuple(sample for each in passes for sample in each.samples_ms),
        overhead_ms=min(each.overhead_ms for each in passes),
        warnings=tuple(warnings),
        dropped_ms=tuple(sample for each in passes for sample in each.dropped_ms),
    )


def confirmed(first: Measurement, second: Measurement, third: Measurement) -> Measurement:
    """Of two passes that do not agree, the faster if a third says the same: noise only adds.

    The samples of the slower are dropped then. Without such a witness all three count, with a warning.
    """
    slower, faster = sorted((first, second), key=lambda each: -each.median_ms)
    if not agree(faster, third):
        return joined((first, second, third))
    found = joined((faster, third))
    return replace(found, dropped_ms=(*found.dropped_ms, *slower.dropped_ms, *slower.samples_ms))

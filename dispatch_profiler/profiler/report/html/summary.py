"""The summary of a report: best configurations compared with the default and each library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatch_profiler.profiler.records.speedup import speed_ratio
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry, provider_names
from dispatch_profiler.profiler.statistics.comparison import Ratio, geometric_mean


@dataclass(frozen=True)
class Versus:
    """Best configurations vs. one baseline, over the `operations` of one run that measured both.

    `mean` is the geometric mean of the speedups with its 95 % interval. An operation is `faster` or
    `slower` if the whole interval of its speedup is above or below 1, else `unclear`.
    """

    baseline: str
    run: str
    operations: int
    mean: Ratio
    faster: int
    unclear: int
    slower: int


def summary(groups: Sequence[Group]) -> list[Versus]:
    """For each run, the default first, then each library."""
    baselines: list[tuple[str, Callable[[Group], ReportEntry | None]]] = [
        ("default", lambda group: group.default)
    ]
    baselines += [
        (name, lambda group, name=name: group.providers.get(name))  # type: ignore[misc]
        for name in provider_names(groups)
    ]
    runs = dict.fromkeys(group.setting for group in groups)
    found = (
        _versus(name, run, [group for group in groups if group.setting == run], of)
        for run in runs
        for name, of in baselines
    )
    return [each for each in found if each is not None]


def _versus(
    baseline: str, run: str, groups: Sequence[Group], of: Callable[[Group], ReportEntry | None]
) -> Versus | None:
    pairs = [(group.best, of(group)) for group in groups]
    ratios = [speed_ratio(best.record, base.record) for best, base in pairs if best and base]
    speedups = [ratio for ratio in ratios if ratio is not None]
    mean = geometric_mean(speedups)
    if mean is None:
        return None
    faster = sum(each.low > 1.0 for each in speedups)
    slower = sum(each.high < 1.0 for each in speedups)
    return Versus(baseline, run, len(speedups), mean, faster, len(speedups) - faster - slower, slower)

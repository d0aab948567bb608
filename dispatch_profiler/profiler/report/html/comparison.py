"""Speedups over the default: one row per operation, with the best configuration and the libraries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dispatch_profiler.profiler.records.speedup import speed_ratio
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry, provider_names
from dispatch_profiler.profiler.report.html.style import (
    BEST_COLOUR,
    DEFAULT_COLOUR,
    OTHER_COLOUR,
    PAPER,
    Figure,
    plain,
    provider_style,
    rows_height,
    rows_layout,
    scale,
)

#: Maximum number of rows in a figure; the table has all.
ROWS = 40


def comparison(groups: Sequence[Group]) -> Figure | None:
    """Speedups over the compiler's default, the largest first.

    Shows at most `ROWS` operations whose default has a speed. None if there is nothing to compare.
    """
    chosen = sorted(comparable(groups), key=lambda g: _speed(g, g.best), reverse=True)[:ROWS]
    if not chosen:
        return None
    traces = [_gains(chosen), _dots("default", DEFAULT_COLOUR, "circle", chosen, [g.default for g in chosen])]
    for position, name in enumerate(provider_names(groups)):
        colour, symbol = provider_style(position)
        traces.append(_dots(name, colour, symbol, chosen, [g.providers.get(name) for g in chosen]))
    traces.append(_best(chosen))
    speeds = [value for trace in traces for value in trace["x"] if value is not None]
    bars = traces[-1]["error_x"]
    best = traces[-1]["x"]
    speeds += [at + above for at, above in zip(best, bars["array"], strict=True)]
    speeds += [at - below for at, below in zip(best, bars["arrayminus"], strict=True)]
    x = {"title": "speedup over the default", **scale(speeds)}
    height = rows_height(len(chosen), each=20)
    return {"data": traces, "layout": rows_layout(x, [g.label for g in chosen], height=height)}


def comparable(groups: Sequence[Group]) -> list[Group]:
    """Groups in which the default and at least one other entry have a speed."""
    return [group for group in groups if group.default is not None and len(group.ranked) > 1]


def _speed(group: Group, entry: ReportEntry | None) -> float:
    assert group.default is not None and entry is not None
    return group.default.median_ms / entry.median_ms


def _best(groups: Sequence[Group]) -> dict[str, Any]:
    """The best of each group, with the 95 % interval of its speedup."""
    dots = _dots("best", BEST_COLOUR, "diamond", groups, [group.best for group in groups])
    ratios = [
        speed_ratio(group.best.record, group.default.record) if group.best and group.default else None
        for group in groups
    ]
    known = [each if each and each.low > 0.0 and each.high < math.inf else None for each in ratios]
    above = [each.high - each.value if each else 0.0 for each in known]
    below = [each.value - each.low if each else 0.0 for each in known]
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return {**dots, "error_x": {**bars, "color": BEST_COLOUR, "thickness": 1.5, "width": 4}}


def _gains(groups: Sequence[Group]) -> dict[str, Any]:
    """A line from the default to the best in each row."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, group in enumerate(groups):
        x += [1.0, _speed(group, group.best), None]
        y += [row, row, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": OTHER_COLOUR, "width": 2},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _dots(
    name: str, colour: str, symbol: str, groups: Sequence[Group], entries: Sequence[ReportEntry | None]
) -> dict[str, Any]:
    shown = [
        (row, group, entry) for row, (group, entry) in enumerate(zip(groups, entries, strict=True)) if entry
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "x": [_speed(group, entry) for _, group, entry in shown],
        "y": [row for row, _, _ in shown],
        "customdata": [entry.index for _, _, entry in shown],
        "marker": {"color": colour, "symbol": symbol, "size": 9, "line": {"width": 0.5, "color": PAPER}},
        "hovertemplate": "%{text}<extra></extra>",
    }

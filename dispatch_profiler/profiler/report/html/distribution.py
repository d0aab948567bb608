"""All samples of all configurations of one operation, with the medians and their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatch_profiler.profiler.records.record import PROVIDER
from dispatch_profiler.profiler.records.speedup import is_default
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry
from dispatch_profiler.profiler.report.html.style import (
    BEST_COLOUR,
    DEFAULT_COLOUR,
    INK,
    OTHER_COLOUR,
    Figure,
    provider_style,
    rows_height,
    rows_layout,
    scale,
)

#: Maximum number of rows in a figure; the table has all.
ROWS = 40
#: On a logarithmic axis, intervals end at this part of the shortest sample.
_BELOW = 0.8


def distribution(group: Group, providers: Sequence[str] = ()) -> Figure | None:
    """A dot for each sample and a line for the median's interval, the fastest configuration on top.

    The trace's `meta` names the records and their rows, so that a page with the records need not store the
    samples twice. `providers` are the providers of the whole report, so that each has the same colour
    everywhere. None if no entry has a speed.
    """
    shown = group.ranked[:ROWS]
    if not shown:
        return None
    labels = [_label(entry, group.best) for entry in shown]
    colours = [_colour(entry, group, list(providers)) for entry in shown]
    samples = _samples(shown, colours)
    left_out = len(group.ranked) - len(shown)
    more = f"<br>{left_out} slower ones are only in the table" if left_out else ""
    x = {"title": f"time per execution (ms){more}", **scale(samples["x"])}
    # A logarithmic axis has no place for an interval that begins at 0.
    least = _BELOW * min(samples["x"]) if x.get("type") == "log" else 0.0
    shape = rows_layout(x, labels, height=rows_height(len(shown)) - 40, legend=False)
    return {"data": [samples, _medians(shown, least)], "layout": shape}


def _label(entry: ReportEntry, best: ReportEntry | None) -> str:
    record = entry.record
    name = record.configuration if record.provider == PROVIDER else record.provider
    name = name.removeprefix("tile_config_")
    return f"{name} (best)" if entry == best and not is_default(record) else name


def _colour(entry: ReportEntry, group: Group, providers: list[str]) -> str:
    if entry.record.provider != PROVIDER:
        known = entry.record.provider in providers
        return provider_style(providers.index(entry.record.provider) if known else 0)[0]
    if is_default(entry.record):
        return DEFAULT_COLOUR
    return BEST_COLOUR if entry == group.best else OTHER_COLOUR


def _samples(entries: list[ReportEntry], colours: list[str]) -> dict[str, Any]:
    samples = [entry.record.measurement.samples_ms for entry in entries if entry.record.measurement]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [sample for each in samples for sample in each],
        "y": [row for row, each in enumerate(samples) for _ in each],
        "marker": {
            "color": [colours[row] for row, each in enumerate(samples) for _ in each],
            "size": 6,
            "opacity": 0.55,
        },
        "meta": {"samples_of": [entry.index for entry in entries], "colours": colours},
        "hovertemplate": "%{x:.6~g} ms<extra></extra>",
    }


def _medians(entries: list[ReportEntry], least: float) -> dict[str, Any]:
    """The medians with their intervals, of which nothing below `least` is drawn."""
    medians = [entry.median_ms for entry in entries]
    measured = [entry.record.measurement for entry in entries if entry.record.measurement]
    # The interval of a single sample is unknown, and has no bar.
    intervals = [each.interval_ms if each.has_interval else (each.median_ms,) * 2 for each in measured]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": medians,
        "y": list(range(len(entries))),
        "customdata": [entry.index for entry in entries],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - at for (_, high), at in zip(intervals, medians, strict=True)],
            "arrayminus": [at - max(low, least) for (low, _), at in zip(intervals, medians, strict=True)],
            "color": INK,
            "thickness": 1.5,
            "width": 4,
        },
        "marker": {"symbol": "line-ns-open", "size": 12, "color": INK, "line": {"width": 2}},
        "hovertemplate": "%{text}<extra></extra>",
    }

"""Speed over problem size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry, provider_names
from dispatch_profiler.profiler.report.html.roofline import element_type
from dispatch_profiler.profiler.report.html.style import (
    BEST_COLOUR,
    DEFAULT_COLOUR,
    SYMBOLS,
    Figure,
    layout,
    log_scale,
    plain,
    provider_style,
)

#: Unit of size -> title of the axis, and function that returns a record's size.
SIZES: Mapping[str, tuple[str, Callable[[StoredRecord], int]]] = {
    "FLOP": ("problem size (FLOP)", lambda record: record.flops),
    "bytes": ("problem size (bytes of all operands and results)", lambda record: record.bytes),
}
_DASHES = ("solid", "dash", "dot", "dashdot")


def scaling(groups: Sequence[Group]) -> dict[str, dict[str, Figure]]:
    """A figure for each kind of operation with an element type, and each of `SIZES`.

    A series is the default, the best configuration, or a library; one per run if there are several.
    """
    names = provider_names(groups)
    panels: dict[str, list[Group]] = {}
    for group in groups:
        if group.ranked:
            panels.setdefault(_panel(group.ranked[0].record), []).append(group)
    figures: dict[str, dict[str, Figure]] = {}
    for panel, members in panels.items():
        for size, (title, measure) in SIZES.items():
            figure = _figure(members, names, title, measure)
            if figure is not None:
                figures.setdefault(panel, {})[size] = figure
    return figures


def _panel(record: StoredRecord) -> str:
    kind = record.op_kind.removeprefix("OperationKind.")
    return f"{kind}, {element_type(record)}".removesuffix(", ")


def _figure(
    groups: Sequence[Group], names: Sequence[str], title: str, size: Callable[[StoredRecord], int]
) -> Figure | None:
    runs = list(dict.fromkeys(group.setting for group in groups))
    traces = []
    for at, run in enumerate(runs):
        members = [group for group in groups if group.setting == run]
        for role, colour, entries in _series(members, names):
            points = sorted((size(e.record), e.gflops, e.index) for e in entries if size(e.record) > 0)
            points = [point for point in points if point[1] > 0]
            if points:
                traces.append(_trace(f"{role} ({run})" if len(runs) > 1 else role, colour, at, points))
    if not traces:
        return None
    x = {"title": title, **log_scale(value for trace in traces for value in trace["x"])}
    y = {"title": "speed (GFLOP/s)", **log_scale(value for trace in traces for value in trace["y"])}
    return {"data": traces, "layout": layout(x, y, height=420)}


def _series(groups: Sequence[Group], names: Sequence[str]) -> Iterator[tuple[str, str, list[ReportEntry]]]:
    """Role, colour and entries of each series; later ones are drawn on top."""
    for at, name in enumerate(names):
        yield name, provider_style(at)[0], [g.providers[name] for g in groups if name in g.providers]
    yield "default", DEFAULT_COLOUR, [g.default for g in groups if g.default]
    yield "best", BEST_COLOUR, [g.best for g in groups if g.best]


def _trace(name: str, colour: str, run: int, points: Sequence[tuple[int, float, int]]) -> dict[str, Any]:
    x, y, indices = zip(*points, strict=True)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": x,
        "y": y,
        "customdata": indices,
        "line": {"color": colour, "width": 1, "dash": _DASHES[run % len(_DASHES)]},
        "marker": {"color": colour, "symbol": SYMBOLS[run % len(SYMBOLS)], "size": 7},
        "hovertemplate": "%{text}<extra></extra>",
    }

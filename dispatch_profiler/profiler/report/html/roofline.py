"""Roofline: speed over arithmetic intensity, below the hardware peaks.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dispatch_profiler.operations import ELEMENT_TYPES
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.record import PROVIDER, StoredRecord
from dispatch_profiler.profiler.records.speedup import is_default
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry, differing, provider_names
from dispatch_profiler.profiler.report.html.style import (
    BEST_COLOUR,
    DEFAULT_COLOUR,
    INK,
    OTHER_COLOUR,
    PAPER,
    ROOF_COLOURS,
    SYMBOLS,
    Figure,
    layout,
    log_scale,
    plain,
    provider_style,
)

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_ELEMENT_TYPE = re.compile(r"[a-z]{1,2}\d+(?:E\d+M\d+[A-Z]*)?")


def element_type(record: StoredRecord) -> str:
    """The type of the first operand: `f16t` -> `f16`; empty if unknown."""
    for value in (record.arguments.get("lhs", ""), *record.arguments.values()):
        match = _ELEMENT_TYPE.match(value) if isinstance(value, str) else None
        if match and match.group() in ELEMENT_TYPES:
            return match.group()
    return ""


#: Machine name and device.
Place = tuple[str, str]


def _place(entry: ReportEntry) -> Place:
    return entry.record.provenance.machine.name, entry.record.provenance.device


def roofs(groups: Sequence[Group]) -> dict[Place, Peaks]:
    """The peaks of each device: the highest among its records."""
    highest: dict[Place, Peaks] = {}
    for group in groups:
        for entry in group.entries:
            if entry.record.peaks is not None:
                known = highest.get(_place(entry), entry.record.peaks)
                highest[_place(entry)] = known.best_of(entry.record.peaks)
    return highest


#: Legend entry of a provider's kernels other than the fastest of each operation.
_OTHERS = "other kernels of {}"


def roofline(groups: Sequence[Group]) -> Figure | None:
    """All records with a speed, grouped by role, below the roofs of their machine.

    Where there is no roof, a dash marks the time limit of each operation.
    None if there is nothing to draw.
    """
    entries = [e for g in groups for e in g.entries if e.has_speed and e.intensity > 0 and e.gflops > 0]
    if not entries:
        return None
    types = list(dict.fromkeys(element_type(entry.record) for entry in entries))
    symbols = {name: SYMBOLS[i % len(SYMBOLS)] for i, name in enumerate(types)}
    known = roofs(groups)
    traces = [*_roof_lines(known, symbols, entries), *_limits(entries, known)]
    traces += _points(groups, symbols)
    if len(types) > 1:
        traces += [_key(name, symbols[name]) for name in types]
    x = {"title": "arithmetic intensity (FLOP/byte)", **log_scale(_drawn(traces, "x"))}
    y = {"title": "speed (GFLOP/s)", **log_scale(_drawn(traces, "y"))}
    return {"data": traces, "layout": layout(x, y, height=460)}


def _drawn(traces: Sequence[dict[str, Any]], axis: str) -> list[float]:
    return [value for trace in traces for value in trace[axis] if value is not None]


def _points(groups: Sequence[Group], symbols: Mapping[str, str]) -> list[dict[str, Any]]:
    roles: dict[str, list[ReportEntry]] = {"other configurations": [], "default": [], "best": []}
    colours = {"other configurations": OTHER_COLOUR, "default": DEFAULT_COLOUR, "best": BEST_COLOUR}
    for position, name in enumerate(provider_names(groups)):
        for role in (_OTHERS.format(name), f"provider {name}"):
            roles[role], colours[role] = [], provider_style(position)[0]
    for group in groups:
        best = {id(entry) for entry in (group.best, *group.providers.values())}
        for entry in group.ranked:
            if entry.intensity > 0 and entry.gflops > 0:
                roles[_role(entry, id(entry) in best)].append(entry)
    return [_trace(role, entries, colours[role], symbols) for role, entries in roles.items() if entries]


def _role(entry: ReportEntry, is_best: bool) -> str:
    provider = entry.record.provider
    if provider != PROVIDER:
        return f"provider {provider}" if is_best else _OTHERS.format(provider)
    if is_default(entry.record):
        return "default"
    return "best" if is_best else "other configurations"


def _trace(role: str, entries: list[ReportEntry], colour: str, symbols: Mapping[str, str]) -> dict[str, Any]:
    quiet = role.startswith("other ")
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(role.removeprefix("provider ")),
        "x": [entry.intensity for entry in entries],
        "y": [entry.gflops for entry in entries],
        "customdata": [entry.index for entry in entries],
        "marker": {
            "color": colour,
            "size": 5 if quiet else 9,
            "opacity": 0.7 if quiet else 0.9,
            "symbol": [symbols[element_type(entry.record)] for entry in entries],
            "line": {"width": 0 if quiet else 0.5, "color": PAPER},
        },
        "hovertemplate": "%{text}<extra></extra>",
    }


def _roof_lines(
    known: Mapping[Place, Peaks], symbols: Mapping[str, str], entries: Sequence[ReportEntry]
) -> list[dict[str, Any]]:
    """A line for each device and each element type measured on it, with a bend at its ridge point."""
    traces = []
    for place, peaks in known.items():
        here = [entry.record for entry in entries if _place(entry) == place]
        names = [
            name for name in symbols if name in ELEMENT_TYPES and any(element_type(r) == name for r in here)
        ]
        traces += [(place, name, peaks.flops_of(ELEMENT_TYPES[name]), peaks) for name in names]
    ridges = [flops / peaks.bytes_per_second for _, _, flops, peaks in traces]
    reach = [entry.intensity for entry in entries] + ridges
    parts = differing(list({_place(entry) for entry in entries}))
    lines = []
    for (place, name, flops, peaks), ridge in zip(traces, ridges, strict=True):
        where = ", ".join(part for part, differ in zip(place, parts, strict=True) if differ and part)
        text = f"{name} roof: {_short(flops / 1e9)} GFLOP/s, {_short(peaks.bytes_per_second / 1e9)} GB/s"
        bends = [min(reach) / 2, ridge, max(reach) * 2]
        colour = ROOF_COLOURS[list(known).index(place) % len(ROOF_COLOURS)]
        dash = _DASHES[list(symbols).index(name) % len(_DASHES)]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plain(f"{text} ({where})" if where else text),
                "x": bends,
                "y": [peaks.roof(ELEMENT_TYPES[name], bend) / 1e9 for bend in bends],
                "line": {"color": colour, "width": 1.5, "dash": dash},
                "hoverinfo": "name",
            }
        )
    return lines


def _limits(entries: Sequence[ReportEntry], known: Mapping[Place, Peaks]) -> list[dict[str, Any]]:
    """The speeds at `limit_ms`, once for each operation without a roof."""
    limited: dict[tuple[str, float], ReportEntry] = {}
    for entry in entries:
        if 0 < entry.record.limit_ms < math.inf and _place(entry) not in known:
            limited.setdefault((entry.record.operation, entry.record.limit_ms), entry)
    if not limited:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "hardware limit",
            "x": [entry.intensity for entry in limited.values()],
            "y": [entry.record.flops / entry.record.limit_ms / 1e6 for entry in limited.values()],
            "marker": {"symbol": "line-ew-open", "size": 12, "color": INK, "line": {"width": 1.5}},
            "hovertemplate": "hardware limit %{y:.4g} GFLOP/s<extra></extra>",
        }
    ]


def _key(name: str, symbol: str) -> dict[str, Any]:
    """The legend entry for an element type's symbol."""
    marker = {"symbol": symbol, "color": PAPER, "size": 8, "line": {"color": INK, "width": 1}}
    return {
        "type": "scatter", "mode": "markers", "name": plain(name or "unknown type"), "x": [None],
        "y": [None], "marker": marker, "hoverinfo": "skip",
    }  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


# -- scaling ---------------------------------------------------------------------------------------

# Speed over problem size.


#: Unit of size -> title of the axis, and function that returns a record's size.
SIZES: Mapping[str, tuple[str, Callable[[StoredRecord], int]]] = {
    "FLOP": ("problem size (FLOP)", lambda record: record.flops),
    "bytes": ("problem size (bytes of all operands and results)", lambda record: record.bytes),
}
_LINE_DASHES = ("solid", "dash", "dot", "dashdot")


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
                traces.append(
                    _scaling_trace(f"{role} ({run})" if len(runs) > 1 else role, colour, at, points)
                )
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


def _scaling_trace(
    name: str, colour: str, run: int, points: Sequence[tuple[int, float, int]]
) -> dict[str, Any]:
    x, y, indices = zip(*points, strict=True)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": x,
        "y": y,
        "customdata": indices,
        "line": {"color": colour, "width": 1, "dash": _LINE_DASHES[run % len(_LINE_DASHES)]},
        "marker": {"color": colour, "symbol": SYMBOLS[run % len(SYMBOLS)], "size": 7},
        "hovertemplate": "%{text}<extra></extra>",
    }

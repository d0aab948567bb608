"""Speed over tile sizes: which tiles are fast, and which fail. Each form of an operation has a map of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dispatch_profiler.profiler.records.record import PROVIDER
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry
from dispatch_profiler.profiler.report.html.style import (
    FAILURE_COLOUR,
    INK,
    Figure,
    layout,
    plain,
)

_NUMBERS = re.compile(r"\d+")
#: The label of configurations whose names begin with their tiles.
_TILES = "tiles"


def tile_axes(entries: Sequence[ReportEntry]) -> tuple[str, str] | None:
    """The two configuration fields with the most values: (horizontal, vertical).

    None if fewer than two fields vary.
    """
    values: dict[str, set[str]] = {}
    for entry in entries:
        for name, value in entry.record.configuration_fields.items():
            values.setdefault(name, set()).add(str(value))
    varied = sorted((name for name in values if len(values[name]) > 1), key=lambda name: -len(values[name]))
    return (varied[0], varied[1]) if len(varied) > 1 else None


def heat_maps(group: Group) -> dict[str, Figure]:
    """A heat map for each form whose tiles vary, by its label: first the form of the best configuration, then by size.

    The same tiles mean something else in another form, or in another kind of configuration.
    """
    forms: dict[str, list[ReportEntry]] = {}
    for entry in _tiled(group):
        forms.setdefault(_form(entry), []).append(entry)
    first = _form(group.best) if group.best else ""
    order = sorted(forms, key=lambda form: (form != first, -len(forms[form])))
    drawn = {form: _heat_map(forms[form]) for form in order}
    return {form: figure for form, figure in drawn.items() if figure is not None}


def _form(entry: ReportEntry) -> str:
    """`winograd`, `microkernel`, `dot microkernel`; `tiles` for tiles of the operation itself."""
    record = entry.record
    if form := record.configuration_fields.get("form", ""):
        return str(form).replace("_", " ")
    # The words before the tiles: `tile_config_dot_microkernel_64x128_6x16`.
    words = record.configuration.removeprefix("tile_config_").split("_")
    return " ".join(itertools.takewhile(lambda word: not word[:1].isdigit(), words)) or _TILES


def _heat_map(entries: Sequence[ReportEntry]) -> Figure | None:
    """A cell for each pair of tiles, coloured by the speed of the fastest configuration with these tiles.

    Cells in which every configuration failed have a cross; cells that were not tried are empty.
    None if fewer than two fields of the configurations vary.
    """
    axes = tile_axes(entries)
    if axes is None:
        return None
    cells: dict[tuple[str, str], list[ReportEntry]] = {}
    for entry in entries:
        fields = entry.record.configuration_fields
        if axes[0] in fields and axes[1] in fields:
            cells.setdefault((str(fields[axes[0]]), str(fields[axes[1]])), []).append(entry)
    columns = sorted({column for column, _ in cells}, key=_size)
    rows = sorted({row for _, row in cells}, key=_size)
    best = {place: _fastest(entries) for place, entries in cells.items()}
    traces = [trace for trace in (_failed(cells, best, columns, rows), _speeds(best, columns, rows)) if trace]
    x = {"title": _words(axes[0], columns), **_ticks(columns)}
    y = {"title": _words(axes[1], rows), **_ticks(rows)}
    shape = layout(x, y, height=130 + 30 * max(len(rows), 5), legend=False)
    shape["xaxis"]["showgrid"] = shape["yaxis"]["showgrid"] = False
    return {"data": traces, "layout": shape}


def _tiled(group: Group) -> list[ReportEntry]:
    """IREE's configurations that have tiles."""
    return [e for e in group.entries if e.record.configuration_fields and e.record.provider == PROVIDER]


def _fastest(entries: Sequence[ReportEntry]) -> ReportEntry | None:
    return min((e for e in entries if e.has_speed), key=lambda entry: entry.median_ms, default=None)


def _size(tiles: str) -> tuple[list[int], str]:
    """Sort key: `8x32` before `64x8`."""
    return [int(number) for number in _NUMBERS.findall(tiles)], tiles


def _words(name: str, values: Sequence[str]) -> str:
    unit = " (elements)" if any(_NUMBERS.search(value) for value in values) else ""
    return plain(name.replace("_", " ") + unit)


def _ticks(values: Sequence[str]) -> dict[str, Any]:
    labels = [plain(value) or "none" for value in values]
    return {"tickmode": "array", "tickvals": list(range(len(values))), "ticktext": labels}


def _speeds(
    best: Mapping[tuple[str, str], ReportEntry | None], columns: list[str], rows: list[str]
) -> dict[str, Any] | None:
    grid = [[best.get((column, row)) for column in columns] for row in rows]
    if not any(entry for line in grid for entry in line):
        return None
    speeds = [entry.gflops for line in grid for entry in line if entry]
    return {
        "type": "heatmap",
        # For equal speeds, plotly would choose a range that extends below 0.
        **({"zmin": 0.0, "zmax": max(speeds)} if max(speeds) - min(speeds) < 1e-3 * max(speeds) else {}),
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "z": [[entry.gflops if entry else None for entry in line] for line in grid],
        "customdata": [[entry.index if entry else None for entry in line] for line in grid],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": "GFLOP/s", "side": "right"}, "thickness": 14, "outlinewidth": 0},
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{z:.3~s}" if len(columns) <= 16 else "",
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
    }


def _failed(
    cells: Mapping[tuple[str, str], list[ReportEntry]],
    best: Mapping[tuple[str, str], ReportEntry | None],
    columns: list[str],
    rows: list[str],
) -> dict[str, Any] | None:
    places = [place for place, entry in best.items() if entry is None]
    if not places:
        return None
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "no speed",
        "x": [columns.index(column) for column, _ in places],
        "y": [rows.index(row) for _, row in places],
        "customdata": [cells[place][0].index for place in places],
        "marker": {
            "symbol": "x-thin-open",
            "size": 9,
            "color": INK,
            "line": {"width": 1.2, "color": INK},
        },
        "hovertemplate": "%{text}<extra></extra>",
        "hoverlabel": {"bgcolor": FAILURE_COLOUR},
    }

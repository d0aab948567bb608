"""The style of all figures: a palette for colour-vision deficiencies, a white background, thin grids.

A figure is plain data for plotly's JavaScript, `{"data": [...], "layout": {...}}`, because building
hundreds of plotly objects is slow. `plotly.graph_objects.Figure(figure)` validates it.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Figure = dict[str, Any]

# Okabe and Ito, "Color Universal Design" (2008), without yellow, which is hard to see on white.
DEFAULT_COLOUR = "#D55E00"
BEST_COLOUR = "#0072B2"
OTHER_COLOUR = "#9AA5B1"
INK = "#24292F"
_PROVIDER_COLOURS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PROVIDER_SYMBOLS = ("square", "triangle-up", "pentagon", "star", "hexagon")
#: By device.
ROOF_COLOURS = (INK, "#8250DF", "#1A7F37", "#953800")
#: By element type.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "pentagon")
PAPER = "#FFFFFF"
FAILURE_COLOUR = "#E4E7EB"
_GRID = "#E4E7EB"
_LINE = "#8C959F"
#: Colour -> its replacement on a dark background. Other colours are unchanged.
DARK = {
    PAPER: "#0D1117",
    INK: "#E6EDF3",
    _GRID: "#30363D",
    _LINE: "#6E7681",
    OTHER_COLOUR: "#7D8590",
    DEFAULT_COLOUR: "#FF8A3D",
    BEST_COLOUR: "#409CFF",
    "#009E73": "#2DC79B",
    "#CC79A7": "#E79CC6",
    "#56B4E9": "#A5D8FF",
    "#000000": "#FFFFFF",
    "#8250DF": "#BC9CFF",
    "#1A7F37": "#4AC26B",
    "#953800": "#FFA657",
}
#: Maximum length of a row's label, in characters, on a page of normal width and on a narrow one.
_WIDE, _NARROW = 42, 18
#: Digits of the ticks in a decade, the densest first, and the minimum distance of ticks in pixels.
_TICK_DIGITS = ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
_TICK_PIXELS = 34
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def plotly_script() -> Path:
    """plotly's JavaScript, unchanged from the npm package `plotly.js-cartesian-dist-min`.

    The full plotly is more than three times as large and would dominate the loading time.
    """
    return Path(__file__).parents[3] / "templates" / "plotly" / "plotly-cartesian.min.js"


def provider_style(position: int) -> tuple[str, str]:
    """The colour and symbol of the provider at `position`."""
    count = len(_PROVIDER_COLOURS)
    return _PROVIDER_COLOURS[position % count], _PROVIDER_SYMBOLS[position % count]


def layout(x: dict[str, Any], y: dict[str, Any], *, height: int, legend: bool = True) -> dict[str, Any]:
    """A plotly layout with these axes and the legend above the plot."""
    return {
        "height": height,
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "margin": {"l": 60, "r": 20, "t": 50 if legend else 16, "b": 58},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"},
        "hoverlabel": {"align": "left", "bgcolor": PAPER, "font": {"color": INK, "size": 12}},
        "hovermode": "closest",
        "xaxis": axis(**x),
        "yaxis": axis(**y),
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with a thin grid."""
    settings: dict[str, Any] = {
        "gridcolor": _GRID,
        "linecolor": _LINE,
        "zeroline": False,
        "automargin": True,
        **more,
    }
    if title:
        settings["title"] = {"text": title}
    return settings


def log_scale(values: Iterable[float], pixels: int = 560) -> dict[str, Any]:
    """Properties of a logarithmic axis for positive `values`, `pixels` long in an exported figure.

    Uses the densest ticks whose labels (0.02, 50, 20k) fit. The page recomputes them for its width.
    """
    numbers = list(values)
    low, high = math.log10(min(numbers)) - 0.02, math.log10(max(numbers)) + 0.02
    scale_ = pixels / (high - low)
    powers = range(math.floor(low), math.ceil(high) + 1)
    for digits in _TICK_DIGITS:
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        shown = [tick for tick in ticks if low <= math.log10(tick) <= high]
        gaps = [math.log10(b / a) * scale_ for a, b in itertools.pairwise(shown)]
        if gaps and min(gaps) >= _TICK_PIXELS:
            texts = [tick_text(tick) for tick in shown]
            return {"type": "log", "tickmode": "array", "tickvals": shown, "ticktext": texts}
    return {"type": "log", "tickformat": "~g"}


def tick_text(value: float) -> str:
    """`0.02`, `50`, `20k`, `3M`"""
    if value < 1e4:
        return f"{value:.3g}" if value < 1e3 else f"{value:.0f}"
    power = min(4, int(math.log10(value) / 3 + 1e-9))
    return f"{value / 1e3**power:.3g}{' kMGT'[power]}"


def scale(values: Iterable[float]) -> dict[str, Any]:
    """Scale of a figure with labelled rows: logarithmic if `values` span a factor above 5, else linear."""
    numbers = list(values)
    return log_scale(numbers, pixels=390) if max(numbers) > 5 * min(numbers) > 0 else {}


def plain(text: str) -> str:
    """`text` with tags and entities escaped, because plotly would interpret them."""
    return html.escape(text, quote=False)


def shortened(text: str, width: int) -> str:
    """At most `width` characters, with the middle omitted: `conv2d_1x28…_d1x1_g1`."""
    if len(text) <= width:
        return text
    head = (width - 1) * 3 // 5
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def distinct(labels: Sequence[str], width: int) -> list[str]:
    """The labels shortened to `width`; labels that would become equal show the part where they differ.

    `conv2d_1x28…d1x1_g1` twice -> `conv2d_1x28…_f16nhwc…`, `conv2d_1x28…_f32nhwc…`.
    """
    found: dict[str, dict[str, None]] = {}
    for label in labels:
        found.setdefault(shortened(label, width), {})[label] = None
    return [
        short if len(found[short]) == 1 else _parted(label, list(found[short]), width)
        for label, short in ((label, shortened(label, width)) for label in labels)
    ]


def _parted(label: str, others: Sequence[str], width: int) -> str:
    """The start of `label`, followed by the part where it differs from `others`."""
    head = width // 3
    columns = enumerate(zip(*others, strict=False))
    parting = next((at for at, letters in columns if len(set(letters)) > 1), min(map(len, others)))
    start = max(head, parting - 2)
    tail = label[start:]
    return (
        f"{label[:head]}…{tail}"
        if len(tail) < width - head
        else f"{label[:head]}…{tail[: width - head - 2]}…"
    )


def rows_axis(labels: Sequence[str]) -> dict[str, Any]:
    """A vertical axis with one row per label, at positions 0, 1, 2, ..., the first on top."""
    return {
        "tickmode": "array",
        "tickvals": list(range(len(labels))),
        "ticktext": short_labels(labels, _WIDE),
        "range": [len(labels) - 0.5, -0.5],
        "tickfont": {"size": 11},
    }


def short_labels(labels: Sequence[str], width: int) -> list[str]:
    """The labels for plotly, each at most `width` characters."""
    return [plain(label) for label in distinct(labels, width)]


def rows_layout(
    x: dict[str, Any], labels: Sequence[str], *, height: int, legend: bool = True
) -> dict[str, Any]:
    """A layout with one row per label; `meta` has shorter labels for narrow pages."""
    settings = layout(x, rows_axis(labels), height=height, legend=legend)
    return {**settings, "meta": {"narrow": short_labels(labels, _NARROW)}}


def rows_height(count: int, *, each: int = 22) -> int:
    """The height in pixels of a figure with `count` rows."""
    return 120 + each * max(count, 2)

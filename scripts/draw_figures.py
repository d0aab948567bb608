"""Draw figures of the documents with plotly: `python scripts/draw_figures.py` writes them to docs/images.

    interval.svg   recorded samples of three configurations, with medians and intervals
    in_turns.svg   two kernels on a machine that slows down, measured one after the other and in turns (simulated)
    speed.svg      the table of docs/others.md

Needs plotly, kaleido and Chrome or Chromium (`pip install 'dispatch_profiler[test]'`).
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from plotly import graph_objects
from plotly.subplots import make_subplots

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RECORDS = ROOT / "benchmarks" / "results" / "xeon-avx512-2026-11-23-models.jsonl.gz"
OPERATION = (
    "conv2d_1x14x14x64_384x1x1x64_1x14x14x384_f32nhwc_f32fhwc_f32nhwc_s1x1_p0x0_d1x1_g1_scale_shift_relu6"
)
#: Configurations of interval.svg -> their labels. The intervals of the first two overlap.
SHOWN = {
    "tile_config_microkernel_14x192_3x2x64_u4": "microkernel",
    "tile_config_permuted_1x7x7x64_1x1x7x64x1x1x1": "permuted",
    "tile_config_default": "compiler's default",
}
#: Of Okabe and Ito, for figures that people with colour-vision deficiencies can read.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"
WIDTH = 700


def styled(figure: Any, height: int) -> Any:
    """`figure` in the style of all figures, `height` pixels high."""
    figure.update_layout(
        width=WIDTH, height=height, template="plotly_white", font={"size": 15}, margin={"l": 10, "r": 20, "t": 40, "b": 10}
    )  # fmt: skip
    return figure


# -- an interval ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Samples:
    """Samples of a configuration in microseconds, and the interval of their median as recorded."""

    label: str
    times: list[float]
    low: float
    high: float


def recorded() -> Iterator[Samples]:
    """The configurations of SHOWN, in its order."""
    found = {}
    with gzip.open(RECORDS, "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if record["operation"] == OPERATION and record["configuration"] in SHOWN:
                found.setdefault(record["configuration"], record)
    for name, label in SHOWN.items():
        low, high = found[name]["derived"]["interval_ms"]
        times = [1e3 * each for each in found[name]["measurement"]["samples_ms"]]
        yield Samples(label, times, 1e3 * low, 1e3 * high)


def interval() -> Any:
    """Samples as points, the median as a line across, and its interval as a bar."""
    figure = graph_objects.Figure()
    for row, each in enumerate(reversed(list(recorded()))):
        spread = np.random.default_rng(row).uniform(-0.17, 0.17, len(each.times))
        figure.add_scatter(
            x=each.times, y=row + spread, mode="markers", marker={"color": GREY, "size": 6, "opacity": 0.6}
        )
        figure.add_scatter(
            x=[each.low, each.high], y=[row - 0.32] * 2, mode="lines", line={"color": BLUE, "width": 7}
        )
        median = statistics.median(each.times)
        figure.add_scatter(
            x=[median] * 2, y=[row - 0.42, row + 0.25], mode="lines", line={"color": ORANGE, "width": 3}
        )
        figure.add_annotation(
            x=0, xref="paper", y=row + 0.38, text=f"<b>{each.label}</b>: median {median:.1f} us, interval {each.low:.1f} to {each.high:.1f} us",
            showarrow=False, xanchor="left",
        )  # fmt: skip
    figure.update_layout(showlegend=False, yaxis={"visible": False, "range": [-0.6, 2.6]})
    figure.update_xaxes(title="microseconds of an execution; a point is a sample")
    return styled(figure, 380)


# -- in turns ------------------------------------------------------------------------------------------------------

#: Samples of each side, the time of both kernels in ms, and by how much the machine slows down half-way.
COUNT, TIME, SLOWER = 30, 1.0, 1.2


def in_turns() -> Any:
    """Two equal kernels: measured one after the other, the second seems slower."""
    when = np.arange(2 * COUNT)
    noise = np.random.default_rng(7).gamma(2.0, 0.01, 2 * COUNT)
    times = TIME * np.where(when < COUNT, 1.0, SLOWER) * (1.0 + noise)
    panels = {"one after the other": when < COUNT, "in turns": when % 2 == 0}
    titles = []
    for name, is_first in panels.items():
        ratio = statistics.median(times[~is_first]) / statistics.median(times[is_first])
        if name == "in turns":  # of samples side by side
            ratio = statistics.median(times[1::2] / times[::2])
        titles.append(f"{name}: B / A = {ratio:.2f}")
    figure = make_subplots(1, 2, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04)
    for column, is_first in enumerate(panels.values(), start=1):
        for side, label, color, symbol in (
            (is_first, "A", BLUE, "circle"),
            (~is_first, "B", ORANGE, "diamond"),
        ):
            figure.add_scatter(
                x=when[side], y=times[side], name=f"kernel {label}", mode="markers", showlegend=column == 1,
                marker={"color": color, "symbol": symbol, "size": 8}, row=1, col=column,
            )  # fmt: skip
    figure.update_xaxes(title="time", showticklabels=False)
    figure.update_yaxes(title="ms of a sample", col=1, rangemode="tozero")
    figure.update_layout(legend={"orientation": "h", "y": -0.2, "x": 0.5, "xanchor": "center"})
    return styled(figure, 340)


# -- ours and others -------------------------------------------------------------------------------------------------

_ROW = re.compile(
    r"^\| (\w[^|]*) \| ([^|]*) \| ([^|]*) \| ([^|]*) \| \*\*(\d\.\d\d)\*\* \| (\d\.\d\d)? *\|$", re.M
)


@dataclass(frozen=True)
class Ratio:
    """A row of docs/others.md: the geometric mean over models, and the slowest model where that is known."""

    label: str
    mean: float
    worst: float | None


def ratios() -> list[Ratio]:
    """The rows of the summary in docs/others.md."""
    text = (ROOT / "docs" / "others.md").read_text()
    return [
        Ratio(f"{what}, {threads} threads, batch {batch}", float(mean), float(worst) if worst else None)
        for what, threads, batch, _models, mean, worst in _ROW.findall(text)
    ]


def speed() -> Any:
    """Means as bars that begin at 1, the slowest models as marks."""
    rows = list(reversed(ratios()))
    labels = [row.label for row in rows]
    figure = graph_objects.Figure()
    figure.add_bar(
        y=labels, x=[row.mean - 1 for row in rows], base=1, orientation="h", marker={"color": BLUE}, name="geometric mean",
        text=[f"{row.mean:.2f}" for row in rows], textposition="outside", cliponaxis=False,
    )  # fmt: skip
    slowest = [row for row in rows if row.worst is not None]
    figure.add_scatter(
        y=[row.label for row in slowest], x=[row.worst for row in slowest], mode="markers", name="slowest model",
        marker={"color": ORANGE, "symbol": "diamond", "size": 10},
    )  # fmt: skip
    figure.add_vline(x=1, line={"color": "black", "width": 1})
    figure.update_xaxes(title="time of the fastest other tool, over ours", range=[0.8, 2.3])
    figure.update_layout(
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0.5, "xanchor": "center"}
    )
    return styled(figure, 60 + 38 * len(rows))


def main() -> None:
    """Write all figures."""
    for draw in (interval, in_turns, speed):
        path = IMAGES / f"{draw.__name__}.svg"
        draw().write_image(path)
        print(path)


if __name__ == "__main__":
    main()

"""Figures of a tuning's report: best so far against evaluations, speed over tiles, speedups over shares.

Points carry an index in `customdata`: an evaluation's index in the page, or -1 - p for problem p.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dispatch_profiler.configurations import Configuration, Default
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.report.html.style import (
    BEST_COLOUR,
    DEFAULT_COLOUR,
    INK,
    OTHER_COLOUR,
    PAPER,
    SYMBOLS,
    Figure,
    layout,
    plain,
    scale,
)
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.results.uplift import Judged, Judgement
from dispatch_profiler.tuner.search.operation_search import fastest

_FORM_COLOUR = "#009E73"
_NOT_CONFIRMED_COLOUR, _WRONG_COLOUR = "#E69F00", "#CC79A7"
#: Narrower bars, as a part of all, have no line for their interval.
_LEAST_WIDTH = 0.005
_NUMBERS = re.compile(r"\d+")
#: The outcome of a problem, in few words, and its colour.
GROUPS = {
    "kept": BEST_COLOUR,
    "nothing faster found": OTHER_COLOUR,
    "not confirmed as faster": _NOT_CONFIRMED_COLOUR,
    "wrong or not measured": _WRONG_COLOUR,
}


_GROUP_OF = {
    Judgement.KEPT: "kept",
    Judgement.NO_FINALIST: "nothing faster found",
    Judgement.SLOWER: "not confirmed as faster",
    Judgement.INTERVAL_OVERLAPS: "not confirmed as faster",
    Judgement.BELOW_THRESHOLD: "not confirmed as faster",
    Judgement.RUNNER_UP: "not confirmed as faster",
}


def group_of(judgement: Judgement) -> str:
    """The group of a judgement."""
    return _GROUP_OF.get(judgement, "wrong or not measured")


@dataclass(frozen=True)
class ProblemEvaluations:
    """All evaluations of the search for an operation, in their order.

    `untuned` are the configurations that are used without tuning. `start` is the index of the first evaluation in the
    page.
    """

    operation: Operation
    evaluations: tuple[Evaluation, ...]
    untuned: tuple[Configuration, ...]
    start: int = 0

    @cached_property
    def limit_ms(self) -> float | None:
        """The least time that the hardware's measured peaks allow; None if they are unknown."""
        return min((e.record.limit_ms for e in self.evaluations if e.record.limit_ms > 0.0), default=None)

    @cached_property
    def default(self) -> Evaluation | None:
        """The compiler's choice, if it was verified and has a time."""
        return fastest([each for each in self.evaluations if isinstance(each.configuration, Default)])

    @cached_property
    def form(self) -> Evaluation | None:
        """The fastest known untuned form, if it was verified and has a time."""
        untuned = [e for e in self.evaluations if e.configuration in self.untuned]
        return fastest([each for each in untuned if not isinstance(each.configuration, Default)])

    def speed(self, milliseconds: float) -> float:
        """GFLOP/s."""
        return self.operation.flops / milliseconds / 1e6

    @cached_property
    def _places(self) -> dict[str, int]:
        return {each.dispatch.name: self.start + at for at, each in enumerate(self.evaluations)}

    def indices(self, evaluations: Iterable[Evaluation]) -> list[int]:
        """Of evaluations in the page."""
        return [self._places[each.dispatch.name] for each in evaluations]


# -- best so far -----------------------------------------------------------------------------------


def progress(problem: ProblemEvaluations) -> Figure | None:
    """The speed of each evaluation, and the best so far. None if nothing has a time."""
    timed = [each for each in problem.evaluations if each.milliseconds is not None]
    if not timed:
        return None
    count = len(problem.evaluations)
    lines = _lines(problem, [0.5, count + 0.5])
    speeds = [problem.speed(each.milliseconds) for each in timed if each.milliseconds]
    shown = [*speeds, *(line["y"][0] for line in lines)]
    axis = _speed_axis(shown)
    floor = min(shown) * 0.85 if axis.get("type") == "log" else 0.0
    place = {each.configuration: at for at, each in enumerate(problem.evaluations, start=1)}

    def x(evaluations: Sequence[Evaluation]) -> list[Any]:
        return [place[each.configuration] for each in evaluations]

    traces = [*lines, *_dots(problem, problem.evaluations, x, floor), _best_so_far(problem)]
    width = {"range": [0.5, count + 0.5], **({"dtick": 1} if count <= 10 else {})}
    shape = layout({"title": "evaluation", **width}, {"title": "GFLOP/s", **axis}, height=380)
    return {"data": [each for each in traces if each["x"]], "layout": shape}


def _speed_axis(speeds: Sequence[float]) -> dict[str, Any]:
    return scale(speeds) or {"rangemode": "tozero"}


def _lines(problem: ProblemEvaluations, x: list[Any]) -> list[dict[str, Any]]:
    """Lines of the untuned configurations and of the hardware's limit, which have a time."""
    limit = problem.limit_ms
    known = (
        ("hardware limit", limit, INK, "dot"),
        ("compiler's default", problem.default and problem.default.milliseconds, DEFAULT_COLOUR, "dash"),
        ("fastest untuned form", problem.form and problem.form.milliseconds, _FORM_COLOUR, "dashdot"),
    )
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": x,
            "y": [problem.speed(milliseconds)] * len(x),
            "line": {"color": colour, "width": 1.5, "dash": dash},
            "hoverinfo": "skip",
        }
        for name, milliseconds, colour, dash in known
        if milliseconds
    ]


def _best_so_far(problem: ProblemEvaluations) -> dict[str, Any]:
    """A step for each improvement."""
    x: list[float] = []
    y: list[float] = []
    for at, each in enumerate(problem.evaluations, start=1):
        if each.milliseconds is None or each.was_abandoned:
            continue
        speed = problem.speed(each.milliseconds)
        if not y or speed > y[-1]:
            x.append(at)
            y.append(speed)
    if x:
        x.append(len(problem.evaluations) + 0.5)
        y.append(y[-1])
    line = {"color": BEST_COLOUR, "width": 2, "shape": "hv"}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "x": x,
        "y": y,
        "line": line,
        "hoverinfo": "skip",
    }


def _dots(
    problem: ProblemEvaluations,
    evaluations: Sequence[Evaluation],
    x: Callable[[Sequence[Evaluation]], list[Any]],
    floor: float,
) -> list[dict[str, Any]]:
    """Dots of evaluations at `x`: measured, abandoned, and on the `floor` those without a time."""
    groups: dict[str, list[Evaluation]] = {"evaluation": [], "abandoned": [], "no time": []}
    for each in evaluations:
        kind = "abandoned" if each.was_abandoned else "evaluation"
        groups[kind if each.milliseconds is not None else "no time"].append(each)
    markers = {
        "evaluation": {"color": OTHER_COLOUR, "size": 7, "line": {"width": 0.5, "color": PAPER}},
        "abandoned": {"color": OTHER_COLOUR, "symbol": "circle-open", "size": 7},
        "no time": {
            "color": DEFAULT_COLOUR,
            "symbol": "x-thin-open",
            "size": 8,
            "line": {"width": 1.5, "color": DEFAULT_COLOUR},
        },
    }
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": x(evaluations_of_group),
            "y": [
                problem.speed(each.milliseconds) if each.milliseconds else floor
                for each in evaluations_of_group
            ],
            "customdata": problem.indices(evaluations_of_group),
            "marker": markers[name],
            "cliponaxis": False,
            "hovertemplate": "%{text}<extra></extra>",
        }
        for name, evaluations_of_group in groups.items()
        if evaluations_of_group
    ]


# -- tiles -----------------------------------------------------------------------------------------


def tiles(problem: ProblemEvaluations) -> dict[str, Figure]:
    """For each field of configurations with several values, such as a level of tiles: the speed over its values."""
    values: dict[str, set[str]] = {}
    for each in problem.evaluations:
        for name, value in each.configuration.fields().items():
            values.setdefault(name, set()).add(str(value))
    varied = sorted((name for name in values if len(values[name]) > 1), key=lambda name: -len(values[name]))
    figures = ((name, _tiles(problem, name)) for name in varied)
    return {name: figure for name, figure in figures if figure is not None}


def _tiles(problem: ProblemEvaluations, name: str) -> Figure | None:
    having = [each for each in problem.evaluations if name in each.configuration.fields()]
    speeds = [problem.speed(each.milliseconds) for each in having if each.milliseconds]
    if not speeds:
        return None
    values = sorted({str(each.configuration.fields()[name]) for each in having}, key=_size)
    labels = {value: plain(value) or "none" for value in values}
    lines = _lines(problem, [labels[values[0]], labels[values[-1]]])
    axis = _speed_axis([*speeds, *(line["y"][0] for line in lines)])
    floor = min(speeds) * 0.85 if axis.get("type") == "log" else 0.0

    def x(evaluations: Sequence[Evaluation]) -> list[Any]:
        return [labels[str(each.configuration.fields()[name])] for each in evaluations]

    kinds = sorted({each.configuration.kind for each in having})
    traces: list[dict[str, Any]] = []
    for at, kind in enumerate(kinds):
        for trace in _dots(problem, [each for each in having if each.configuration.kind == kind], x, floor):
            if len(kinds) > 1 and trace["name"] == "evaluation":
                trace["name"] = plain(kind)
                trace["marker"] = {**trace["marker"], "symbol": SYMBOLS[at % len(SYMBOLS)]}
            # One line in the legend, which shows and hides the points of all kinds.
            is_named = any(each["name"] == trace["name"] for each in traces)
            traces.append({**trace, "legendgroup": trace["name"], "showlegend": not is_named})
    best = fastest(having)
    if best is not None:
        traces.append(_best_dot(problem, best, x([best])))
    words = plain(name.replace("_", " "))
    categories = {"type": "category", "categoryorder": "array", "categoryarray": list(labels.values())}
    shape = layout({"title": words, **categories}, {"title": "GFLOP/s", **axis}, height=420)
    return {"data": [*lines, *traces], "layout": shape}


def _best_dot(problem: ProblemEvaluations, best: Evaluation, x: list[Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "fastest",
        "x": x,
        "y": [problem.speed(best.milliseconds or math.inf)],
        "customdata": problem.indices([best]),
        "marker": {
            "color": BEST_COLOUR,
            "symbol": "diamond",
            "size": 11,
            "line": {"width": 0.5, "color": PAPER},
        },
        "hovertemplate": "%{text}<extra></extra>",
    }


def _size(value: str) -> tuple[list[int], str]:
    """Sort key: `8x32` before `64x8`."""
    return [int(number) for number in _NUMBERS.findall(value)], value


# -- uplift ----------------------------------------------------------------------------------------


def uplift_by_share(problems: Sequence[Judged], unit: str) -> Figure | None:
    """A bar for each problem, the largest share first: as wide as its share, as high as its speedup.

    Without shares, all bars are equally wide. `unit` is what shares are of. None without problems.
    """
    shared = [each.finalist.share for each in problems]
    if not problems:
        return None
    knows = any(share is not None for share in shared)
    widths = [(share or 0.0) if knows else 1.0 for share in shared]
    order = sorted(range(len(problems)), key=lambda at: -widths[at])
    lefts: dict[int, float] = {}
    total = 0.0
    for at in order:
        lefts[at] = total
        total += widths[at]
    rest = max(0.0, 100.0 - total) if knows else 0.0
    traces = []
    for name, colour in GROUPS.items():
        own = [at for at in order if group_of(problems[at].judgement) == name and widths[at] > 0.0]
        if own:
            traces.append(_bars(name, colour, problems, own, lefts, widths))
    if rest > 0.05:
        traces.append(_rest(total, rest))
    end = max(100.0, total) if knows else total
    title = (
        f"share of the {unit} (%)" if knows else f"{counted(len(problems), 'problem')} (shares are unknown)"
    )
    ticks = {} if knows else {"showticklabels": False}
    shape = layout(
        {"title": title, "range": [0.0, end], "showgrid": False, **ticks},
        {"title": "speedup", **_speedup_axis(problems)},
        height=400,
    )
    shape["barmode"] = "overlay"
    shape["shapes"] = [
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1,
            "line": {"color": DEFAULT_COLOUR, "width": 1.5, "dash": "dash"},
        }
    ]  # fmt: skip
    return {"data": traces, "layout": shape}


def _speedup_axis(problems: Sequence[Judged]) -> dict[str, Any]:
    """Logarithmic if speedups span a factor above 5, so that one large speedup does not flatten all others."""
    known = [each.finalist.speedup.value for each in problems if each.finalist.speedup is not None]
    axis = scale([1.0, *known]) if all(each > 0.0 for each in known) else {}
    if not axis:
        return {"rangemode": "tozero"}
    return {**axis, "range": [math.log10(min(0.5, *known) * 0.9), math.log10(max(known) * 1.15)]}


def _bars(
    name: str,
    colour: str,
    problems: Sequence[Judged],
    own: Sequence[int],
    lefts: dict[int, float],
    widths: Sequence[float],
) -> dict[str, Any]:
    speedups = [problems[at].finalist.speedup for at in own]
    least = _LEAST_WIDTH * math.fsum(widths)
    known = [
        each
        if each is not None and each.low > 0.0 and math.isfinite(each.high) and widths[at] >= least
        else None
        for at, each in zip(own, speedups, strict=True)
    ]
    line = {"width": 1 if len(problems) <= 60 else 0, "color": PAPER}
    return {
        "type": "bar",
        "name": name,
        "x": [lefts[at] + widths[at] / 2 for at in own],
        "width": [widths[at] for at in own],
        "y": [1.0 if each is None else each.value for each in speedups],
        "customdata": [-1 - at for at in own],
        "marker": {"color": colour, "line": line},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [each.high - each.value if each else None for each in known],
            "arrayminus": [each.value - each.low if each else None for each in known],
            "color": INK,
            "thickness": 1,
            "width": 3 if len(problems) <= 60 else 0,
        },
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _rest(left: float, width: float) -> dict[str, Any]:
    """The part of the workload that was not tuned."""
    return {
        "type": "bar",
        "name": "not tuned",
        "x": [left + width / 2],
        "width": [width],
        "y": [1.0],
        "marker": {"color": PAPER, "line": {"width": 1, "color": OTHER_COLOUR}},
        "hovertemplate": f"{width:.1f} % was not tuned<extra></extra>",
    }

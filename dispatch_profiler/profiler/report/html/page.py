"""Records -> one self-contained HTML file that works offline."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from dispatch_profiler.console.plurals import counted, plural
from dispatch_profiler.profiler.records.record import StoredRecord, Verdict
from dispatch_profiler.profiler.records.record_file import to_line
from dispatch_profiler.profiler.records.speedup import includes_one, speed_ratio
from dispatch_profiler.profiler.report.html.comparison import ROWS, comparable, comparison
from dispatch_profiler.profiler.report.html.conditions import conditions, warnings
from dispatch_profiler.profiler.report.html.distribution import distribution
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry, grouped, provider_names, runs
from dispatch_profiler.profiler.report.html.heat_map import heat_maps
from dispatch_profiler.profiler.report.html.roofline import roofline, roofs, scaling
from dispatch_profiler.profiler.report.html.style import DARK, Figure, plotly_script
from dispatch_profiler.profiler.report.html.summary import summary

if TYPE_CHECKING:
    import jinja2


_ROOF = (
    "The roofs are the FLOP/s of a library's matrix products (numpy's BLAS on a CPU) and the bytes/s of copies of"
    " large arrays, measured on the same device. An element type that was not measured has the roof of f32, scaled by"
    " the ratio of widths. Warm operands that stay in the caches can exceed the slope, which is the memory bandwidth."
)
_DASH = "A dash marks the hardware limit of an operation."
_NO_ROOF = "The records contain no hardware peaks, so no roof is drawn."


def render_page(records: Sequence[StoredRecord], title: str, files: Sequence[str] = ()) -> str:
    """The text of the page. `files` has the file name of each record."""
    groups = grouped(records, files)
    verdicts = Counter(record.verdict for record in records)
    of_runs = [run.text for run in runs(records, files)]
    names = of_runs if len(set(of_runs)) > 1 else []
    return render(
        "report.html.j2",
        "report.js",
        page_data(records, groups, names),
        title=title,
        count=len(records),
        verdicts=[(verdict, verdicts[verdict]) for verdict in Verdict if verdicts[verdict]],
        failures=sum(record.is_failure for record in records),
        measured=sum(record.measurement is not None for record in records),
        operations=len({record.operation for record in records}),
        origin=origin(records),
        summary=summary(groups),
        notes=_notes(groups),
        conditions=conditions(records, names),
        warnings=warnings(records),
    )


def _notes(groups: Sequence[Group]) -> dict[str, str]:
    """A sentence for each figure that omits something."""
    count = len(comparable(groups))
    absent = len(groups) - count
    left = []
    if count > ROWS:
        left.append(f"Shows the {ROWS} of {count} operations with the largest speedup; the table has all.")
    if absent:
        left.append(
            f"Omits {absent} of {counted(len(groups), 'operation')}, in which the default, or everything else, has no speed."
        )
    limits = any(entry.record.limit_ms > 0 for group in groups for entry in group.entries)
    roof = _ROOF if roofs(groups) else _DASH if limits else _NO_ROOF
    return {"comparison": " ".join(left), "roofline": roof}


# -- data ------------------------------------------------------------------------------------------

# The data of a page: all fields of all records, for its script.


#: Fields with few distinct values: each value is stored once, and records contain its index.
_SHARED = ("arguments", "provenance", "configuration_fields", "tags", "peaks")


def page_data(
    records: Sequence[StoredRecord], groups: Sequence[Group], runs: Sequence[str] = ()
) -> dict[str, Any]:
    """The data that the page's script shows.

    `records` have the fields of the file and `derived`; fields named in `_SHARED` are indices into `shared`.
    `runs` has the run of each record; empty for a single run.
    """
    pools: dict[str, dict[str, int]] = {name: {} for name in _SHARED}
    return {
        "records": [_pooled(record, pools) for record in records],
        "shared": {name: [json.loads(text) for text in pools[name]] for name in _SHARED},
        "runs": list(runs),
        "of_peak": [_of_peak(ReportEntry(index, record)) for index, record in enumerate(records)],
        "providers": provider_names(groups),
        "groups": [_group(group, provider_names(groups)) for group in groups],
        "roofline": roofline(groups),
        "comparison": comparison(groups),
        "scaling": scaling(groups),
        "dark": DARK,
    }


def _pooled(record: StoredRecord, pools: dict[str, dict[str, int]]) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(to_line(record))
    del row["format"], row["version"]
    for name in _SHARED:
        text = json.dumps(row[name])
        row[name] = pools[name].setdefault(text, len(pools[name]))
    return row


def _of_peak(entry: ReportEntry) -> float | None:
    """The speed relative to the roofline; None if unknown."""
    roofline_ms = entry.record.roofline_ms
    return roofline_ms / entry.median_ms if roofline_ms > 0 and entry.has_speed else None


def _group(group: Group, providers: Sequence[str]) -> dict[str, Any]:
    samples = distribution(group, providers)
    return {
        "label": group.label,
        "operation": group.operation,
        "run": group.setting,
        "entries": [entry.index for entry in group.entries],
        "vs_default": [_vs_default(entry, group.default) for entry in group.entries],
        "default": _index(group.default),
        "best": _index(group.best),
        "providers": {name: entry.index for name, entry in group.providers.items()},
        "heat_maps": list(heat_maps(group).items()),
        "samples": None if samples is None else without_samples(samples),
    }


def _vs_default(entry: ReportEntry, default: ReportEntry | None) -> tuple[float, float, float, bool] | None:
    """The speedup, both ends of its interval, and whether the interval includes 1."""
    speedup = speed_ratio(entry.record, default.record if default else None)
    return None if speedup is None else (speedup.value, speedup.low, speedup.high, includes_one(speedup))


def _index(entry: ReportEntry | None) -> int | None:
    return None if entry is None else entry.index


def without_samples(figure: Figure) -> Figure:
    """The figure without samples that the page can restore, which are in traces with `samples_of` in `meta`."""
    data = []
    for trace in figure["data"]:
        if "samples_of" in trace.get("meta", {}):
            marker = {name: value for name, value in trace["marker"].items() if name != "color"}
            trace = {**trace, "x": [], "y": [], "marker": marker}
        data.append(trace)
    return {**figure, "data": data}


# -- shell -----------------------------------------------------------------------------------------

# What pages share: one self-contained file with style, scripts, plotly and data, which works offline.


#: Larger integers become text, because JavaScript rounds them.
_LARGEST_EXACT = 2**53


def render(template: str, script: str, data: Mapping[str, Any], **values: object) -> str:
    """The text of a page: `template` with `values`. Its `script` reads `data`."""
    from markupsafe import Markup  # installed with jinja2

    scripts = ("report_table.js", "report_figures.js", script)
    return (
        _environment()
        .get_template(template)
        .render(
            counted=counted,
            plural=plural,
            style=Markup(_file("report.css")),
            theme=Markup(_file("report_theme.js")),
            script=Markup("".join(map(_file, scripts))),
            plotly=Markup(_packed_plotly()),
            data=Markup(script_json(data)),
            **values,
        )
    )


def origin(records: Sequence[StoredRecord]) -> str:
    """Machine, device and dates: `AMD EPYC 7B13, 2 cores; local-task; 2026-11-20`."""
    provenances = [record.provenance for record in records]
    days = sorted({origin.when[:10] for origin in provenances if origin.when})
    parts = (
        _few([origin.machine.name for origin in provenances], "machines"),
        _few([origin.device for origin in provenances], "devices"),
        " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
    )
    return "; ".join(filter(None, parts))


def _few(names: Sequence[str], what: str) -> str:
    """Up to two distinct names, else their number."""
    distinct_names = list(dict.fromkeys(filter(None, names)))
    return " and ".join(distinct_names) if len(distinct_names) < 3 else f"{len(distinct_names)} {what}"


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # only required for rendering

    return jinja2.Environment(
        loader=jinja2.PackageLoader("dispatch_profiler", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,  # names, reasons and tags are untrusted
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _file(name: str) -> str:
    return (resources.files("dispatch_profiler") / "templates" / name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    """plotly's JavaScript, compressed from 1.4 to 0.7 MB, so that it is not parsed before the first figure."""
    return base64.b64encode(gzip.compress(plotly_script().read_bytes(), 9, mtime=0)).decode()


def script_json(value: Any) -> str:
    """JSON for a <script> element, which nothing in it can end.

    `</script>` -> `\\u003c/script\\u003e`; NaN and infinities become text.
    """
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if type(value) is int and abs(value) > _LARGEST_EXACT:
        return str(value)
    return value

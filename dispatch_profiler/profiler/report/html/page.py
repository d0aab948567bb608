"""Records -> one self-contained HTML file that works offline."""

from __future__ import annotations

import base64
import gzip
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from dispatch_profiler.plurals import counted, plural
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.report.html.comparison import ROWS, comparable
from dispatch_profiler.profiler.report.html.conditions import conditions, warnings
from dispatch_profiler.profiler.report.html.data import page_data, script_json
from dispatch_profiler.profiler.report.html.groups import Group, grouped
from dispatch_profiler.profiler.report.html.roofline import roofs
from dispatch_profiler.profiler.report.html.runs import runs
from dispatch_profiler.profiler.report.html.style import plotly_script
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
    from markupsafe import Markup  # installed with jinja2

    groups = grouped(records, files)
    verdicts = Counter(record.verdict for record in records)
    of_runs = [run.text for run in runs(records, files)]
    names = of_runs if len(set(of_runs)) > 1 else []
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            counted=counted,
            plural=plural,
            title=title,
            count=len(records),
            verdicts=[(verdict, verdicts[verdict]) for verdict in Verdict if verdicts[verdict]],
            failures=sum(record.is_failure for record in records),
            measured=sum(record.measurement is not None for record in records),
            operations=len({record.operation for record in records}),
            origin=_origin(records),
            summary=summary(groups),
            notes=_notes(groups),
            conditions=conditions(records, names),
            warnings=warnings(records),
            style=Markup(_file("report.css")),
            theme=Markup(_file("report_theme.js")),
            script=Markup(_file("report_table.js") + _file("report_figures.js") + _file("report.js")),
            plotly=Markup(_packed_plotly()),
            data=Markup(script_json(page_data(records, groups, names))),
        )
    )


def _origin(records: Sequence[StoredRecord]) -> str:
    """Machine, device and dates: `AMD EPYC 7B13, 2 cores; local-task; 2026-11-20`."""
    origins = [record.provenance for record in records]
    days = sorted({origin.when[:10] for origin in origins if origin.when})
    parts = (
        _few([origin.machine.name for origin in origins], "machines"),
        _few([origin.device for origin in origins], "devices"),
        " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
    )
    return "; ".join(filter(None, parts))


def _few(names: Sequence[str], what: str) -> str:
    """Up to two distinct names, else their number."""
    found = list(dict.fromkeys(filter(None, names)))
    return " and ".join(found) if len(found) < 3 else f"{len(found)} {what}"


def _notes(groups: Sequence[Group]) -> dict[str, str]:
    """A sentence for each figure about what it omits."""
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

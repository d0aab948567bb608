"""Records -> one HTML file that needs nothing else, no network either."""

from __future__ import annotations

import base64
import gzip
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.report.html.comparison import ROWS, comparable
from dispatch_profiler.profiler.report.html.conditions import conditions, warnings
from dispatch_profiler.profiler.report.html.data import page_data, script_json
from dispatch_profiler.profiler.report.html.groups import Group, grouped
from dispatch_profiler.profiler.report.html.roofline import roofs
from dispatch_profiler.profiler.report.html.style import plotly_script

if TYPE_CHECKING:
    import jinja2


_ROOF = (
    "Roofs are what numpy's BLAS and a copy of large arrays reached on the same machine; those of types"
    " narrower than f32 are as many times higher as the type is narrower. Operands that stay in the caches"
    " may lie above the slope, which is for bytes from memory."
)
_DASH = "A dash is what the hardware allows for an operation."
_NO_ROOF = "The records hold no hardware limits, so no roof is drawn."


def render_page(records: Sequence[StoredRecord], title: str) -> str:
    """The text of the page."""
    from markupsafe import Markup  # which comes with jinja2

    groups = grouped(records)
    verdicts = Counter(record.verdict for record in records)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            count=len(records),
            verdicts=[(verdict.value, verdicts[verdict]) for verdict in Verdict if verdicts[verdict]],
            failures=sum(record.is_failure for record in records),
            measured=sum(record.measurement is not None for record in records),
            operations=len({record.operation for record in records}),
            notes=_notes(groups),
            conditions=conditions(records),
            warnings=warnings(records),
            style=Markup(_file("report.css")),
            script=Markup(_file("report_table.js") + _file("report.js")),
            plotly=Markup(_packed_plotly()),
            data=Markup(script_json(page_data(records, groups))),
        )
    )


def _notes(groups: Sequence[Group]) -> dict[str, str]:
    """A sentence for each figure: what it leaves out, and why."""
    count = len(comparable(groups))
    absent = len(groups) - count
    left = []
    if count > ROWS:
        left.append(f"The {ROWS} operations with the largest gain of {count}; the table has all.")
    if absent:
        left.append(
            f"{absent} of {len(groups)} operations are not here: their default has no speed, or nothing else has."
        )
    limits = any(entry.record.limit_ms > 0 for group in groups for entry in group.entries)
    roof = _ROOF if roofs(groups) else _DASH if limits else _NO_ROOF
    return {"comparison": " ".join(left), "roofline": roof}


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # which only those need who render

    return jinja2.Environment(
        loader=jinja2.PackageLoader("dispatch_profiler", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,  # a name, a reason or a tag may hold anything
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _file(name: str) -> str:
    return (resources.files("dispatch_profiler") / "templates" / name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    """plotly's JavaScript, compressed: 1.4 MB become 0.7, and no browser reads it before it draws."""
    return base64.b64encode(gzip.compress(plotly_script().read_bytes(), 9, mtime=0)).decode()

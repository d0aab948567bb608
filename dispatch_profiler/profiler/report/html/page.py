"""Records -> one self-contained HTML file that works offline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.report.html.comparison import ROWS, comparable
from dispatch_profiler.profiler.report.html.conditions import conditions, warnings
from dispatch_profiler.profiler.report.html.data import page_data
from dispatch_profiler.profiler.report.html.groups import Group, grouped
from dispatch_profiler.profiler.report.html.roofline import roofs
from dispatch_profiler.profiler.report.html.runs import runs
from dispatch_profiler.profiler.report.html.shell import origin, render
from dispatch_profiler.profiler.report.html.summary import summary

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

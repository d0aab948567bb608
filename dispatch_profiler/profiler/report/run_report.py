"""The records of a run as Markdown and JUnit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dispatch_profiler.console.markup import Case, junit_xml, markdown_code, markdown_table, markdown_text
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.profiler.compare.pairing import distinct
from dispatch_profiler.profiler.measurement.measure import included_text, interval_texts
from dispatch_profiler.profiler.records.record import StoredRecord, Verdict, kernel_name
from dispatch_profiler.profiler.records.speedup import speed_ratio, speedup_text
from dispatch_profiler.profiler.report.console import gflops_text, runtime_text
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry, grouped
from dispatch_profiler.profiler.statistics.comparison import Ratio

_HEAD = (
    "Runtime (ms)",
    "GFLOPs",
    "vs default",
    "% of peak",
    "±95%",
    "Verification",
    "Configuration",
    "Notes",
)


def markdown(records: Sequence[StoredRecord], files: Sequence[str] = ()) -> str:
    """A list of machines, devices and software, then a table for each operation, the fastest first.

    `files` has the file name of each record.
    """
    lines = [f"- {markdown_text(line)}" for line in (_counts(records), *_origins(records))]
    for group in grouped(records, files):
        unmeasured = [entry for entry in group.entries if not entry.has_speed]
        rows = [_row(entry, group) for entry in (*group.ranked, *unmeasured)]
        lines += ["", f"### {markdown_code(group.label)}", "", *markdown_table(_HEAD, "rrrrrlll", rows)]
    return "\n".join(lines) + "\n"


def junit(records: Sequence[StoredRecord], files: Sequence[str] = ()) -> str:
    """A test case for each dispatch: failed with its reason, or skipped if not verified."""
    cases = [_case(entry, group) for group in grouped(records, files) for entry in group.entries]
    origins = [record.provenance for record in records]
    properties = (
        ("machine", _listed(origin.machine.text for origin in origins)),
        ("device", _listed(origin.device for origin in origins)),
        ("target", _listed(origin.target for origin in origins)),
        ("software", _listed(origin.software for origin in origins)),
        ("seed", _listed(str(origin.seed) for origin in origins)),
        ("tags", _listed(map(_tags, records))),
    )
    return junit_xml("dispatch_profiler", cases, properties) + "\n"


def _counts(records: Sequence[StoredRecord]) -> str:
    verdicts = Counter(record.verdict for record in records)
    counts = ", ".join(f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict if verdicts[verdict])
    dispatches = counted(len(records), "dispatch")
    return f"{dispatches}: {counts}" if records else dispatches


def _origins(records: Iterable[StoredRecord]) -> Iterable[str]:
    """A line for each combination of machine, device, target, compiler or library, and tags."""
    pairs = ((record.provenance, _tags(record)) for record in records)
    parts = (
        (o.machine.text, f"device {o.device}", f"target {o.target}", o.software, tags) for o, tags in pairs
    )
    return dict.fromkeys("; ".join(filter(None, each)) for each in parts)


def _tags(record: StoredRecord) -> str:
    return ", ".join(f"{name}: {value}" for name, value in record.tags.items())


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(distinct(filter(None, texts)))


def _row(entry: ReportEntry, group: Group) -> tuple[str, ...]:
    record = entry.record
    figures = ("",) * 5
    if entry.has_speed and record.measurement is not None:
        peak = f"{record.roofline_ms / entry.median_ms:.0%}" if record.roofline_ms else ""
        reach = f"{record.measurement.half_width:.1%}" if record.measurement.has_interval else ""
        figures = (runtime_text(record), gflops_text(record), _vs_default(entry, group), peak, reach)
    verdict = f"**{record.verdict.value}**" if record.is_failure else record.verdict.value
    notes = "; ".join(
        filter(None, (record.reason, record.confirmed.text if record.confirmed else "", *_warnings(record)))
    )
    return (
        *figures,
        verdict,
        markdown_code(kernel_name(record.configuration, record.provider)),
        markdown_text(notes),
    )


def _case(entry: ReportEntry, group: Group) -> Case:
    record = entry.record
    verdict, reason = record.verdict, record.reason
    message = f"{verdict.value}: {reason}" if reason else verdict.value
    skipped = verdict is not Verdict.SUCCESS and not record.is_failure
    output = "\n".join(filter(None, (*_warnings(record), record.reproduce)))
    return Case(
        group.label,
        kernel_name(record.configuration, record.provider),
        failure=(verdict.value, message) if record.is_failure else None,
        skipped=message if skipped else None,
        output=output,
        properties=_figures(entry, group),
    )


def _figures(entry: ReportEntry, group: Group) -> dict[str, str]:
    """The measurement with all digits; empty for an unmeasured dispatch."""
    record, measurement = entry.record, entry.record.measurement
    if measurement is None or not entry.has_speed:
        return {}
    low, high = interval_texts(measurement)
    return {
        "median_ms": repr(entry.median_ms),
        "interval_low_ms": low,
        "interval_high_ms": high,
        "min_ms": repr(measurement.min_ms),
        "gflops": repr(entry.gflops),
        **_speed_properties(entry, group),
        "limit_ms": repr(record.limit_ms) if record.limit_ms else "",
        "samples": str(len(measurement.samples_ms)),
        "executions_per_sample": str(measurement.executions),
        "mode": measurement.mode,
        "includes": included_text(measurement.includes),
        "ended_by": measurement.ended_by,
    }


def _vs_default(entry: ReportEntry, group: Group) -> str:
    """The speedup over the compiler's own choice, as in the console table."""
    return speedup_text(_speed(entry, group))


def _speed_properties(entry: ReportEntry, group: Group) -> dict[str, str]:
    speed = _speed(entry, group)
    if speed is None:
        return {"vs_default": ""}
    return {
        "vs_default": f"{speed.value:.2f}",
        "vs_default_low": repr(speed.low),
        "vs_default_high": repr(speed.high),
    }


def _speed(entry: ReportEntry, group: Group) -> Ratio | None:
    return speed_ratio(entry.record, group.default.record if group.default else None)


def _warnings(record: StoredRecord) -> tuple[str, ...]:
    return record.measurement.warnings if record.measurement is not None else ()

"""Records on the console: a block for each, and a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from dispatch_profiler.profiler.records.record import Record, StoredRecord
from dispatch_profiler.profiler.records.speedup import (
    DEFAULT_REFERENCE,
    Speedup,
    SpeedupsOfRuns,
    is_default,
    packs_weight,
    speedup_text,
)
from dispatch_profiler.profiler.statistics.stopping import Ended

_RULE = "-" * 64
_LABEL_WIDTH = 14
_WIDTH = 80

# -- the console block -----------------------------------------------------------------------------


_PACKED = "packed at load time, which other times include"


def block(record: Record) -> str:
    """The block of the IREE dispatch profiler, followed by Tuned, Weight, Reason and Warning fields if any."""
    fields = [
        ("Dispatch", record.dispatch.name),
        ("Provider", record.provider),
        ("OpKind", record.op_kind),
        ("Operation", record.dispatch.operation.name),
        ("Configuration", record.dispatch.configuration.name),
        ("Arguments", _wrapped(record.arguments_text())),
        ("Verification", record.verdict.value),
        ("Runtime(ms)", runtime_text(record)),
        ("GFLOPs", gflops_text(record)),
    ]
    if tuned := _tuned_text(record.dispatch.configuration.fields()):
        fields.append(("Tuned", _wrapped(tuned)))
    if record.dispatch.configuration.packs_weight:
        fields.append(("Weight", _PACKED))
    if record.reason:
        fields.append(("Reason", _wrapped(record.reason)))
    if record.measurement is not None:
        fields += [("Warning", _wrapped(warning)) for warning in record.measurement.warnings]
    return "\n".join([_RULE, *(f"{label:<{_LABEL_WIDTH}}: {value}" for label, value in fields)])


def _tuned_text(fields: Mapping[str, Any]) -> str:
    """The configuration behind a tuned one: `tile_config_64x128_8x32x4, as matmul_...`; empty for others."""
    name, origin = fields.get("tuned", ""), fields.get("tuned_from", "")
    return f"{name}, as {origin}" if origin else str(name)


def _wrapped(text: str) -> str:
    indent = " " * (_LABEL_WIDTH + 2)
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines)


def runtime_text(record: Record | StoredRecord) -> str:
    """Milliseconds with three decimals; below 1 ms, with four significant digits."""
    if record.measurement is None:
        return "Not profiled"
    median = record.measurement.median_ms
    return f"{median:.3f}" if median >= 1.0 else format(Decimal(f"{median:.4g}"), "f")


def gflops_text(record: Record | StoredRecord) -> str:
    """GFLOP/s with two decimals."""
    if record.measurement is None:
        return "Not profiled"
    flops = record.flops if isinstance(record, StoredRecord) else record.dispatch.operation.flops
    return f"{record.measurement.gflops(flops):.2f}"


# -- the table -------------------------------------------------------------------------------------


def table(
    records: Sequence[Record | StoredRecord],
    *,
    top: int | None = None,
    reference: str = DEFAULT_REFERENCE,
    width: int | None = None,
) -> str:
    """Each operation with its dispatches, the fastest first; unmeasured ones come last.

    Each device has its own table.

    `vs default` is the speedup over the compiler's own choice for the same operation, with its 95 %
    interval, and `~` if the interval includes 1; `vs <reference>` is the speedup over a library.
    `% of peak` is relative to the roofline at the operation's arithmetic intensity. `±95%` is the half
    width of the median's interval. `top` limits each operation to its fastest dispatches, the default
    and the reference. If a row of an operation exceeds `width`, its figures are below the configurations.
    """
    groups: dict[tuple[str, str], list[_Row]] = {}
    for record, speedup in SpeedupsOfRuns(reference, records).all():
        groups.setdefault((record.operation, record.provenance.device), []).append((record, speedup))
    has_devices = len({device for _, device in groups}) > 1
    return "\n\n".join(
        _group(f"{operation} on {device}" if has_devices else operation, group, top, reference, width)
        for (operation, device), group in groups.items()
    )


_Row = tuple[StoredRecord, Speedup]


def _group(title: str, group: list[_Row], top: int | None, reference: str, width: int | None) -> str:
    chosen = [
        (record, speedup)
        for i, (record, speedup) in enumerate(sorted(group, key=_median))
        if top is None or i < top or is_default(record) or record.provider == reference
    ]
    head = ["Runtime(ms)", "GFLOPs", "vs default", f"vs {reference}", "% of peak", "±95%"]
    rows = [_figures(record, speedup) for record, speedup in chosen]
    if reference == DEFAULT_REFERENCE:
        for row in (head, *rows):
            del row[3]
    least = (11, 9, *(10 for _ in head[4:]), 9, 7)
    widths = [
        max(at_least, *map(len, column))
        for at_least, column in zip(least, zip(head, *rows, strict=True), strict=True)
    ]
    lines = [
        f"  {_aligned(row, widths)}  {record.verdict.value:<13}  {record.configuration}"
        for (record, _), row in zip(chosen, rows, strict=True)
    ]
    if width is not None and max(map(len, lines)) > width:
        return _stacked(title, chosen, head, rows, width)
    text = [title, f"  {_aligned(head, widths)}  {'Verification':<13}  Configuration"]
    for (record, _), line in zip(chosen, lines, strict=True):
        text += [line, *(each for note in _notes(record) for each in _indented(note, 14, width))]
    return "\n".join(text)


def _indented(text: str, indent: int, width: int | None) -> list[str]:
    """`text` in lines of at most `width` columns, each indented."""
    space = " " * indent
    if width is None:
        return [space + text]
    return textwrap.wrap(text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)


def _stacked(
    title: str, chosen: Sequence[_Row], head: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> str:
    """Each configuration, followed by its figures in lines of at most `width` columns.

    `0.3009 ms, 446.0 GFLOPs, 1.59x vs default, 100% of peak, ±1.6%, SUCCESS`
    """
    words = {"Runtime(ms)": "{} ms", "% of peak": "{} of peak", "±95%": "±{}"}
    lines = [title]
    for (record, _), row in zip(chosen, rows, strict=True):
        figures = [
            words.get(name, f"{{}} {name}").format(text)
            for name, text in zip(head, row, strict=True)
            if text != "-"
        ]
        lines.append(f"  {record.configuration}")
        for text in (", ".join([*figures, record.verdict.value]), *_notes(record)):
            lines += _indented(text, 4, max(width, 20))
    return "\n".join(lines)


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))


def _median(row: _Row) -> float:
    measurement = row[0].measurement
    return math.inf if measurement is None else measurement.median_ms


def _figures(record: StoredRecord, speedup: Speedup) -> list[str]:
    measurement = record.measurement
    if measurement is None:
        return ["-"] * 6
    return [
        runtime_text(record),
        f"{measurement.gflops(record.flops):.1f}",
        speedup_text(speedup.vs_default) or "-",
        speedup_text(speedup.vs_reference) or "-",
        "-" if speedup.of_limit is None else f"{speedup.of_limit:.0%}",
        f"{measurement.half_width:.1%}" if measurement.has_interval else "-",
    ]


def _notes(record: StoredRecord) -> list[str]:
    """Lines below a row."""
    tuned = _tuned_text(record.configuration_fields)
    notes = [f"tuned: {tuned}"] if tuned else []
    notes += [record.reason] if record.reason else []
    notes += [record.confirmed.text] if record.confirmed else []
    if packs_weight(record):
        notes.append(f"weight: {_PACKED}")
    if record.measurement is not None:
        notes += record.measurement.warnings
        if record.measurement.ended_by == Ended.ABANDONED.value:
            notes.append("abandoned: its interval lies above the interval of the best")
        if record.was_interrupted:
            notes.append("interrupted: --resume measures it again")
    return notes

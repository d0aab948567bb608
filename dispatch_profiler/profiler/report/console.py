"""Records as people and programs read them: the document's block, a table, and CSV."""

from __future__ import annotations

import csv
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

from dispatch_profiler.command import writable
from dispatch_profiler.configurations import KINDS as CONFIGURATION_KINDS
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import KINDS as OPERATION_KINDS
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.records.record import Record, arguments_text
from dispatch_profiler.profiler.records.record_file import StoredRecord, as_stored
from dispatch_profiler.profiler.records.speedup import DEFAULT_REFERENCE, Speedup, Speedups
from dispatch_profiler.profiler.statistics.stopping import Ended

_RULE = "-" * 64
_LABEL_WIDTH = 14
_WIDTH = 80

# -- the console block -----------------------------------------------------------------------------


def block(record: Record) -> str:
    """The document's block, field for field, with a Reason where there is one."""
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
    if record.reason:
        fields.append(("Reason", _wrapped(record.reason)))
    if record.measurement is not None:
        fields += [("Warning", _wrapped(warning)) for warning in record.measurement.warnings]
    return "\n".join([_RULE, *(f"{label:<{_LABEL_WIDTH}}: {value}" for label, value in fields)])


def _wrapped(text: str) -> str:
    indent = " " * (_LABEL_WIDTH + 2)
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines)


def runtime_text(record: Record | StoredRecord) -> str:
    """Milliseconds with three decimals, or four digits where three decimals would hold fewer."""
    if record.measurement is None:
        return "Not profiled"
    median = record.measurement.median_ms
    return f"{median:.3f}" if median >= 1.0 else format(Decimal(f"{median:.4g}"), "f")


def gflops_text(record: Record | StoredRecord) -> str:
    """10**9 operations a second with two decimals."""
    if record.measurement is None:
        return "Not profiled"
    flops = record.flops if isinstance(record, StoredRecord) else record.dispatch.operation.flops
    return f"{record.measurement.gflops(flops):.2f}"


# -- the table -------------------------------------------------------------------------------------

#: The configuration that the others are compared with.
_BASELINE = Default().name


def table(records: Sequence[Record], *, top: int | None = None, reference: str = DEFAULT_REFERENCE) -> str:
    """Every operation with its dispatches, the fastest first; what was not measured comes last.

    Each device has a table of its own.

    `vs default` is the speed relative to the compiler's own choice for the same operation, `vs
    <reference>` relative to a library, `±95%` how far the 95 % interval of the median reaches from
    it, `% of peak` the speed relative to the roofline at the operation's arithmetic intensity. With `top`, only so many of each
    operation, the default, and the reference.
    """
    groups: dict[tuple[Operation, str], list[Record]] = {}
    speedups = Speedups(reference)
    for record in records:
        groups.setdefault((record.dispatch.operation, record.provenance.device), []).append(record)
        speedups.learn(record)
    tells = len({device for _, device in groups}) > 1
    return "\n\n".join(
        _group(f"{operation.name} on {device}" if tells else operation.name, group, top, speedups)
        for (operation, device), group in groups.items()
    )


def _group(title: str, group: list[Record], top: int | None, speedups: Speedups) -> str:
    reference = speedups.reference
    versus = ["vs default"] if reference == DEFAULT_REFERENCE else ["vs default", f"vs {reference}"]
    named = "".join(f" {name:>10}" for name in versus)
    head = f"  {'Runtime(ms)':>11} {'GFLOPs':>9}{named} {'% of peak':>9} {'±95%':>7}  {'Verification':<13}  Configuration"
    rows = [
        r
        for i, r in enumerate(sorted(group, key=_median))
        if top is None or i < top or r.dispatch.configuration.name == _BASELINE or r.provider == reference
    ]
    lines = [_table_row(record, speedups.of(record), len(versus)) for record in rows]
    return "\n".join([title, head, *lines])


def _median(record: Record) -> float:
    return math.inf if record.measurement is None else record.measurement.median_ms


def _table_row(record: Record, speedup: Speedup, speeds: int) -> str:
    runtime = gflops = reach = "-"
    notes = [record.reason] if record.reason else []
    if record.measurement is not None:
        runtime = runtime_text(record)
        gflops = f"{record.measurement.gflops(record.dispatch.operation.flops):.1f}"
        reach = f"{record.measurement.half_width:.1%}"
        notes += record.measurement.warnings
        if record.measurement.ended_by == Ended.ABANDONED.value:
            notes.append("given up early: surely slower than the best")
    ratios = (speedup.vs_default, speedup.vs_reference)[:speeds]
    speed = "".join(f" {'-' if ratio is None else f'{ratio:.2f}x':>10}" for ratio in ratios)
    peak = "-" if speedup.of_limit is None else f"{speedup.of_limit:.0%}"
    name = record.dispatch.configuration.name
    line = f"  {runtime:>11} {gflops:>9}{speed} {peak:>9} {reach:>7}  {record.verdict.value:<13}  {name}"
    return "\n".join([line, *(f"{'':>14}{note}" for note in notes)])


# -- CSV -------------------------------------------------------------------------------------------

_MAIN = (
    "Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments",
    "Verification", "Runtime(ms)", "GFLOPs",
)  # fmt: skip
#: Of the GPU after the last sample.
_GPU = ("sm_mhz", "memory_mhz", "watts", "celsius")
_MEASURED = (
    "min(ms)", "p20(ms)", "p80(ms)", "max(ms)", "low(ms)", "high(ms)", "spread", "samples",
    "executions_per_sample", "mode", "overhead(ms)", "ended_by", "warnings", "limit(ms)", *_GPU,
)  # fmt: skip
_STANDING = ("vs_default", "vs_reference", "reference", "of_limit")
_ORIGIN = (
    "gpu", "driver", "cpu", "cores", "memory_bytes", "system", "device", "target", "iree", "library", "seed", "when",
    "reason", "reproduce",
)  # fmt: skip


def columns() -> tuple[str, ...]:
    """Every column after the tags; the same for every run, so that files can be appended to."""
    samples = [kind.smallest() for kind in OPERATION_KINDS.values()]
    arguments = dict.fromkeys(name for op in samples for name in Dispatch(op, Default()).arguments())
    tiles = dict.fromkeys(name for kind in CONFIGURATION_KINDS.values() for name in kind.field_names)
    return (*_MAIN, "bytes", "flops", *arguments, *tiles, *_MEASURED, *_STANDING, *_ORIGIN)


def row(record: StoredRecord) -> dict[str, Any]:
    """One record as CSV values; what it does not have is empty."""
    measurement = record.measurement
    measured = {} if measurement is None else {
        "Runtime(ms)": repr(measurement.median_ms),
        "GFLOPs": repr(measurement.gflops(record.flops)),
        "min(ms)": repr(measurement.min_ms),
        "p20(ms)": repr(measurement.p20_ms),
        "p80(ms)": repr(measurement.p80_ms),
        "max(ms)": repr(measurement.max_ms),
        "low(ms)": repr(measurement.interval_ms[0]),
        "high(ms)": repr(measurement.interval_ms[1]),
        "spread": repr(measurement.spread),
        "samples": len(measurement.samples_ms),
        "executions_per_sample": measurement.executions,
        "mode": measurement.mode,
        "overhead(ms)": repr(measurement.overhead_ms),
        "ended_by": measurement.ended_by,
        "limit(ms)": repr(record.limit_ms) if record.limit_ms else "",
        "warnings": "; ".join(measurement.warnings),
        **{name: getattr(measurement.gpu, name, "") for name in _GPU},
    }  # fmt: skip
    return {
        "Dispatch": record.dispatch,
        "Provider": record.provider,
        "OpKind": record.op_kind,
        "Operation": record.operation,
        "Configuration": record.configuration,
        "Arguments": arguments_text(record.arguments),
        "Verification": record.verdict.value,
        "bytes": record.bytes,
        "flops": record.flops,
        **record.arguments,
        **record.configuration_fields,
        **measured,
        **{name: value or "" for name, value in asdict(record.provenance.machine).items()},
        "device": record.provenance.device,
        "target": record.provenance.target,
        "iree": record.provenance.iree,
        "library": record.provenance.library,
        "seed": record.provenance.seed,
        "when": record.provenance.when,
        "reason": record.reason,
        "reproduce": record.reproduce,
    }


def _speedup_columns(record: StoredRecord, speedups: Speedups) -> dict[str, Any]:
    """Speeds relative to what has been measured before; empty where nothing has."""
    found = speedups.of(record)
    return {
        "reference": speedups.reference,
        **{
            name: "" if value is None else repr(value)
            for name, value in (
                ("vs_default", found.vs_default),
                ("vs_reference", found.vs_reference),
                ("of_limit", found.of_limit),
            )
        },
    }


class CsvReport:
    """Writes rows as they come, tags first. Use as a context manager.

    `speedups` knows what rows are compared with, and learns of each that is added. What an operation
    is compared with comes early in it; the rows before it get their speeds when it does.

    Raises UsageError if the folder is missing, if a tag has the name of a column, or if `append`
    is asked for and the file has other columns.
    """

    def __init__(
        self,
        path: Path,
        speedups: Speedups | None = None,
        *,
        append: bool = False,
        tags: dict[str, str] | None = None,
    ) -> None:
        self._tags = tags or {}
        self._speedups = speedups or Speedups()
        self._header = [*self._tags, *columns()]
        writable("--output", str(path))
        for name in self._tags:
            if name in columns():
                raise UsageError(f"--tags: {name!r} is the name of a column already")
        old = _first_row(path) if append else None
        if old is not None and old != self._header:
            raise UsageError(f"--append: {path} has other columns ({_difference(old, self._header)})")
        unfinished = old is not None and not path.read_bytes().endswith(b"\n")
        self._file = path.open("w" if old is None else "r+", newline="")
        if old is not None:
            self._file.seek(0, os.SEEK_END)
        if unfinished:
            self._file.write("\r\n")
        self._writer = csv.DictWriter(self._file, self._header)
        if old is None:
            self._writer.writeheader()
            self._file.flush()
        #: Rows of the operation at hand, where they begin in the file, and what was known of each.
        self._begin = 0
        self._written: list[tuple[StoredRecord, Speedup]] = []

    def add(self, record: Record | StoredRecord) -> None:
        """Write one row, so that it is on disk before the next dispatch begins.

        One that was stored before keeps its own tags.
        """
        new = as_stored(record, self._tags)
        self._speedups.learn(new)
        if not self._written or self._written[0][0].operation != new.operation:
            self._begin, self._written = self._file.tell() if self._file.seekable() else 0, []
        rows = [new]
        if self._file.seekable() and any(self._speedups.of(old) != told for old, told in self._written):
            rows = [*(old for old, _ in self._written), new]
            self._file.seek(self._begin)
            self._written = []
        for each in rows:
            self._writer.writerow({**each.tags, **row(each), **_speedup_columns(each, self._speedups)})
            self._written.append((each, self._speedups.of(each)))
        self._file.flush()
        if len(rows) > 1:
            self._file.truncate()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> CsvReport:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _first_row(path: Path) -> list[str] | None:
    """The header of an existing file; None if there is none yet."""
    if not path.exists():
        return None
    try:
        with path.open(newline="") as file:
            return next(csv.reader(file), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--append: {path} is no CSV: {error}") from error


def _difference(old: Sequence[str], new: Sequence[str]) -> str:
    missing = [name for name in new if name not in old]
    extra = [name for name in old if name not in new]
    parts = [f"it lacks {', '.join(missing)}"] if missing else []
    parts += [f"it also has {', '.join(extra)}"] if extra else []
    return "; ".join(parts) or "in another order"

"""The outputs of a run: standard output, CSV with all samples beside it, Markdown, JUnit."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

from dispatch_profiler.closing import Closing
from dispatch_profiler.command import say, show, warn, writable
from dispatch_profiler.configurations import Default, report_columns
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.streams import discard_output, width_of
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.destinations import destination, open_stream, write_output
from dispatch_profiler.files.private_files import write_private
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.operations import KINDS as OPERATION_KINDS
from dispatch_profiler.profiler.measurement.measure import included_text, interval_texts
from dispatch_profiler.profiler.records.record import (
    Confirmation,
    Record,
    StoredRecord,
    arguments_text,
    as_stored,
    stored,
)
from dispatch_profiler.profiler.records.record_file import JsonLines, beside_csv, read_records, to_line
from dispatch_profiler.profiler.records.speedup import DEFAULT_REFERENCE, Speedup, SpeedupsOfRuns
from dispatch_profiler.profiler.report import run_report
from dispatch_profiler.profiler.report.console import block, table
from dispatch_profiler.profiler.report_files import ReportFiles
from dispatch_profiler.profiler.statistics.comparison import Ratio

# -- csv report ------------------------------------------------------------------------------------

# Records as CSV: one row each, derived from the JSON lines beside the file.


_MAIN = (
    "Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments",
    "Verification", "Runtime(ms)", "GFLOPs",
)  # fmt: skip
#: The most characters of a first line that are read.
_MOST_HEADER = 1 << 16
#: State of the GPU after the last sample.
_GPU = ("sm_mhz", "memory_mhz", "watts", "celsius")
_MEASURED = (
    "min(ms)", "p20(ms)", "p80(ms)", "max(ms)", "low(ms)", "high(ms)", "spread", "samples",
    "executions_per_sample", "mode", "includes", "overhead(ms)", "eager(ms)", "library_call(ms)", "ended_by", "warnings", "limit(ms)", *_GPU,
)  # fmt: skip
_SPEEDUP = (
    "vs_default", "vs_default_low", "vs_default_high", "vs_reference", "vs_reference_low", "vs_reference_high",
    "reference", "of_limit", "confirmed", "confirmed_speed", "confirmed_low", "confirmed_high",
)  # fmt: skip
_ORIGIN = (
    "gpu", "driver", "cpu", "cores", "memory_bytes", "system", "device", "target", "iree", "library", "seed", "when",
    "flags", "module_key", "reason", "reproduce",
)  # fmt: skip


def columns() -> tuple[str, ...]:
    """All columns after the tags; the same for every run, so that runs can be appended."""
    samples = [kind.smallest() for kind in OPERATION_KINDS.values()]
    arguments = dict.fromkeys(
        name
        for operation in samples
        for name in (*Dispatch(operation, Default()).arguments(), *operation.argument_names())
    )
    return (*_MAIN, "bytes", "flops", *arguments, *report_columns(), *_MEASURED, *_SPEEDUP, *_ORIGIN)


def row(record: StoredRecord) -> dict[str, Any]:
    """A record as CSV values; missing values are empty."""
    measurement = record.measurement
    low, high = ("", "") if measurement is None else interval_texts(measurement)
    measured = {} if measurement is None else {
        "Runtime(ms)": repr(measurement.median_ms),
        "GFLOPs": repr(measurement.gflops(record.flops)),
        "min(ms)": repr(measurement.min_ms),
        "p20(ms)": repr(measurement.p20_ms),
        "p80(ms)": repr(measurement.p80_ms),
        "max(ms)": repr(measurement.max_ms),
        "low(ms)": low,
        "high(ms)": high,
        "spread": repr(measurement.spread) if measurement.has_interval else "",
        "samples": len(measurement.samples_ms),
        "executions_per_sample": measurement.executions,
        "mode": measurement.mode,
        "includes": included_text(measurement.includes),
        "overhead(ms)": repr(measurement.overhead_ms),
        "eager(ms)": repr(measurement.eager_ms) if measurement.eager_ms else "",
        "library_call(ms)": repr(measurement.library_call_ms) if measurement.library_call_ms else "",
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
        **_confirmed_columns(record.confirmed),
        "flags": " ".join(record.provenance.flags),
        "module_key": record.provenance.module_key,
        "reason": record.reason,
        "reproduce": record.reproduce,
    }


def _speedup_columns(speedup: Speedup, reference: str) -> dict[str, Any]:
    return {
        **_ratio_columns("vs_default", speedup.vs_default),
        **_ratio_columns("vs_reference", speedup.vs_reference),
        "reference": reference,
        "of_limit": "" if speedup.of_limit is None else repr(speedup.of_limit),
    }


def _confirmed_columns(confirmation: Confirmation | None) -> dict[str, str]:
    if confirmation is None:
        return {}
    figures = {
        "confirmed_speed": confirmation.speed,
        "confirmed_low": confirmation.low,
        "confirmed_high": confirmation.high,
    }
    return {
        "confirmed": confirmation.outcome,
        **{name: repr(value) for name, value in figures.items() if value},
    }


def _ratio_columns(name: str, ratio: Ratio | None) -> dict[str, str]:
    """A ratio and the ends of its interval; unknown values are omitted."""
    if ratio is None:
        return {}
    ends = {f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    return {
        name: repr(ratio.value),
        **{end: repr(value) for end, value in ends.items() if 0 < value < math.inf},
    }


class CsvReport(Closing):
    """Writes rows one by one, tags first. Use as a context manager.

    The file is atomically replaced by one with the `earlier` records. For speedups see
    `SpeedupsOfRuns`: rows are updated when their baseline arrives, but not in a device or a pipe.

    Raises UsageError if the folder is missing, or if a tag has the name of a column.
    """

    def __init__(
        self,
        path: Path,
        reference: str = DEFAULT_REFERENCE,
        *,
        tags: Mapping[str, str] | None = None,
        earlier: Sequence[StoredRecord] = (),
    ) -> None:
        self._tags = dict(tags or {})
        writable("--output", str(path))
        known = columns()
        for name in self._tags:
            if name in known:
                raise UsageError(f"--tags: {name!r} is already the name of a column")
        names = dict.fromkeys([*(name for record in earlier for name in record.tags), *self._tags])
        self._header = [*(name for name in names if name not in known), *known]
        self._speedups = SpeedupsOfRuns(reference, earlier)
        place = destination(path)
        #: Whether rows that were written can be updated: not in a pipe.
        self._updates = place is not None
        rows = self._first_rows()
        if place is not None:
            write_atomic(place, rows)
            self._file: BinaryIO = place.open("r+b")
            self._file.seek(0, os.SEEK_END)
        else:
            self._file = open_stream(path)
            self._file.write(rows)
            self._file.flush()

    def _first_rows(self) -> bytes:
        """The header and a row for each earlier record."""
        lines = [self._line(dict(zip(self._header, self._header, strict=True)))]
        #: The offset of each row.
        self._offsets = [len(lines[0])]
        for record, speedup in self._speedups.all():
            lines.append(self._row(record, speedup))
            self._offsets.append(self._offsets[-1] + len(lines[-1]))
        return b"".join(lines)

    def add(self, record: Record | StoredRecord) -> None:
        """Write one row and flush it, before the next dispatch begins.

        A stored record keeps its own tags.
        """
        first = self._speedups.add(as_stored(record, self._tags))
        count = len(self._speedups.records)
        if not self._updates:
            first = count - 1
        else:
            self._file.seek(self._offsets[first])
            self._file.truncate()
            del self._offsets[first + 1 :]
        for index in range(first, count):
            line = self._row(self._speedups.records[index], self._speedups.of(index))
            self._file.write(line)
            if self._updates:
                self._offsets.append(self._offsets[-1] + len(line))
        self._file.flush()

    def _row(self, record: StoredRecord, speedup: Speedup) -> bytes:
        speeds = _speedup_columns(speedup, self._speedups.reference)
        return self._line({**record.tags, **row(record), **speeds})

    def _line(self, values: Mapping[str, object]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, self._header, extrasaction="ignore").writerow(values)
        return text.getvalue().encode("utf-8", "backslashreplace")

    def close(self) -> None:
        self._file.close()


#: Formats of standard output.
FORMATS = ("blocks", "table", "json")


def write_run(files: ReportFiles, records: Sequence[StoredRecord], names: Sequence[str] = ()) -> None:
    """Write `records` to the requested files. `names` has the file name of each record."""
    files.write(lambda: run_report.markdown(records, names), lambda: run_report.junit(records, names))


def samples_file(csv_: Path) -> Path | None:
    """The file for all samples beside a CSV file; None beside a device or a pipe, which gets rows only."""
    return None if destination(csv_) is None else beside_csv(csv_)


#: Endings of other formats, and where to find them.
_OTHER_FORMATS = {
    ".json": "every sample goes to FILE.jsonl, as lines of JSON",
    ".md": "profile --markdown=FILE writes Markdown",
    ".xml": "profile --junit=FILE writes JUnit",
    ".html": "dispatch-profiler report FILE.jsonl -o FILE.html writes a page",
}


def check_output(csv_: Path, *, extends: bool = False, inputs: Iterable[Path] = ()) -> None:
    """Check that rows may be written to `csv_`, and samples beside it; both replace files unless the run `extends` them.

    The sample file belongs to `csv_` if `csv_` has rows of this package; it may also be one of `inputs`. Raises UsageError
    if `csv_` has the name of another format, or if the sample file is not known to belong to it: its records would be lost.
    """
    ending = csv_.suffix.lower()
    if ending in _OTHER_FORMATS and samples_file(csv_) is not None:
        raise UsageError(
            f"--output: {csv_} has the ending of another format, but gets rows of CSV",
            hint=f"name a CSV file, {csv_.with_suffix('.csv').name}: {_OTHER_FORMATS[ending]}",
        )
    beside = None if extends else samples_file(csv_)
    if beside is None or not beside.is_file() or not beside.stat().st_size or _has_rows(csv_):
        return
    if any(each.exists() and each.samefile(beside) for each in inputs):
        return
    raise UsageError(
        f"--output: {beside} gets every sample, but is not known to belong to {csv_}: its lines would be lost",
        hint=f"name another file, or move {beside.name}; profile --append and --resume keep its records",
    )


def _has_rows(csv_: Path) -> bool:
    """Whether it is a file whose first line has columns of this package."""
    if not csv_.is_file():
        return False
    with csv_.open(encoding="utf-8", errors="replace") as file:
        header = next(csv.reader([file.readline(_MOST_HEADER)]), [])
    return any(name in _MAIN for name in header)


def and_samples(csv_: Path) -> str:
    """`, every sample to data.jsonl`, after the name of a CSV file; empty for a device or a pipe."""
    beside = samples_file(csv_)
    return f", every sample to {beside}" if beside else ""


#: A record and its result by paired sampling.
Confirmed = tuple[StoredRecord, Confirmation]


def _with_confirmations(
    records: Sequence[StoredRecord], confirmed: Sequence[Confirmed]
) -> list[StoredRecord]:
    known = {(record.dispatch, record.provenance): confirmation for record, confirmation in confirmed}
    return [
        replace(record, confirmed=known.get((record.dispatch, record.provenance), record.confirmed))
        for record in records
    ]


class RunOutputs(Closing):
    """Receives each record as it finishes. Use as a context manager; `finish` writes the final outputs."""

    def __init__(
        self,
        format_: str,
        tags: Mapping[str, str],
        files: ReportFiles,
        top: int | None = None,
        reference: str = DEFAULT_REFERENCE,
    ) -> None:
        self._format, self._tags, self._files, self._top = format_, dict(tags), files, top
        self._reference = reference
        self._writers: list[JsonLines | CsvReport] = []
        self._open = ExitStack()
        self._is_unread = False
        #: The CSV file that has samples beside it.
        self._csv: Path | None = None
        self.records: list[Record] = []

    def to_csv(self, path: Path, earlier: Sequence[StoredRecord] | None = None) -> None:
        """Also write rows to `path` and samples beside it, after the `earlier` records of the file.

        None replaces both files. A device or a pipe gets rows only. Raises UsageError like CsvReport.
        """
        beside, rows = samples_file(path), earlier or ()
        csv_ = self._open.enter_context(CsvReport(path, self._reference, tags=self._tags, earlier=rows))
        self._writers = [csv_]
        if beside is not None:
            self._csv = path
            lines = self._open.enter_context(JsonLines(beside, append=earlier is not None, tags=self._tags))
            # Samples are written first, so that no row lacks its samples if the process is killed.
            self._writers = [lines, csv_]

    @property
    def shows_blocks(self) -> bool:
        """True if blocks on standard output show the progress."""
        return self._format == "blocks"

    @property
    def streams(self) -> bool:
        """True if each record goes to standard output as it finishes."""
        return self._format != "table"

    def add(self, record: Record) -> None:
        """Print and write one record, before the next dispatch begins."""
        if self._format == "blocks":
            self._print(block(record))
        elif self._format == "json":
            self._print(to_line(stored(record, self._tags)))
        for writer in self._writers:
            writer.add(record)
        self.records.append(record)

    def finish(self, earlier: Sequence[StoredRecord] = (), confirmed: Sequence[Confirmed] = ()) -> None:
        """Write the table, Markdown and JUnit, including `earlier` records that were not measured again.

        Adds the `confirmed` results to their records, also in the files of `to_csv`, which must be closed.
        """
        records = _with_confirmations(self.stored_records(earlier), confirmed)
        if confirmed and self._csv is not None:
            beside = beside_csv(self._csv)
            known = _with_confirmations(read_records(beside), confirmed)
            write_output(beside, "".join(f"{to_line(record)}\n" for record in known))
            with CsvReport(self._csv, self._reference, earlier=known):
                pass
        if self._format == "table":
            self._print(table(records, top=self._top, reference=self._reference, width=width_of(sys.stdout)))
        write_run(self._files, records)

    def stored_records(self, earlier: Sequence[StoredRecord] = ()) -> list[StoredRecord]:
        """`earlier` records and the records of this run."""
        return [*earlier, *(stored(record, self._tags) for record in self.records)]

    def keep(
        self, fallback: Path, earlier: Sequence[StoredRecord] = (), confirmed: Sequence[Confirmed] = ()
    ) -> None:
        """Call `finish` when the run stops early; without a CSV, keep the records beside `fallback`."""
        self.finish(earlier, confirmed)
        if not self.records:
            return
        path = self._csv or fallback
        if self._csv is None:
            records = _with_confirmations(self.stored_records(), confirmed)
            lines = "".join(f"{to_line(record)}\n" for record in records)
            write_private(beside_csv(fallback), lines)
        finished = counted(len(self.records), "finished dispatch")
        say(f"{finished} saved in {beside_csv(path)}; continue with --resume --output={path}")

    def _print(self, text: str) -> None:
        """Print data. If standard output is closed, only files are written; raises BrokenPipeError without any."""
        if self._is_unread:
            return
        try:
            show(text)
        except BrokenPipeError:
            self._is_unread = True
            discard_output()
            if self._writers or self._files.markdown or self._files.junit:
                warn("standard output was closed; the run continues, because it writes files")
                return
            warn("standard output was closed, so the run stops; with --output=FILE.csv it would continue")
            raise

    def close(self) -> None:
        self._open.close()

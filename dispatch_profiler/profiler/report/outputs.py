"""The outputs of a run: standard output, CSV with all samples beside it, Markdown, JUnit."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from dispatch_profiler.closing import Closing
from dispatch_profiler.command import say, show, warn, writable
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.streams import discard_output, width_of
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.destinations import destination, open_stream, write_output
from dispatch_profiler.files.private_files import write_private
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.profiler.records.record import (
    Confirmation,
    Record,
    StoredRecord,
    as_stored,
    stored,
)
from dispatch_profiler.profiler.records.record_file import JsonLines, beside_csv, read_records, to_line
from dispatch_profiler.profiler.records.speedup import DEFAULT_REFERENCE, Speedup, SpeedupsOfRuns
from dispatch_profiler.profiler.report import run_report
from dispatch_profiler.profiler.report.console import block, table
from dispatch_profiler.profiler.report.csv_columns import (
    MAIN,
    chosen_columns,
    columns,
    csv_row,
    header_of,
    kept_columns,
)
from dispatch_profiler.profiler.report_files import ReportFiles

# -- csv report ------------------------------------------------------------------------------------


class CsvReport(Closing):
    """Writes rows one by one, tags first. Use as a context manager.

    The file is atomically replaced by one with the `earlier` records. It has the `chosen` columns, by default all.
    For speedups see `SpeedupsOfRuns`: rows are updated when their baseline arrives, but not in a device or a pipe.

    Raises UsageError if the folder is missing, or if a tag has the name of a column.
    """

    def __init__(
        self,
        path: Path,
        reference: str = DEFAULT_REFERENCE,
        *,
        tags: Mapping[str, str] | None = None,
        earlier: Sequence[StoredRecord] = (),
        chosen: Sequence[str] = (),
    ) -> None:
        self._tags = dict(tags or {})
        writable("--output", str(path))
        known = columns()
        for name in self._tags:
            if name in known:
                raise UsageError(f"--tags: {name!r} is already the name of a column")
        names = dict.fromkeys([*(name for record in earlier for name in record.tags), *self._tags])
        self._header = [*(name for name in names if name not in known), *(chosen or known)]
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
        return self._line(csv_row(record, speedup, self._speedups.reference))

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
    return any(name in MAIN for name in header_of(csv_))


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
        #: The CSV file that has samples beside it, and its columns.
        self._csv: Path | None = None
        self._columns: tuple[str, ...] = ()
        self.records: list[Record] = []

    def to_csv(
        self, path: Path, earlier: Sequence[StoredRecord] | None = None, names: str | None = None
    ) -> None:
        """Also write rows to `path` and samples beside it, after the `earlier` records of the file.

        `names` is the value of `--columns`; without it, a file with earlier records keeps its columns. `earlier` of None
        replaces both files. A device or a pipe gets rows only. Raises UsageError like CsvReport and for unknown columns.
        """
        beside, rows = samples_file(path), earlier or ()
        keeps = names is None and earlier is not None
        self._columns = kept_columns(path, rows) if keeps else chosen_columns(names)
        csv_ = self._open.enter_context(
            CsvReport(path, self._reference, tags=self._tags, earlier=rows, chosen=self._columns)
        )
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
            with CsvReport(self._csv, self._reference, earlier=known, chosen=self._columns):
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

"""The outputs of a run: standard output, CSV with all samples beside it, Markdown, JUnit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dispatch_profiler.command import say, show, warn
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.streams import discard_output, width_of
from dispatch_profiler.files.destinations import destination, write_output
from dispatch_profiler.files.private_files import write_private
from dispatch_profiler.profiler.records.record import Confirmation, Record
from dispatch_profiler.profiler.records.record_file import (
    JsonLines,
    StoredRecord,
    beside_csv,
    read_records,
    stored,
    to_line,
)
from dispatch_profiler.profiler.records.speedup import DEFAULT_REFERENCE
from dispatch_profiler.profiler.report import run_report
from dispatch_profiler.profiler.report.console import block, table
from dispatch_profiler.profiler.report.csv_report import CsvReport
from dispatch_profiler.profiler.report_files import ReportFiles

#: Formats of standard output.
FORMATS = ("blocks", "table", "json")


def write_run(files: ReportFiles, records: Sequence[StoredRecord], names: Sequence[str] = ()) -> None:
    """Write `records` to the requested files. `names` has the file name of each record."""
    files.write(lambda: run_report.markdown(records, names), lambda: run_report.junit(records, names))


def samples_file(csv_: Path) -> Path | None:
    """The file for all samples beside a CSV file; None beside a device or a pipe, which gets rows only."""
    return None if destination(csv_) is None else beside_csv(csv_)


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


class RunOutputs:
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

    def __enter__(self) -> RunOutputs:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

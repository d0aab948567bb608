"""Where the records of a run go: standard output, CSV with every sample beside it, Markdown, JUnit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dispatch_profiler.command import say, show, warn
from dispatch_profiler.files import write_atomic
from dispatch_profiler.output_files import ReportFiles
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
from dispatch_profiler.streams import discard_output, width_of

#: Each form of standard output.
FORMATS = ("blocks", "table", "json")


def write_run(files: ReportFiles, records: Sequence[StoredRecord], names: Sequence[str] = ()) -> None:
    """Write `records` to the files that were asked for. `names` has the name of the file of each record."""
    files.write(lambda: run_report.markdown(records, names), lambda: run_report.junit(records, names))


#: A record with what paired sampling says of it.
Confirmed = tuple[StoredRecord, Confirmation]


def _with_confirmations(
    records: Sequence[StoredRecord], confirmed: Sequence[Confirmed]
) -> list[StoredRecord]:
    known = {(record.dispatch, record.provenance): found for record, found in confirmed}
    return [
        replace(record, confirmed=known.get((record.dispatch, record.provenance), record.confirmed))
        for record in records
    ]


class RunOutputs:
    """Takes each record as it is done. Use as a context manager; `finish` writes what needs all."""

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
        self._csv: Path | None = None
        self.records: list[Record] = []

    def to_csv(self, path: Path, earlier: Sequence[StoredRecord] | None = None) -> None:
        """Also write samples beside `path`, and rows to it; behind the `earlier` records of the file.

        None replaces both files. Raises UsageError as CsvReport does.
        """
        self._csv, beside, rows = path, beside_csv(path), earlier or ()
        # Samples are written first: if the process is killed, no row lacks its samples.
        csv_ = self._open.enter_context(CsvReport(path, self._reference, tags=self._tags, earlier=rows))
        lines = self._open.enter_context(JsonLines(beside, append=earlier is not None, tags=self._tags))
        self._writers = [lines, csv_]

    @property
    def shows_blocks(self) -> bool:
        """Does everybody see on standard output how far it is?"""
        return self._format == "blocks"

    @property
    def streams(self) -> bool:
        """Does each record go to standard output as it is done?"""
        return self._format != "table"

    def add(self, record: Record) -> None:
        """Show and write one record, so that it is there before the next dispatch begins."""
        if self._format == "blocks":
            self._print(block(record))
        elif self._format == "json":
            self._print(to_line(stored(record, self._tags)))
        for writer in self._writers:
            writer.add(record)
        self.records.append(record)

    def finish(self, earlier: Sequence[StoredRecord] = (), confirmed: Sequence[Confirmed] = ()) -> None:
        """The table, Markdown and JUnit; with `earlier` records, which this run did not make again.

        What was `confirmed` of records is added to them, in the files of `to_csv` too, once these are closed.
        """
        records = _with_confirmations(self.stored_records(earlier), confirmed)
        if confirmed and self._csv is not None:
            beside = beside_csv(self._csv)
            known = _with_confirmations(read_records(beside), confirmed)
            write_atomic(beside, "".join(f"{to_line(record)}\n" for record in known))
            with CsvReport(self._csv, self._reference, earlier=known):
                pass
        if self._format == "table":
            self._print(table(records, top=self._top, reference=self._reference, width=width_of(sys.stdout)))
        write_run(self._files, records)

    def stored_records(self, earlier: Sequence[StoredRecord] = ()) -> list[StoredRecord]:
        """`earlier` records and those of this run."""
        return [*earlier, *(stored(record, self._tags) for record in self.records)]

    def keep(
        self, fallback: Path, earlier: Sequence[StoredRecord] = (), confirmed: Sequence[Confirmed] = ()
    ) -> None:
        """`finish` when the run stops early; records without a CSV are kept beside `fallback`."""
        self.finish(earlier, confirmed)
        if not self.records:
            return
        path = self._csv or fallback
        if self._csv is None:
            fallback.parent.mkdir(parents=True, exist_ok=True)
            records = _with_confirmations(self.stored_records(), confirmed)
            lines = "".join(f"{to_line(record)}\n" for record in records)
            write_atomic(beside_csv(fallback), lines)
        count = len(self.records)
        say(f"{count} finished dispatches are in {beside_csv(path)}; continue with --resume --output={path}")

    def _print(self, text: str) -> None:
        """Print data. Once standard output is closed, only files are written; raises BrokenPipeError without files."""
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

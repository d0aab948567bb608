"""Where the records of a run go: standard output, CSV with every sample beside it, Markdown, JUnit."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.command import Parser, say, writable
from dispatch_profiler.files import write_atomic
from dispatch_profiler.profiler import run_report
from dispatch_profiler.profiler.record_file import JsonLines, StoredRecord, beside_csv, stored, to_line
from dispatch_profiler.profiler.records import Record
from dispatch_profiler.profiler.report import CsvReport, block, table
from dispatch_profiler.profiler.standing import Standings

#: Each form of standard output.
FORMATS = ("blocks", "table", "json")


def add_file_arguments(parser: Parser) -> None:
    """`--markdown` and `--junit`, which all commands take that report."""
    parser.add_argument("--markdown", metavar="FILE.md", help="also write Markdown tables, in the end")
    parser.add_argument(
        "--junit", metavar="FILE.xml", help="also write JUnit, a test case for each dispatch, in the end"
    )


@dataclass(frozen=True)
class ReportFiles:
    """What is written when everything is known; None: not at all."""

    markdown: Path | None = None
    junit: Path | None = None

    @staticmethod
    def of(options: argparse.Namespace) -> ReportFiles:
        """Those that `add_file_arguments` took. Raises UsageError if one cannot be written."""
        return ReportFiles(
            writable("--markdown", options.markdown) if options.markdown else None,
            writable("--junit", options.junit) if options.junit else None,
        )

    def write(self, markdown: Callable[[], str], junit: Callable[[], str]) -> None:
        """Write each that was asked for, whole or not at all."""
        for path, text in ((self.markdown, markdown), (self.junit, junit)):
            if path is not None:
                # A reason may hold bytes that are no text.
                write_atomic(path, text().encode("utf-8", "backslashreplace"))
                say(f"Writing {path}")

    def write_run(self, records: Sequence[StoredRecord]) -> None:
        """Write what became of `records`."""
        self.write(lambda: run_report.markdown(records), lambda: run_report.junit(records))


class RunOutputs:
    """Takes each record as it is done. Use as a context manager; `finish` writes what needs all."""

    def __init__(
        self,
        format_: str,
        tags: Mapping[str, str],
        files: ReportFiles,
        top: int | None,
        standings: Standings,
    ) -> None:
        self._format, self._tags, self._files, self._top = format_, dict(tags), files, top
        self._standings = standings
        self._writers: list[CsvReport | JsonLines] = []
        self._open = ExitStack()
        self.records: list[Record] = []

    def to_csv(self, path: Path, *, append: bool) -> None:
        """Also write rows to `path` and samples beside it. Raises UsageError as CsvReport does."""
        beside = beside_csv(path)
        self._writers = [
            self._open.enter_context(CsvReport(path, self._standings, append=append, tags=self._tags)),
            self._open.enter_context(JsonLines(beside, append=append, tags=self._tags)),
        ]

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
            print(block(record), flush=True)
        elif self._format == "json":
            print(to_line(stored(record, self._tags)), flush=True)
        for writer in self._writers:
            writer.add(record)
        self.records.append(record)

    def finish(self, earlier: Sequence[StoredRecord] = ()) -> None:
        """The table, Markdown and JUnit; with `earlier` records, which this run did not make again."""
        if self._format == "table":
            print(table(self.records, top=self._top, reference=self._standings.reference))
        self._files.write_run([*earlier, *(stored(record, self._tags) for record in self.records)])

    def __enter__(self) -> RunOutputs:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

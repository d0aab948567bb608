"""`dispatch-profiler report`: record files -> an HTML page, Markdown, JUnit, and figures for papers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.command import SUCCESS, Parser, folder, run, say, writable
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.profiler.records.record import StoredRecord, distinct, without_interrupted
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.report.html import export, file_names, grouped, render_page
from dispatch_profiler.profiler.report.outputs import write_run
from dispatch_profiler.profiler.report_files import ReportFiles, add_file_arguments

PROG = "dispatch-profiler report"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="no partial report was written")


def _main(options: argparse.Namespace) -> int:
    output, files = writable("--output", options.output), ReportFiles.of(options)
    paths = [folder(text) for text in options.records]
    records, names = _read(paths)
    title = options.title or ", ".join(dict.fromkeys(path.name for path in paths))
    write_output(output, render_page(records, title, names))
    write_run(files, records, names)
    say(f"Writing the report of {counted(len(records), 'dispatch')} to {output}")
    if options.figures:
        written = export(grouped(records, names), folder(options.figures))
        say(f"Writing {counted(len(written), 'figure')} to {options.figures}")
    return SUCCESS


def _read(paths: Sequence[Path]) -> tuple[list[StoredRecord], list[str]]:
    """Every record once, and the file name of each."""
    read = [
        (record, name)
        for path, name in zip(paths, file_names(paths), strict=True)
        for record in without_interrupted(read_records(path))
    ]
    first = distinct([record for record, _ in read])
    if len(first) < len(read):
        duplicates = counted(len(read) - len(first), "duplicate record")
        say(f"ignoring {duplicates} of {len(read)}")
    return [read[at][0] for at in first], [read[at][1] for at in first]


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    page = HelpPage(
        examples=(
            f"{prog} data.jsonl -o report.html",
            f"{prog} monday.jsonl tuesday.jsonl --markdown=run.md",
        )
    )
    parser = Parser(prog, "Write records as one HTML file that works offline.", page)
    parser.add_argument(
        "records", nargs="+", metavar="RECORDS", help=".jsonl files that `profile --output` wrote"
    )
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="the report (default: %(default)s)"
    )
    parser.add_argument(
        "--figures", metavar="DIR", help="also write each figure as SVG and PNG; requires Chrome or Chromium"
    )
    add_file_arguments(parser)
    parser.add_argument(
        "--title", default="", help="title of the page (default: the names of the record files)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.profiler.report.cli"))

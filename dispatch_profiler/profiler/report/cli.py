"""`dispatch-profiler report`: record files -> one HTML file, Markdown, JUnit, and figures for papers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dispatch_profiler.command import SUCCESS, Parser, folder, run, say, writable
from dispatch_profiler.files import write_atomic
from dispatch_profiler.output_files import ReportFiles, add_file_arguments
from dispatch_profiler.profiler.records.record_file import distinct_records, read_records
from dispatch_profiler.profiler.report.html import export, grouped, render_page
from dispatch_profiler.profiler.report.outputs import write_run

PROG = "dispatch-profiler report"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="the report is written whole or not at all")


def _main(options: argparse.Namespace) -> int:
    output, files = writable("--output", options.output), ReportFiles.of(options)
    paths = [folder(text) for text in options.records]
    every = [record for path in paths for record in read_records(path)]
    records = distinct_records(every)
    if len(every) > len(records):
        say(
            f"{len(every) - len(records)} of {len(every)} records are in more than one file: each counts once"
        )
    title = options.title or ", ".join(path.name for path in paths)
    # A name of a file may hold bytes that are no text.
    write_atomic(output, render_page(records, title).encode("utf-8", "backslashreplace"))
    write_run(files, records)
    say(f"Writing the report of {len(records)} dispatches to {output}")
    if options.figures:
        written = export(grouped(records), folder(options.figures))
        say(f"Writing {len(written)} figures to {options.figures}")
    return SUCCESS


def make_parser(prog: str = PROG) -> Parser:
    """What this command takes."""
    parser = Parser(prog, "Write records as one HTML file that opens without a network.")
    parser.add_argument(
        "records", nargs="+", metavar="RECORDS", help="the .jsonl that profiler.py --output wrote"
    )
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="where to (default: %(default)s)"
    )
    parser.add_argument("--figures", metavar="DIR", help="also write each figure as SVG and PNG")
    add_file_arguments(parser)
    parser.add_argument("--title", default="", help="headline (default: names of the record files)")
    return parser

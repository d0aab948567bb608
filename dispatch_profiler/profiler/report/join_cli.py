"""`dispatch-profiler join`: records of several machines or runs -> one CSV with its samples."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler.command import SUCCESS, Parser, folder, run, say, writable
from dispatch_profiler.profiler.providers.libraries import LIBRARY_METHODS
from dispatch_profiler.profiler.providers.library_calls import IREE, choose_reference
from dispatch_profiler.profiler.records.record_file import (
    JsonLines,
    StoredRecord,
    beside_csv,
    distinct,
    read_records,
)
from dispatch_profiler.profiler.report.csv_report import CsvReport

PROG = "dispatch-profiler join"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="nothing was written")


def _main(options: argparse.Namespace) -> int:
    output = writable("--output", options.output)
    every = [record for text in options.records for record in read_records(folder(text))]
    records = [every[at] for at in distinct(every)]
    # Of Triton and its like the kernels are dispatches.
    libraries = dict.fromkeys(record.provider for record in records if record.provider in LIBRARY_METHODS)
    reference = choose_reference(options.reference, (IREE, *libraries))
    _write(records, output, reference)
    twice = f" ({len(every) - len(records)} stood in more than one)" if len(every) > len(records) else ""
    say(f"Writing {len(records)} records{twice} to {output}, every sample to {beside_csv(output)}")
    return SUCCESS


def make_parser(prog: str = PROG) -> Parser:
    """What this command takes."""
    parser = Parser(prog, "Put the records of several files into one; what stands in two comes once.")
    parser.add_argument(
        "records", nargs="+", metavar="RECORDS", help="a .jsonl that profiler.py --output wrote"
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE.csv",
        help="rows to write; every sample goes to FILE.jsonl, which may be one of RECORDS",
    )  # fmt: skip
    parser.add_argument(
        "--reference", metavar="NAME",
        help="what vs_reference is relative to, as profiler.py has it (default: the first library, if any)",
    )  # fmt: skip
    return parser


def _write(records: Sequence[StoredRecord], output: Path, reference: str) -> None:
    """Both files, each whole or not at all."""
    beside = beside_csv(output)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
        rows, lines = Path(scratch) / output.name, Path(scratch) / beside.name
        with JsonLines(lines) as samples:
            for record in records:
                samples.add(record)
        with CsvReport(rows, reference, earlier=records):
            pass
        os.replace(lines, beside)
        os.replace(rows, output)

"""`dispatch-profiler join`: records of several machines or runs -> one CSV with all samples."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler.command import SUCCESS, Parser, folder, run, say, writable
from dispatch_profiler.plurals import counted
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
    # Other providers, such as Triton, are not libraries: their kernels are dispatches.
    libraries = dict.fromkeys(record.provider for record in records if record.provider in LIBRARY_METHODS)
    reference = choose_reference(options.reference, (IREE, *libraries))
    _write(records, output, reference)
    twice = (
        f" ({counted(len(every) - len(records), 'duplicate')} removed)" if len(every) > len(records) else ""
    )
    say(f"Writing {counted(len(records), 'record')}{twice} to {output}, every sample to {beside_csv(output)}")
    return SUCCESS


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(prog, "Merge record files into one, without duplicates.")
    parser.add_argument(
        "records", nargs="+", metavar="RECORDS", help=".jsonl files that profiler.py --output wrote"
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE.csv",
        help="rows to write; all samples go to FILE.jsonl, which may be one of RECORDS",
    )  # fmt: skip
    parser.add_argument(
        "--reference", metavar="NAME",
        help="baseline of vs_reference, as in profiler.py (default: the first library, if any)",
    )  # fmt: skip
    return parser


def _write(records: Sequence[StoredRecord], output: Path, reference: str) -> None:
    """Write both files, each atomically."""
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

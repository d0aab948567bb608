"""`dispatch-profiler join`: records of several machines or runs -> one CSV with all samples."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.command import SUCCESS, Parser, folder, run, say, writable
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.files.destinations import output_file
from dispatch_profiler.profiler.providers.library_calls import IREE, LIBRARIES, choose_reference
from dispatch_profiler.profiler.records.record import StoredRecord, distinct
from dispatch_profiler.profiler.records.record_file import read_records, to_line
from dispatch_profiler.profiler.report.csv_columns import add_columns_argument, chosen_columns
from dispatch_profiler.profiler.report.outputs import CsvReport, and_samples, check_output, samples_file

PROG = "dispatch-profiler join"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="nothing was written")


def _main(options: argparse.Namespace) -> int:
    output = writable("--output", options.output)
    check_output(output, inputs=map(folder, options.records))
    every = [record for text in options.records for record in read_records(folder(text))]
    records = [every[at] for at in distinct(every)]
    # Other providers, such as Triton, are not libraries: their kernels are dispatches.
    libraries = dict.fromkeys(record.provider for record in records if record.provider in LIBRARIES)
    reference = choose_reference(options.reference, (IREE, *libraries))
    _write(records, output, reference, chosen_columns(options.columns))
    twice = (
        f" ({counted(len(every) - len(records), 'duplicate')} removed)" if len(every) > len(records) else ""
    )
    say(f"Writing {counted(len(records), 'record')}{twice} to {output}{and_samples(output)}")
    return SUCCESS


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    page = HelpPage(
        examples=(f"{prog} a.jsonl b.jsonl -o joined.csv", f"{prog} *.jsonl -o joined.csv --columns=all")
    )
    parser = Parser(prog, "Merge record files into one, without duplicates.", page)
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
    add_columns_argument(parser)
    return parser


def _write(records: Sequence[StoredRecord], output: Path, reference: str, chosen: Sequence[str]) -> None:
    """Write both files, each atomically; to a device or a pipe only the rows."""
    beside = samples_file(output)
    with contextlib.nullcontext() if beside is None else output_file(beside) as file:
        if file is not None:
            file.writelines(f"{to_line(record)}\n".encode() for record in records)
        with CsvReport(output, reference, earlier=records, chosen=chosen):
            pass


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.profiler.report.join_cli"))

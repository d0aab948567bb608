"""`dispatch-profiler merge`: takes the entries of one library over into another."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.command import SUCCESS, Parser, boolean, folder, run, say, warn
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import locked
from dispatch_profiler.library.entry import Entry
from dispatch_profiler.library.library import (
    Change,
    Library,
    Merged,
    MergeOutcome,
    find_library,
    library_file,
    merge,
    old_spec_hint,
)

PROG = "dispatch-profiler merge"
#: Values of --verbosity.
_EACH, _SPEEDS = 1, 2


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="nothing was written")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    page = HelpPage(examples=(f"{prog} tuned new tuned", f"{prog} tuned new both --force-merge=false -v2"))
    parser = Parser(prog, "Merge the entries of a library of tuned kernels into another library.", page)
    for name, purpose in (
        ("original", "folder of the library to extend"),
        ("incremental", "folder of the library whose entries are merged into it"),
        ("output", "folder to write; may be ORIGINAL"),
    ):
        parser.add_argument(name, metavar=name.upper(), help=purpose)
    parser.add_argument(
        "-v", "--verbosity", type=int, choices=(0, _EACH, _SPEEDS), default=_EACH,
        help="0: a summary, 1: also the outcome of each entry, 2: also configurations and speeds (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--force-merge", type=boolean, default=True, metavar="true|false",
        help="replace entries even if the incremental one is not faster (default: true)",
    )  # fmt: skip
    parser.add_argument(
        "--no-eff", action="store_true",
        help="store 0 as the speed of merged entries, so that any later entry replaces them",
    )  # fmt: skip
    parser.add_argument(
        "--allow-mismatch", action="store_true",
        help="merge entries for another target or IREE version, too",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print the outcome, but write nothing")
    return parser


def _main(options: argparse.Namespace) -> int:
    original, incremental, output = (
        folder(text) for text in (options.original, options.incremental, options.output)
    )
    if output.exists() and not output.is_dir():
        raise UsageError(f"OUTPUT: {output} is a file", hint="name a folder")
    with _locked(output, is_dry_run=options.dry_run):
        base, new = (Library.load(find_library(path)) for path in (original, incremental))
        merged = merge(
            base,
            new,
            force=options.force_merge,
            keep_speeds=not options.no_eff,
            allow_mismatch=options.allow_mismatch,
        )
        _warn_of_machines(base, new)
        if options.verbosity >= _EACH:
            for change in merged.changes:
                say(_line(change, options.verbosity))
        say(_summary(merged, library_file(output), is_dry_run=options.dry_run))
        if not options.dry_run:
            merged.library.save(output)
            if hint := old_spec_hint(output):
                say(hint)
    return SUCCESS


def _locked(output: Path, *, is_dry_run: bool) -> contextlib.AbstractContextManager[None]:
    """Exclude another merge into `output`, whose entries would be lost. A new library needs no lock."""
    file = library_file(output)
    if is_dry_run or not file.exists():
        return contextlib.nullcontext()
    return locked(file.with_name(f".{file.name}.lock"))


def _warn_of_machines(base: Library, new: Library) -> None:
    here, there = base.machines, new.machines
    if here and there and set(here) != set(there):
        warn(
            "warning: the speeds were measured on different machines: "
            f"ORIGINAL on {'; '.join(here)}, INCREMENTAL on {'; '.join(there)}"
        )


def _line(change: Change, verbosity: int) -> str:
    """`replaced  matmul_...: tile_config_... (120 GFLOP/s) by tile_config_... (180 GFLOP/s)`"""
    line = f"{change.outcome.value:<8}  {change.new.title}"
    if verbosity < _SPEEDS:
        return line
    if change.known is None:
        return f"{line}: {_described(change.new)}"
    if change.outcome is MergeOutcome.KEPT:
        return f"{line}: {_described(change.known)}, not {_described(change.new)}"
    return f"{line}: {_described(change.known)} by {_described(change.new)}"


def _described(entry: Entry) -> str:
    details = ", ".join(filter(None, (f"{entry.gflops.value:.4g} GFLOP/s", entry.hardware.text)))
    return f"{entry.dispatch.configuration.name} ({details})"


def _summary(merged: Merged, file: Path, *, is_dry_run: bool) -> str:
    counts = ", ".join(f"{merged.count(outcome)} {outcome.value}" for outcome in MergeOutcome)
    verb = "Would write" if is_dry_run else "Writing"
    return f"{verb} {counted(len(merged.library), 'entry')} to {file}: {counts}"


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.library.merge_cli"))

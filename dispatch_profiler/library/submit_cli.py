"""`dispatch-profiler library submit`: entries of a library as a patch of the shipped libraries, with evidence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dispatch_profiler import startup
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    folder,
    run,
    say,
    show,
    warn,
    warn_table,
    writable,
)
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Selection
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.library.library import Library, find_library
from dispatch_profiler.library.submit import check_some, submission

PROG = "dispatch-profiler library submit"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="nothing was written")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Print a patch for git apply that adds entries of a library to the shipped library for their hardware, with the "
        "evidence: machine, compiler, intervals and how to measure them again. Entries without evidence are refused; the "
        "exit status is 1 then.",
        HelpPage(examples=(f"{prog} tuned/final -o tuned.patch", f"{prog} tuned/final 'conv2d_*'")),
    )
    parser.add_argument("library", metavar="LIBRARY", help="folder with a library.json")
    parser.add_argument(
        "operations", nargs="?", default="", metavar="OPERATION,...",
        help="only operations whose full name matches a glob or a regular expression",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="file for the patch (default: standard output)"
    )
    return parser


def _main(options: argparse.Namespace) -> int:
    library = Library.load(find_library(folder(options.library)))
    output = writable("--output", options.output) if options.output else None
    entries = library.sound
    if entries:
        selection = Selection.parse(options.operations, "")
        chosen = selection.choose(entries, lambda each: each.operation.kind, lambda each: each.operation.name)
    else:
        chosen = []
    found = submission(library, chosen)
    if found.refused:
        warn(f"{counted(len(found.refused), 'entry')} refused:")
        warn_table(found.refused)
    check_some(found, options.library)
    if output is None:
        show(found.patch.removesuffix("\n"))
    else:
        write_output(output, found.patch)
        say(f"Writing {counted(found.entries, 'entry')} to {output}; apply it in a clone with git apply")
    return FAILED if found.refused else SUCCESS


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.library.submit_cli"))

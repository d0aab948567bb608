"""`dispatch-profiler library check`: entries that cannot be used here; with --recheck also those that are no longer faster."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache

from dispatch_profiler import startup
from dispatch_profiler.command import FAILED, SUCCESS, Parser, folder, run, say, show
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.library import Library, find_library
from dispatch_profiler.library.check import unusable_entries
from dispatch_profiler.library.cli import prove_hints
from dispatch_profiler.tuner.commands import tune_cli

PROG = "dispatch-profiler library check"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="the library is unchanged")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "List entries of a library that no launch can use with the installed compiler and this CPU: damaged ones, those of "
        "another compiler, for instructions that this CPU lacks, and invalid configurations. The exit status is 1 if there "
        "are any. Entries for GPUs count as usable, whichever GPU this machine has.",
        HelpPage(examples=(f"{prog} tuned/final --any-cpu", f"{prog} tuned/final --recheck")),
    )
    parser.add_argument("library", metavar="LIBRARY", help="folder with a library.json, or a shipped library")
    parser.add_argument(
        "--recheck",
        action="store_true",
        help="also measure every usable entry again, and list those that are no longer faster, as tune --recheck does",
    )
    parser.add_argument(
        "--any-cpu",
        action="store_true",
        help="do not list entries for instructions that this CPU lacks: judge each for the CPUs that it is for",
    )
    return parser


def _main(options: argparse.Namespace) -> int:
    library = Library.load(find_library(folder(options.library)))
    revision = cache(lambda target: compiler_for(target).revision)
    unusable = list(unusable_entries(library, revision, any_cpu=options.any_cpu))
    for each in unusable:
        show(f"{each.name}: {each.reason}")
    usable = len(library) - sum(not each.is_file for each in unusable)
    where = "Usable" if options.any_cpu else "Usable here"
    say(f"{where}: {usable} of {counted(len(library), 'entry')} of {options.library}")
    reasons = Counter(each.reason for each in unusable)
    if len(reasons) > 1:
        for reason, count in reasons.most_common():
            say(f"  {count} x {reason}")
    for hint in prove_hints(library.sound, str(options.library)):
        say(f"hint: {hint}")
    status = FAILED if unusable else SUCCESS
    if options.recheck and usable:
        parsed = tune_cli.make_parser(options.prog).parse(["--recheck", options.library])
        status = max(status, tune_cli.tune_or_recheck(parsed))
    return status


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.tuner.commands.check_cli"))

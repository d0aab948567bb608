"""`python -m dispatch_profiler COMMAND`: what makes records where there is no checkout, and reads them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from dispatch_profiler.command import SUCCESS, run
from dispatch_profiler.errors import UsageError, did_you_mean

PROG = "python -m dispatch_profiler"
#: Command -> the module that has its main(), imported when it is asked for, and what it is for.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "compare": ("dispatch_profiler.profiler.compare.cli", "two sets of records: what is faster, what slower"),
    "join": ("dispatch_profiler.profiler.report.join_cli", "records of several machines or runs as one CSV"),
    "profile": ("dispatch_profiler.profiler.cli", "as profiler.py: verify and measure a tree or a bundle"),
    "report": ("dispatch_profiler.profiler.report.cli", "records as one HTML page with plots"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in COMMANDS:
        command = import_module(COMMANDS[given[0]][0])
        return int(command.main(given[1:]))
    return run(PROG, _help, given)


def _help(arguments: Sequence[str]) -> int:
    if not arguments:
        raise UsageError(f"expected a command: {', '.join(COMMANDS)}", hint=f"{PROG} --help lists them")
    if arguments[0] not in ("-h", "--help"):
        raise UsageError(f"there is no command {arguments[0]!r}", hint=did_you_mean(arguments[0], COMMANDS))
    print(f"usage: {PROG} COMMAND ...\n")
    for name, (_, purpose) in COMMANDS.items():
        print(f"  {name:<10} {purpose}")
    print(f"\n{PROG} COMMAND --help lists the options of one.")
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())

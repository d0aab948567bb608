"""`python -m dispatch_profiler report ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dispatch_profiler.command import Parser, run
from dispatch_profiler.profiler.report_cli import main as report_main

PROG = "dispatch_profiler"
COMMANDS = {"report": report_main}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run(PROG, _main, arguments)


def _main(arguments: Sequence[str]) -> int:
    parser = Parser(PROG, "What is done with records.", add_help=True)
    parser.add_argument("command", choices=list(COMMANDS))
    chosen = parser.parse_args(arguments[:1])
    return COMMANDS[chosen.command](arguments[1:])


if __name__ == "__main__":
    sys.exit(main())

"""`dispatch-profiler boo generate COMMAND`, also as `python -m dispatch_profiler.boo.driver.generate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dispatch_profiler import startup
from dispatch_profiler.boo.driver.registry import BooOpRegistry
from dispatch_profiler.boo.op_exports import OpSignature
from dispatch_profiler.command import SUCCESS, Parser, run
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.errors import UsageError

PROG = "dispatch-profiler boo generate"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments)


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    page = HelpPage(examples=(f"{prog} conv -n 1 -c 64 -H 56 -W 56 -k 64", f"{prog} gemm -m 96 -n 64 -k 32"))
    parser = Parser(
        prog, "Print the MLIR of a command of MIOpenDriver: a function for each direction of -F.", page
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="a command with its flags, such as conv -n 1 -c 64 -H 56 -W 56 -k 64",
    )  # fmt: skip
    return parser


def signature_mlir(signature: OpSignature) -> str:
    """The MLIR of a signature's operation, with the configuration left to the compiler."""
    from dispatch_profiler.configurations import Default
    from dispatch_profiler.dispatches import Dispatch
    from dispatch_profiler.generator.render import render_module  # it loads the templates

    return render_module(signature.operation, [Dispatch(signature.operation, Default())])


def _main(options: argparse.Namespace) -> int:
    if not options.command:
        raise UsageError("expected a command", hint=f"{options.prog} --help has an example")
    print("\n".join(map(signature_mlir, BooOpRegistry.parse_commands(options.command))), end="")
    return SUCCESS


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.driver.generate"))

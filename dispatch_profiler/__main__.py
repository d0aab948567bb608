"""`dispatch-profiler COMMAND`, also as `python -m dispatch_profiler COMMAND`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NoReturn

from dispatch_profiler import startup
from dispatch_profiler.command import PROGRAMS, SUCCESS, Parser, run
from dispatch_profiler.completion import SHELLS, completion_script
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.errors import UsageError, did_you_mean

PROG = PROGRAMS[0]
#: Command -> its module, which has main() and make_parser() and is imported on demand, and its purpose.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "generate": ("dispatch_profiler.generator.cli", "write MLIR: operations crossed with configurations"),
    "compile": ("dispatch_profiler.library.compile_cli", "compile a generated tree to vmfbs"),
    "profile": ("dispatch_profiler.profiler.cli", "verify and measure a tree or a bundle"),
    "compare": ("dispatch_profiler.profiler.compare.cli", "show which dispatches became faster or slower"),
    "report": ("dispatch_profiler.profiler.report.cli", "write records as one HTML page with plots"),
    "join": ("dispatch_profiler.profiler.report.join_cli", "merge records of several machines or runs"),
    "library": (
        "dispatch_profiler.library.cli",
        "list, show, export, check, merge, prove or submit libraries of tuned kernels",
    ),
    "merge": ("dispatch_profiler.library.merge_cli", "merge the entries of a library into another"),
    "gen_configs": (
        "dispatch_profiler.tuner.commands.gen_configs_cli",
        "write a tuning file for each problem of a workload",
    ),
    "optimize": (
        "dispatch_profiler.tuner.commands.optimize_cli",
        "tune the problems of tuning files, and write a library",
    ),
    "tune": (
        "dispatch_profiler.boo.model_tuning.cli",
        "tune a workload or a PyTorch model, or measure a library again",
    ),
    "preload": (
        "dispatch_profiler.boo.driver.preload",
        "compile the kernels of MIOpen commands into the launch cache",
    ),
    "cache": (
        "dispatch_profiler.boo.kernels.cache_cli",
        "list or remove compiled kernels of launches and trees",
    ),
    "boo": (
        "dispatch_profiler.boo.driver.driver",
        "launch commands of MIOpenDriver with IREE, and measure them",
    ),
    "capture": (
        "dispatch_profiler.boo.capture.cli",
        "write the operations of a PyTorch model as a workload for tune",
    ),
    "explain": (
        "dispatch_profiler.boo.capture.explain_cli",
        "list the kernels of a PyTorch model, and where each comes from",
    ),
    "export": (
        "dispatch_profiler.boo.model_export.cli",
        "write a PyTorch model as a package of AOTInductor with kernels, for C++",
    ),
    "numerics": (
        "dispatch_profiler.boo.driver.numerics.cli",
        "compare the errors of launches and of PyTorch with float64",
    ),
    "completion": ("dispatch_profiler.__main__", "print a completion script for bash, zsh or fish"),
}
#: Command and subcommand -> the separate module of the subcommand.
NESTED: Mapping[tuple[str, ...], str] = {
    ("library", "check"): "dispatch_profiler.tuner.commands.check_cli",
    ("library", "merge"): "dispatch_profiler.library.merge_cli",
    ("library", "prove"): "dispatch_profiler.tuner.commands.prove_cli",
    ("library", "submit"): "dispatch_profiler.library.submit_cli",
}
#: Installed command -> the equivalent subcommand.
_ALIASES = {"dispatch-generator": "generate", "dispatch-compile": "compile"}


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    name = given[0] if given else ""
    if name == "completion":
        return run(make_parser(f"{prog} {name}"), _complete, given[1:])
    if nested := NESTED.get(tuple(given[:2])):
        return int(import_module(nested).main(given[2:], prog=f"{prog} {name} {given[1]}"))
    if name in COMMANDS:
        return int(import_module(COMMANDS[name][0]).main(given[1:], prog=f"{prog} {name}"))
    return run(_make_help(prog), _help, given)


def make_parser(prog: str = f"{PROG} completion") -> Parser:
    """The parser of `completion`."""
    parser = Parser(
        prog,
        "Print a completion script. For bash: source <(dispatch-profiler completion bash)",
        HelpPage(examples=(f"{prog} bash", f"{prog} fish")),
    )
    parser.add_argument("shell", choices=list(SHELLS), help="the shell that sources the script")
    return parser


def parsers(prog: str = PROG) -> dict[str, Parser]:
    """The parser of each command, and of each subcommand that has its own, such as `library check`. Imports all of them."""
    modules = {name: module for name, (module, _) in COMMANDS.items()}
    modules |= {" ".join(names): module for names, module in NESTED.items()}
    return {name: import_module(module).make_parser(f"{prog} {name}") for name, module in modules.items()}


def _complete(options: argparse.Namespace) -> int:
    every = parsers()
    purposes = {name: purpose for name, (_, purpose) in COMMANDS.items()}
    chosen = {name: every[name] for name in COMMANDS}
    print(completion_script(options.shell, PROG, _ALIASES, chosen, purposes), end="")
    return SUCCESS


class _Program(Parser):
    """The parser of the program without a command. Rejects the commands' options."""

    def error(self, message: str) -> NoReturn:
        hint = f"put options after a command, for example {self.prog} profile --format=table"
        raise UsageError(message, hint=hint)


def _make_help(prog: str) -> Parser:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {purpose}" for name, (_, purpose) in COMMANDS.items())
    parser = _Program(
        prog,
        "Generate, compile, verify, profile and tune MLIR dispatches with IREE.",
        HelpPage(
            examples=(f"{prog} tune model.py:make_model --time=5m", f"{prog} profile --output=data.csv")
        ),
        usage="%(prog)s COMMAND [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"commands:\n{listed}\n\n{prog} COMMAND --help lists the options of a command.",
    )
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    return parser


def _help(options: argparse.Namespace) -> int:
    if options.command:
        (name, *_) = options.command
        raise UsageError(f"unknown command {name!r}", hint=did_you_mean(name, COMMANDS))
    _make_help(options.prog).print_help()
    return SUCCESS


if __name__ == "__main__":
    sys.exit(startup.command())

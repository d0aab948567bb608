"""`dispatch-profiler boo`: launch the convolution, layer norm or GEMM of a MIOpen command, and measure it.

python -m dispatch_profiler.boo.driver convbfp16 -n 128 -c 128 -H 24 -W 48 -k 384 -y 1 -x 1 -t 1
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dispatch_profiler import startup
from dispatch_profiler.boo.driver import generate
from dispatch_profiler.boo.driver.registry import (
    CommandLine,
    Timing,
    outcomes,
    read_commands,
    whole_number,
)
from dispatch_profiler.boo.driver.runs.outcomes import REFERENCES, CsvFile, SignatureOutcome, parse_references
from dispatch_profiler.boo.driver.torch_functions import choose_device, load_torch, torch_errors
from dispatch_profiler.boo.driver.tracing.tracy import trace, trace_folder
from dispatch_profiler.command import FAILED, SUCCESS, Parser, folder, positive, run, show, warn, writable
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.errors import UsageError
from dispatch_profiler.workloads.miopen import command_help

if TYPE_CHECKING:
    from dispatch_profiler.boo.driver.runs.execution import DriverOptions
    from dispatch_profiler.boo.op_exports import OpSignature

PROG = "dispatch-profiler boo"
#: The options that --help shows.
_COMMON = (
    "--commands-file",
    "--time",
    "--iter",
    "--output",
    "--device",
    "--reference-backend",
    "--verify-numerics",
)


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status. Also handles `generate COMMAND` and `COMMAND --help`."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] == "generate":
        return generate.main(given[1:], prog=f"{prog} generate")
    if flags := command_help(given):
        show(flags)
        return SUCCESS
    parser = make_parser(prog)
    return run(
        parser,
        _main,
        in_front(parser, given),
        kept="finished commands are printed, and written to the file of --output if given",
    )


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    known = ", ".join(backend.value for backend in REFERENCES)
    parser = Parser(
        prog,
        "Launch commands of MIOpenDriver with IREE, and measure them.",
        HelpPage(
            _COMMON,
            (
                f"{prog} -t 1 conv -n 1 -c 64 -H 56 -W 56 -k 64",
                f"{prog} --commands-file=commands.txt -t 1 -o times.csv",
            ),
        ),
        usage="%(prog)s [options] COMMAND [flags of MIOpenDriver]\n       %(prog)s [options] --commands-file FILE",
    )
    parser.add_argument(
        "--commands-file",
        metavar="FILE",
        help="run the commands in this file, one per line, instead of COMMAND",
    )
    parser.add_argument(
        "-t", "--time", choices=("0", "1"), default="0", help="1: time the launches (default: %(default)s)"
    )
    parser.add_argument(
        "--iter", type=positive, metavar="N",
        help="time N single launches (default: samples of several launches, until the median is known to 1%%, "
        "for at most 1 s)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", "--csv", metavar="FILE.csv", help="also write a row for each command"
    )
    parser.add_argument(
        "--device", help="cpu, or cuda:N (default: the first GPU that torch can use, else cpu)"
    )
    parser.add_argument("--gpu-id", type=whole_number, metavar="N", help="the same as --device=cuda:N")
    parser.add_argument(
        "--reference-backend", action="append", default=[], metavar="NAME",
        help=f"compare with {known}; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--splat-input-value", type=_finite, metavar="VALUE", help="fill every argument with this value"
    )
    parser.add_argument(
        "--verify-numerics", action="store_true",
        help="compare the errors of IREE and torch relative to a float64 reference, as dispatch-profiler numerics does",
    )  # fmt: skip
    parser.add_argument(
        "--tracy", metavar="DIR",
        help="also trace the launches with Tracy in a subprocess, and keep the traces in this folder"
        " (default with IREE_PY_RUNTIME=tracy in the environment: tracy)",
    )  # fmt: skip
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="a command of MIOpenDriver with its flags, such as conv -n 1 -c 64 -H 56 -W 56 -k 64 -t 1; conv --help"
        " lists the flags of conv, and generate COMMAND prints the MLIR of a command",
    )  # fmt: skip
    return parser


def in_front(parser: Parser, arguments: Sequence[str]) -> list[str]:
    """`arguments` with this program's long options moved in front of the command.

    `conv -n 1 --output=a.csv -t 1` -> `--output=a.csv conv -n 1 -t 1`. Timing flags stay, since they belong to the command:
    commands in files have them too.
    """
    takes_value = {
        name: action.nargs != 0
        for name, action in parser._option_string_actions.items()
        if name.startswith("--") and name not in ("--time", "--iter")
    }
    ours: list[str] = []
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word.partition("=")[0] not in takes_value:
            rest.append(word)
            continue
        ours.append(word)
        if "=" not in word and takes_value[word] and words:
            ours.append(words.pop(0))
    return [*ours, *rest]


def _main(options: argparse.Namespace) -> int:
    commands = _commands(options)
    path = writable("--output", options.output) if options.output else None
    references = parse_references(options.reference_backend)
    traces = trace_folder(options.tracy, os.environ)
    from dispatch_profiler.boo.driver.runs.execution import (
        DriverOptions,  # after trace_folder: it imports IREE's runtime
    )

    device = choose_device(options.device, options.gpu_id)
    if any(backend.is_torch for backend in references):
        load_torch()
    chosen = DriverOptions(device, references, options.splat_input_value, options.verify_numerics)
    csv_ = CsvFile(path, chosen.backends, has_numerics=options.verify_numerics) if path else None
    timing = Timing(options.time == "1", options.iter)
    run_signature = partial(_run, options=chosen, traces=traces)
    status = SUCCESS
    with csv_ or contextlib.nullcontext() as file:
        for command in commands:
            for outcome in outcomes(command, timing, run_signature, SignatureOutcome):
                for backend, times in outcome.times.items():
                    for text in times.warnings:
                        warn(f"{command.place}{backend.value}: {text}")
                if file is not None:
                    file.add(outcome)
                status = FAILED if outcome.has_failed else status
    return status


def _commands(options: argparse.Namespace) -> list[CommandLine]:
    """The given command, or the commands of the given file. Raises UsageError for both or neither."""
    if options.commands_file is None:
        if not options.command:
            raise UsageError(
                "expected a command, or --commands-file=FILE", hint=f"{options.prog} --help has an example"
            )
        return [CommandLine(0, " ".join(options.command))]
    if options.command:
        raise UsageError(
            f"the command {options.command[0]!r} and --commands-file exclude each other",
            hint="remove one of the two",
        )
    return read_commands(folder(options.commands_file))


def _run(
    text: str, signature: OpSignature, timing: Timing, options: DriverOptions, traces: Path | None
) -> SignatureOutcome:
    """Run a signature, and print its outcome."""
    from dispatch_profiler.boo.driver.runs.execution import execute

    with torch_errors():
        outcome = execute(text, signature, timing, options, show)
    if traces is not None and timing.is_on:
        for line in trace(text, options.device, timing, traces / f"{signature.func_name[:200]}.tracy"):
            show(f">>> {line}")
    return outcome


def _finite(text: str) -> float:
    """Parse a finite number, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, but got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.driver.driver"))

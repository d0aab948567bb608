"""`dispatch-profiler numerics`: compare the errors of IREE and torch, relative to a float64 reference."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dispatch_profiler.boo.driver.command_lines import (
    Timing,
    outcomes,
    read_commands,
    whole_number,
)
from dispatch_profiler.boo.driver.compiled_kernel import error_bound
from dispatch_profiler.boo.driver.devices import choose_device, uri_of
from dispatch_profiler.boo.driver.memory_check import check_memory
from dispatch_profiler.boo.driver.numerics.check import CheckOptions, check_numerics
from dispatch_profiler.boo.driver.numerics.report import Checked, as_csv, as_json, console_lines
from dispatch_profiler.boo.driver.torch_functions import torch_errors
from dispatch_profiler.boo.op_exports import OpSignature
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    folder,
    positive,
    run,
    say,
    show,
    writable,
)
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.destinations import destination, write_output
from dispatch_profiler.operations import DEFAULT_SEED

PROG = "dispatch-profiler numerics"
#: Suffix of the file of --output -> the format of its text.
_FORMATS = {".csv": as_csv, ".json": as_json}


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(
        make_parser(prog),
        _main,
        arguments,
        kept="finished commands are printed, and written to the file of --output if given",
    )


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Launch commands of MIOpenDriver, and compare the errors of IREE and torch relative to a float64 reference.",
    )
    parser.add_argument("commands", metavar="COMMANDS", help="file with one command per line")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="also write a row for each result, as .csv or .json"
    )
    parser.add_argument(
        "--device", help="cpu, or cuda:N (default: the first GPU that torch can use, else cpu)"
    )
    parser.add_argument(
        "--seed", type=whole_number, default=DEFAULT_SEED, help="seed of the arguments (default: %(default)s)"
    )
    parser.add_argument(
        "--min-samples", type=positive, default=CheckOptions.min_samples, metavar="N",
        help="draw arguments until N elements of each result are compared, at most 32 times (default: %(default)s)",
    )  # fmt: skip
    return parser


def _main(options: argparse.Namespace) -> int:
    commands = read_commands(folder(options.commands))
    path = _output(options.output)
    check = CheckOptions(choose_device(options.device), options.seed, options.min_samples)
    verdicts: list[Checked] = []
    for command in commands:
        for checked in outcomes(command, Timing(), partial(_checked, check), Checked):
            verdicts.append(checked)
            if path is not None and destination(path) is not None:
                write_output(path, _text(path, verdicts))
    if path is not None and destination(path) is None:  # a device or a pipe
        write_output(path, _text(path, verdicts))
    _summarize(verdicts)
    return FAILED if any(each.has_failed for each in verdicts) else SUCCESS


def _output(text: str | None) -> Path | None:
    if text is None:
        return None
    path = writable("--output", text)
    if path.suffix not in _FORMATS and destination(path) is not None:
        raise UsageError(f"--output: {path.name} is neither .csv nor .json", hint=f"--output={path.stem}.csv")
    return path


def _text(path: Path, verdicts: Sequence[Checked]) -> str:
    """The contents of `path`: JSON if the name ends in .json, otherwise CSV."""
    return _FORMATS.get(path.suffix, as_csv)(verdicts)


def _checked(check: CheckOptions, text: str, signature: OpSignature, _: Timing) -> Checked:
    """Check a signature, and print its verdict."""
    from dispatch_profiler.boo.driver.launch import get_launchable

    check_memory(signature.operation)
    bound = error_bound(signature, uri_of(check.device))
    with torch_errors():
        verdict = check_numerics(signature.launch, get_launchable(signature), check, bound)
    for line in console_lines(verdict):
        show(f">>> {line}")
    return Checked(text, verdict)


def _summarize(verdicts: Sequence[Checked]) -> None:
    """`12 commands, by deviating side: 10 neither, 1 torch, 1 failed`"""
    counts = Counter("failed" if each.verdict is None else each.verdict.deviates.value for each in verdicts)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    say(f"{counted(len(verdicts), 'command')}, by deviating side: {told}")

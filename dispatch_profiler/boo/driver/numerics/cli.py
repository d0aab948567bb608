"""`dispatch-profiler numerics`: compare the errors of IREE and torch, relative to a float64 reference."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dispatch_profiler import startup
from dispatch_profiler.boo.driver.launch import error_bound
from dispatch_profiler.boo.driver.memory_check import check_memory
from dispatch_profiler.boo.driver.numerics.check import (
    CheckOptions,
    ComparedKernel,
    ErrorSpread,
    NumericsVerdict,
    ResultVerdict,
    check_numerics,
)
from dispatch_profiler.boo.driver.registry import (
    Timing,
    outcomes,
    read_commands,
    whole_number,
)
from dispatch_profiler.boo.driver.torch_functions import choose_device, torch_errors, uri_of
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
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.destinations import destination, write_output
from dispatch_profiler.operations import DEFAULT_SEED

# -- verdicts as console text, CSV and JSON --------------------------------------------------------

#: Statistics of each side in the files.
_STATISTICS = ("mean", "stddev", "inward_mean", "worst", "worst_part", "beyond", "not_finite")
_VERDICT = ("arguments", "result", "deviates", "reason", "elements", "scale")
COLUMNS = (*_VERDICT, *(f"{side.value} {name}" for side in ComparedKernel for name in _STATISTICS), "notes")


@dataclass(frozen=True)
class Checked:
    """A command and its verdict, or the `error` that kept it from being checked."""

    arguments: str
    verdict: NumericsVerdict | None = None
    error: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the exit status of the run is 1."""
        return self.verdict is None or self.verdict.has_failed


def console_lines(verdict: NumericsVerdict) -> list[str]:
    """The verdict of each result, and the spread of each side's errors."""
    lines = []
    for result in verdict.results:
        if len(verdict.results) > 1:
            lines.append(f"{result.name}:")
        lines += [_spread_line(side, spread) for side, spread in result.spreads.items()]
    return [*lines, str(verdict).removeprefix("numerics: ")]


def _spread_line(side: ComparedKernel, spread: ErrorSpread) -> str:
    bound = (
        f"{spread.worst_part:.3g} of its bound" if math.isfinite(spread.worst_part) else "no error is allowed"
    )
    return (
        f"{side.value + ':':<6} errors mean={spread.mean:.3g} stddev={spread.stddev:.3g} max={spread.worst:.3g} "
        f"({bound}) in {spread.elements} elements of size {spread.scale:.3g}"
    )


def as_csv(every_checked: Sequence[Checked]) -> str:
    """A row for each result of each command."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(row for each in every_checked for row in _rows(each))
    return text.getvalue()


def as_json(every_checked: Sequence[Checked]) -> str:
    """A list with an object for each result of each command; numbers that are not finite are null."""
    rows = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        for each in every_checked
        for row in _rows(each)
    ]
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


def _rows(checked: Checked) -> list[dict[str, Any]]:
    if checked.verdict is None:
        return [{"arguments": checked.arguments, "deviates": "", "reason": checked.error}]
    return [_row(checked.arguments, checked.verdict, result) for result in checked.verdict.results]


def _row(arguments: str, verdict: NumericsVerdict, result: ResultVerdict) -> dict[str, Any]:
    first = next(iter(result.spreads.values()))
    reasons = (f"{side.value}: {reason}" for side, reason in result.reasons.items() if reason)
    return {
        "arguments": arguments,
        "result": result.name,
        "deviates": result.deviates.value,
        "reason": "; ".join(reasons),
        "elements": first.elements,
        "scale": first.scale,
        **{
            f"{side.value} {name}": getattr(spread, name)
            for side, spread in result.spreads.items()
            for name in _STATISTICS
        },
        "notes": verdict.notes,
    }


# -- the command -----------------------------------------------------------------------------------

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
        HelpPage(examples=(f"{prog} commands.txt", f"{prog} commands.txt -o numerics.csv --seed=1")),
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
    # For example: 12 commands, by deviating side: 10 neither, 1 torch, 1 failed.
    counts = Counter("failed" if each.verdict is None else each.verdict.deviates.value for each in verdicts)
    sides = ", ".join(f"{count} {name}" for name, count in counts.items())
    say(f"{counted(len(verdicts), 'command')}, by deviating side: {sides}")
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


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.driver.numerics.cli"))

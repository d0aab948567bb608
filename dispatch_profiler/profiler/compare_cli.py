"""`python -m dispatch_profiler compare`: two record files -> what is faster, slower, the same or unclear."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dispatch_profiler.command import FAILED, SUCCESS, Parser, folder, run
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.files import write_atomic
from dispatch_profiler.generator import Selection
from dispatch_profiler.operations import KINDS
from dispatch_profiler.profiler.compare_report import FORMATS, console
from dispatch_profiler.profiler.comparison import Outcome, percent
from dispatch_profiler.profiler.matching import (
    By,
    CompareOptions,
    FailOn,
    RunComparison,
    compare_records,
)
from dispatch_profiler.profiler.record_file import StoredRecord, read_records

PROG = "python -m dispatch_profiler compare"
#: Outcomes that --fail-on may name; `slower` has a number.
_OUTCOMES = {
    outcome.value.replace(" ", "-"): outcome
    for outcome in (Outcome.UNCLEAR, Outcome.FAILED, Outcome.MISSING, Outcome.NOT_MEASURED)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run(PROG, _main, arguments, kept="nothing was written")


def _main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    fail_on = parse_fail_on(options.fail_on)
    if fail_on.slower is not None and fail_on.slower < options.threshold:
        raise UsageError(
            f"--fail-on=slower:{percent(fail_on.slower)}: below --threshold={percent(options.threshold)}"
            " two times are the same",
            hint=f"add --threshold={percent(fail_on.slower)}",
        )
    comparison = compare_records(
        _chosen(options.base, options.base_dispatches or options.dispatches, options.operation_kind),
        _chosen(options.new, options.new_dispatches or options.dispatches, options.operation_kind),
        CompareOptions(options.threshold, options.confidence, By(options.by)),
        (options.base, options.new),
    )
    _write(comparison, fail_on, options)
    return FAILED if any(map(fail_on.applies, comparison.pairs)) else SUCCESS


def _parser() -> Parser:
    parser = Parser(PROG, "Compare two record files that profiler.py --output wrote.")
    parser.add_argument("base", metavar="BASE", help="record file (.jsonl) that is compared with")
    parser.add_argument("new", metavar="NEW", help="record file that is compared")
    parser.add_argument(
        "--fail-on", default="", metavar="WHAT,...",
        help="exit status 1 on any of: slower:3%%, " + ", ".join(_OUTCOMES),
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=parse_part, default=0.01, metavar="PERCENT",
        help="differences up to this are the same (default: 1%%)",
    )  # fmt: skip
    parser.add_argument(
        "--confidence", type=_parse_confidence, default=0.95, metavar="PERCENT",
        help="of each interval (default: 95%%)",
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=[by.value for by in By], default=By.DISPATCH.value,
        help="compare what has the same dispatch, or only the same operation (default: %(default)s)",
    )  # fmt: skip
    matching = "whose whole name matches a glob or a regular expression"
    parser.add_argument("--dispatches", default="", metavar="PATTERN,...", help=f"only dispatches {matching}")
    for side in ("base", "new"):
        parser.add_argument(
            f"--{side}-dispatches",
            default="",
            metavar="PATTERN,...",
            help=f"the same for {side.upper()} alone",
        )
    parser.add_argument(
        "--operation-kind",
        "--op-kind",
        default="",
        metavar="KIND,...",
        help="only these kinds (default: all)",
    )
    parser.add_argument("--format", choices=list(FORMATS), default="console", help="default: %(default)s")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing")
    return parser


def parse_part(text: str) -> float:
    """`3%` and `0.03` -> 0.03, for argparse: at least 0 and below 1."""
    number, sign = (text[:-1], 100.0) if text.endswith("%") else (text, 1.0)
    try:
        value = float(number) / sign
    except ValueError:
        value = math.nan
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(
            f"expected a percentage such as 3%, from 0 to below 100%, but got {text!r}"
        )
    return value


def _parse_confidence(text: str) -> float:
    value = parse_part(text)
    if not 0.5 <= value <= 0.9999:
        raise argparse.ArgumentTypeError(f"expected 50% to 99.99%, but got {text!r}")
    return value


def parse_fail_on(text: str) -> FailOn:
    """`slower:3%,failed` -> FailOn(0.03, {FAILED}). Raises UsageError for anything else."""
    slower, outcomes = None, set()
    for part in text.split(",") if text else []:
        word, colon, number = part.strip().partition(":")
        if word == "slower" and colon:
            try:
                slower = parse_part(number)
            except argparse.ArgumentTypeError as error:
                raise UsageError(
                    f"--fail-on={part}: {error}", hint="for example --fail-on=slower:3%"
                ) from None
        elif word in _OUTCOMES and not colon:
            outcomes.add(_OUTCOMES[word])
        elif word == "slower" or word in _OUTCOMES:
            rule = "slower needs a number" if word == "slower" else f"{word} takes no number"
            raise UsageError(f"--fail-on={part}: {rule}", hint="for example --fail-on=slower:3%,failed")
        else:
            known = ("slower:3%", *_OUTCOMES)
            raise UsageError(f"--fail-on: there is no outcome {part!r}", hint=did_you_mean(part, known))
    return FailOn(slower, frozenset(outcomes))


def _chosen(name: str, patterns: str, kinds: str) -> list[StoredRecord]:
    records = read_records(folder(name))
    if not records:
        raise UsageError(f"{name} holds no records", hint="write some with profiler.py --output=FILE.csv")
    labels = {kind.label: name for name, kind in KINDS.items()}
    return Selection.parse(patterns, kinds).choose(
        records, lambda record: labels.get(record.op_kind, record.op_kind), lambda record: record.dispatch
    )


def _write(comparison: RunComparison, fail_on: FailOn, options: argparse.Namespace) -> None:
    if not options.output:
        terminal = Console()
        if options.format == "console" and terminal.is_terminal:
            print(console(comparison, fail_on, terminal.width))
        else:
            print(FORMATS[options.format](comparison, fail_on))
        return
    path: Path = folder(options.output)
    if path.is_dir() or not path.parent.is_dir():
        problem = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"--output: {problem}")
    write_atomic(path, FORMATS[options.format](comparison, fail_on) + "\n")

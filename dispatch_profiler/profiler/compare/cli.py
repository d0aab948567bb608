"""`dispatch-profiler compare`: two record files -> which dispatches are faster, slower, the same or unclear.

With `--live`, measures the dispatches of two generated trees by paired sampling.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from dispatch_profiler import startup
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    UNDECIDED,
    Parser,
    add_choice_argument,
    add_selection_arguments,
    folder,
    positive_number,
    run,
    say,
    show,
    track,
    writable,
)
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.streams import WIDEST, printable
from dispatch_profiler.dispatches import DispatchEntry, OperationEntry, Selection, Tree, load_manifest
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.operations import DEFAULT_SEED, KINDS
from dispatch_profiler.profiler.compare.live import LiveComparison, LiveOptions, match
from dispatch_profiler.profiler.compare.pairing import (
    By,
    CompareOptions,
    FailOn,
    RunComparison,
    SideSummary,
    compare_records,
    distinct,
    side_differences,
)
from dispatch_profiler.profiler.compare.render import ENDINGS, FORMATS, console, summary
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.providers.library_calls import ManifestPair
from dispatch_profiler.profiler.records.record import Provenance, StoredRecord, without_interrupted
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.report_files import ReportFiles, add_file_arguments
from dispatch_profiler.profiler.statistics.comparison import Outcome, SequentialTestOptions, percent

PROG = "dispatch-profiler compare"
#: The options that --help shows.
_COMMON = (
    "--output",
    "--format",
    "--threshold",
    "--fail-on",
    "--by",
    "--dispatches",
    "--operation-kind",
    "--live",
    "--budget",
)
#: Outcomes that --fail-on accepts, besides `slower` with a percentage.
_OUTCOMES = {
    outcome.value.replace(" ", "-"): outcome
    for outcome in (Outcome.UNCLEAR, Outcome.FAILED, Outcome.MISSING, Outcome.NOT_MEASURED)
}


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="nothing was written")


def _main(options: argparse.Namespace) -> int:
    fail_on = parse_fail_on(options.fail_on)
    if fail_on.slower is not None and fail_on.slower < options.threshold:
        raise UsageError(
            f"--fail-on=slower:{percent(fail_on.slower)} is below --threshold={percent(options.threshold)}:"
            " differences that small count as the same",
            hint=f"add --threshold={percent(fail_on.slower)}",
        )
    output = writable("--output", options.output) if options.output else None
    files = ReportFiles.of(options)
    comparison = (_live if options.live else _recorded)(options)
    _write(comparison, fail_on, output, options.format or format_of(output))
    files.write(
        lambda: FORMATS["markdown"](comparison, fail_on) + "\n",
        lambda: FORMATS["junit"](comparison, fail_on) + "\n",
    )
    if any(map(fail_on.applies, comparison.pairs)):
        return FAILED
    return UNDECIDED if any(map(fail_on.is_undecided, comparison.pairs)) else SUCCESS


def _recorded(options: argparse.Namespace) -> RunComparison:
    if options.device or options.budget:
        raise UsageError("--device and --budget require --live", hint="add --live")
    return compare_records(
        _chosen(options.base, options.base_dispatches or options.dispatches, options.operation_kind),
        _chosen(options.new, options.new_dispatches or options.dispatches, options.operation_kind),
        CompareOptions(options.threshold, options.confidence or 0.95, By(options.by)),
        (options.base, options.new),
    )


def _live(options: argparse.Namespace) -> RunComparison:
    by, confidence = By(options.by), options.confidence or SequentialTestOptions().confidence
    manifests = [load_manifest(Tree(folder(name))) for name in (options.base, options.new)]
    device = options.device or manifests[1].target.device_uri
    base, new = (
        manifest.choose(Selection.parse(patterns or options.dispatches, options.operation_kind))
        for manifest, patterns in zip(
            manifests, (options.base_dispatches, options.new_dispatches), strict=True
        )
    )
    matched = match(base, new, by)
    rule = SequentialTestOptions(threshold=options.threshold, confidence=confidence)
    how = LiveOptions(device, rule, options.budget or LiveOptions.seconds)
    with LiveComparison(manifests[0].tree, manifests[1].tree, how) as live:
        pairs = tuple(track(live.pairs(matched), len(matched), "Comparing"))
    sides = [
        SideSummary(
            name,
            (device,),
            distinct(e.target_of(d.dispatch) for e, d in side),
            _revisions(side),
            (this_machine(device),),
        )
        for name, side in zip((options.base, options.new), zip(*matched, strict=True), strict=True)
    ]
    both = [(_origin(*base, device), _origin(*new, device)) for base, new in matched]
    return RunComparison(
        sides[0], sides[1], pairs, CompareOptions(options.threshold, confidence, by),
        repeated=False, live=True, differences=side_differences(sides[0], sides[1], both),
    )  # fmt: skip


def _origin(entry: OperationEntry, dispatch: DispatchEntry, device: str) -> Provenance:
    module = entry.module_of(dispatch.dispatch)
    key, flags = (module.key, module.flags) if module is not None else ("", ())
    return Provenance(
        device, entry.target_of(dispatch.dispatch), "", DEFAULT_SEED, module_key=key, flags=flags
    )


def _revisions(side: Iterable[ManifestPair]) -> tuple[str, ...]:
    modules = (entry.module_of(dispatch.dispatch) for entry, dispatch in side)
    return distinct(f"compiler {module.compiler}" for module in modules if module is not None)


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    page = HelpPage(
        _COMMON,
        (
            f"{prog} base.jsonl new.jsonl --fail-on=slower:3%,failed",
            f"{prog} base.jsonl new.jsonl -o compared.csv",
        ),
    )
    parser = Parser(
        prog, "Compare two record files that profiler.py --output wrote, or two trees live.", page
    )
    parser.add_argument("base", metavar="BASE", help="record file (.jsonl) to compare with")
    parser.add_argument("new", metavar="NEW", help="record file to compare")
    parser.add_argument(
        "--live", action="store_true",
        help="BASE and NEW are folders of compiled trees, possibly the same: measure pairs by paired sampling",
    )  # fmt: skip
    parser.add_argument("--device", help="with --live: device URI (default: the target's)")
    parser.add_argument(
        "--budget", type=positive_number, metavar="SECONDS",
        help=f"with --live: time limit per pair (default: {LiveOptions.seconds:g})",
    )  # fmt: skip
    parser.add_argument(
        "--fail-on", default="", metavar="WHAT,...",
        help="exit with status 1 on any of: slower:3%%, " + ", ".join(_OUTCOMES)
        + "; with status 3 if an unclear dispatch may be slower by as much",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=parse_part, default=0.01, metavar="PERCENT",
        help="treat differences up to this as the same (default: 1%%)",
    )  # fmt: skip
    parser.add_argument(
        "--confidence", type=_parse_confidence, metavar="PERCENT",
        help="confidence of each interval (default: 95%%, with --live 98%%)",
    )  # fmt: skip
    add_choice_argument(parser, "--by", By.DISPATCH, "match records by dispatch, or only by operation")
    add_selection_arguments(parser)
    for side in ("base", "new"):
        parser.add_argument(
            f"--{side}-dispatches",
            default="",
            metavar="PATTERN,...",
            help=f"--dispatches for {side.upper()} only",
        )
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        help="format of the output (default: by the ending of --output, or console)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE",
        help="write to this file, for example .csv, .json or .md (default: standard output)",
    )  # fmt: skip
    add_file_arguments(parser)
    return parser


def parse_part(text: str) -> float:
    """Parse a fraction from 0 to below 1, for argparse: `3%` and `0.03` -> 0.03."""
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
            rule = "slower requires a percentage" if word == "slower" else f"{word} takes no percentage"
            raise UsageError(f"--fail-on={part}: {rule}", hint="for example --fail-on=slower:3%,failed")
        else:
            known = ("slower:3%", *_OUTCOMES)
            raise UsageError(f"--fail-on: unknown outcome {part!r}", hint=did_you_mean(part, known))
    return FailOn(slower, frozenset(outcomes))


def _chosen(name: str, patterns: str, kinds: str) -> list[StoredRecord]:
    records = without_interrupted(read_records(folder(name)))
    if not records:
        raise UsageError(f"{name} has no records", hint="create it with profiler.py --output=FILE.csv")
    labels = {kind.label: name for name, kind in KINDS.items()}
    return Selection.parse(patterns, kinds).choose(
        records, lambda record: labels.get(record.op_kind, record.op_kind), lambda record: record.dispatch
    )


def format_of(output: Path | None) -> str:
    """The format that the ending of a file means: `compared.csv` -> `csv`; `console` for others and without a file."""
    return "console" if output is None else ENDINGS.get(output.suffix.lower(), "console")


def _write(comparison: RunComparison, fail_on: FailOn, output: Path | None, format_: str) -> None:
    if output is not None:
        write_output(output, FORMATS[format_](comparison, fail_on) + "\n")
        say("\n".join([*summary(comparison, fail_on), f"Writing {output}"]))
        return
    terminal = Console()
    if format_ == "console" and terminal.is_terminal:
        show(console(comparison, fail_on, min(terminal.width, WIDEST)))
    else:
        print(printable(FORMATS[format_](comparison, fail_on)))


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.profiler.compare.cli"))

"""`dispatch-profiler optimize`: tuning files -> a library of configurations that are faster than the default."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from dispatch_profiler import startup
from dispatch_profiler.command import FAILED, SUCCESS, Parser, folder, run, warn
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.errors import UsageError
from dispatch_profiler.tuner.commands.arguments import (
    KEPT,
    add_hipblaslt_argument,
    add_search_arguments,
    named_devices,
    note_hipblaslt,
    step_options,
    tuning_changes,
    within_time,
)
from dispatch_profiler.tuner.commands.optimize import (
    Outputs,
    Weights,
    check_output,
    check_same_target,
    finish_tunings,
    opened_bench,
    report_search,
    run_search,
    weights_of,
)
from dispatch_profiler.tuner.evaluation.devices import confined
from dispatch_profiler.tuner.packages import check_search
from dispatch_profiler.tuner.tunings.tuning_file import Tuning, read_tunings

PROG = "dispatch-profiler optimize"
#: The options that --help shows.
_COMMON = (
    "--output",
    "--log-summary",
    "--devices",
    "--time",
    "--evaluations",
    "--threshold",
    "--packed-weights",
    "--library",
    "--threads",
    "--jobs",
)


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept=KEPT)


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Search for the fastest configuration of each problem that has a tuning file, measure the winners again beside "
        "the compiler's default, and write a library of the faster configurations.",
        HelpPage(_COMMON, (f"{prog} tunings --time=1h", f"{prog} tunings -o tuned --devices=0,1")),
        intermixed=True,
    )
    add_hipblaslt_argument(parser)
    parser.add_argument("tunings", metavar="DIR", help="a tuning file, or a folder of tuning files")
    parser.add_argument(
        "-o", "--output", default=".", metavar="DIR", help="folder of the next two folders (default: here)"
    )
    parser.add_argument(
        "--library-dir", metavar="DIR", help="folder of the final library (default: final in --output)"
    )
    parser.add_argument(
        "--results-dir", metavar="DIR",
        help="folder of raw_results.csv, final_results.csv, metrics.json and report.html (default: results in --output)",
    )  # fmt: skip
    parser.add_argument(
        "--log-summary", metavar="FILE",
        help="summary.csv of gen_configs, for the uplift of the whole workload",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--devices", "--device", metavar="LIST",
        help="devices that share the problems: numbers of devices of the target's driver, URIs, or all "
        "(default: all, unless the files name some)",
    )  # fmt: skip
    parser.add_argument("--only", choices=("search",), help="do only this step")
    add_search_arguments(parser, usual="as the files say")
    return parser


def _main(options: argparse.Namespace) -> int:
    with confined(options.threads) as spare:
        return _optimize(options, spare)


def _optimize(options: argparse.Namespace, spare: tuple[int, ...]) -> int:
    place = folder(options.tunings)
    read, errors = read_tunings(place)
    for error in errors:
        warn(f"skipped: {error}")
    if not read:
        raise UsageError(f"{place} has no valid tuning files", hint="correct them, or run gen_configs again")
    note_hipblaslt(options)
    changes = tuning_changes(options)
    tunings = [replace(tuning, **changes) for tuning in read]
    check_search([each.strategy for each in tunings])
    files = place if place.is_dir() else place.parent
    steps = step_options(options, _devices(options.devices, tunings), spare)
    tunings = list(within_time(tunings, steps))
    output, weights = folder(options.output), Weights()
    outputs = Outputs(
        folder(options.library_dir) if options.library_dir else output / "final",
        folder(options.results_dir) if options.results_dir else output / "results",
    )
    if not options.only:
        if options.log_summary:
            weights = weights_of(tunings, folder(options.log_summary))
        check_same_target(tunings, steps)
        check_output(outputs, tunings[0].target, {each.operation for each in tunings})
    if options.only:
        searched = run_search(tunings, files, steps)
        report_search(searched, files)
    else:
        with opened_bench(tunings[0], steps) as (bench, steps):
            searched = run_search(tunings, files, steps, bench)
            finish_tunings(searched, bench, outputs, weights, steps.rule)
    return FAILED if errors or any(each.is_failure for each in searched) else SUCCESS


def _devices(devices: str | None, tunings: Sequence[Tuning]) -> tuple[str, ...]:
    """The devices of `--devices`; empty without it, so that each file's own devices are used."""
    if not devices:
        return ()
    usual = tunings[0].target.device_uri
    for tuning in tunings:
        if tuning.target.family != tunings[0].target.family:
            raise UsageError(
                f"--devices: the tuning files are for {tunings[0].target.name} and {tuning.target.name}",
                hint="name the files of one target, or leave --devices out",
            )
    return named_devices(devices, usual)


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.tuner.commands.optimize_cli"))

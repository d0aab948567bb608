"""`dispatch-profiler gen_configs`: a workload -> a tuning file for each problem that is worth tuning."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.command import FAILED, SUCCESS, Parser, folder, run, say, say_table, user_cache, warn
from dispatch_profiler.compiler import Cache
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.generator.workload_files import read_reported
from dispatch_profiler.runtime import device_uri
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.commands.arguments import (
    add_architecture_argument,
    add_hipblaslt_argument,
    note_hipblaslt,
    parse_architecture,
    percent,
)
from dispatch_profiler.tuner.tunings.problems import (
    RECORDS_FILE,
    SUMMARY_FILE,
    UNITS,
    ProfilingPlace,
    Share,
    TuningProblem,
    check_output,
    kept_part,
    problems_of,
    shares_of,
    weigh,
    write_tunings,
)

PROG = "dispatch-profiler gen_configs"
#: Problems that are listed.
_MOST_LINES = 20


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments)


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Profile the problems of a workload untuned, and write a tuning file for each problem worth tuning.",
        HelpPage(
            examples=(f"{prog} log.yaml --target=gfx950", f"{prog} shapes.csv -o tunings --min-share=1")
        ),
        intermixed=True,
    )
    add_hipblaslt_argument(parser)
    parser.add_argument(
        "log", metavar="LOG", help="a log (hipBLASLt, rocBLAS, MIOpen), a CSV of shapes or a workload.yaml"
    )
    parser.add_argument(
        "-o", "--output", "--output-dir", default="tunings", metavar="DIR",
        help="folder to write (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-d",
        "--device",
        help="device URI, or the number of a device of the target's driver (default: the first one)",
    )
    parser.add_argument(
        "--min-share", "--thr", type=percent, default=0.0, metavar="PERCENT",
        help="keep problems with at least this share of the total time (default: 0, which keeps all)",
    )  # fmt: skip
    add_architecture_argument(parser)
    return parser


def _main(options: argparse.Namespace) -> int:
    target, output = parse_architecture(options.target), folder(options.output)
    device = device_uri(options.device, target.device_uri) if options.device else target.device_uri
    note_hipblaslt(options)
    place = profiling_place(target, device, is_required=bool(options.device))
    log = read_problems(folder(options.log), output, target)
    return SUCCESS if generate_tunings(log, output, place, options.min_share) else FAILED


def profiling_place(target: Target, device: str, *, is_required: bool) -> ProfilingPlace:
    """Where problems are profiled, with the caches of this user."""
    cache = user_cache()
    return ProfilingPlace(target, device, is_required, Cache(cache), cache / "machines")


@dataclass(frozen=True)
class LoggedProblems:
    """The problems of a log. `is_whole`: no line of it is damaged."""

    problems: tuple[TuningProblem, ...]
    is_whole: bool


def read_problems(
    log: Path,
    output: Path,
    target: Target,
    check: Callable[[Sequence[TuningProblem]], None] = lambda problems: None,
) -> LoggedProblems:
    """The problems of a log, for tuning files in the folder `output`. Calls `check` with them. Raises UsageError."""
    reading = read_reported([log])
    problems = problems_of(reading.workload)
    check_output(output, problems, target)
    check(problems)
    if target.note:
        warn(target.note)
    return LoggedProblems(problems, not reading.damaged)


def generate_tunings(log: LoggedProblems, output: Path, place: ProfilingPlace, threshold: float) -> bool:
    """Profile the problems of a log, write their tuning files, and print the shares.

    `threshold` is the smallest share in percent that is worth tuning.

    Returns whether every line was read and every problem has a share. Raises UsageError if no problem is kept.
    """
    weighed, weighed_by = weigh(log.problems, place, output / RECORDS_FILE, say)
    shares = shares_of(weighed, threshold)
    write_shares(shares, weighed_by, output, place)
    if not any(each.is_kept for each in shares):
        raise _nothing_kept(shares, threshold, output / SUMMARY_FILE)
    return log.is_whole and all(each.percent is not None for each in shares)


def write_shares(shares: Sequence[Share], weighed_by: str, output: Path, place: ProfilingPlace) -> None:
    """Write the tuning files of the kept problems and the summary to the folder `output`, and print the shares."""
    written = write_tunings(output, shares, weighed_by, place)
    _report(shares, weighed_by)
    if written:
        say(
            f"Writing {counted(len(written), 'tuning file')} of {counted(len(shares), 'problem')} to {output}: "
            f"{kept_part(shares):.1f} % of the {UNITS[weighed_by]}; all shares are in {output / SUMMARY_FILE}"
        )


def _report(shares: Sequence[Share], weighed_by: str) -> None:
    """Print the largest shares, and each problem without one."""
    known = [(each.percent, each) for each in shares if each.percent is not None]
    known.sort(key=lambda each: -each[0])
    largest = known[:_MOST_LINES]
    if largest:
        say(f"Shares of the {UNITS[weighed_by]}, the largest of {counted(len(known), 'problem')}:")
        say_table(
            (f"{part:.1f} %", share.problem.name, share.problem.label, share.reason)
            for part, share in largest
        )
    for share in shares:
        if not share.is_complete:
            warn(f"{share.problem.name} ({share.problem.label}): {share.reason}")


def _nothing_kept(shares: Sequence[Share], threshold: float, summary: Path) -> UsageError:
    largest = max(shares, key=lambda each: each.percent or 0.0)
    if largest.percent is None:
        return UsageError("no problem was measured", hint=f"{summary} has the reasons")
    return UsageError(
        f"no problem has a share of {threshold:g} %: the largest is {largest.percent:.1f} %, of "
        f"{largest.problem.name}",
        hint=f"lower --min-share; {summary} has all shares",
    )


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.tuner.commands.gen_configs_cli"))

"""`dispatch-profiler optimize`: tuning files -> the fastest configuration of each problem."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    folder,
    positive,
    positive_number,
    run,
    say,
    say_table,
    user_cache,
    warn,
)
from dispatch_profiler.compiler import Cache
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files import atomic_file
from dispatch_profiler.library import Library
from dispatch_profiler.plurals import counted
from dispatch_profiler.profiler.evaluation.devices import parse_devices, unlike
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.records.record_file import to_line
from dispatch_profiler.runtime import all_devices
from dispatch_profiler.tuner.arguments import add_hipblaslt_argument, note_hipblaslt
from dispatch_profiler.tuner.building import BuildOptions
from dispatch_profiler.tuner.events import Event
from dispatch_profiler.tuner.live import LiveLines
from dispatch_profiler.tuner.search import SearchOptions
from dispatch_profiler.tuner.stopwatch import Times
from dispatch_profiler.tuner.storage import open_storage
from dispatch_profiler.tuner.strategies import STRATEGIES
from dispatch_profiler.tuner.tuning_file import Tuning, read_tunings
from dispatch_profiler.tuner.tuning_search import Searched, search_tunings

PROG = "dispatch-profiler optimize"
#: Files of a search in the folder of the tuning files: its storage, and the records of everything it evaluated.
STORAGE_FILE, RECORDS_FILE = "search.db", "search.jsonl"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments)


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(prog, "Search for the fastest configuration of each problem that has a tuning file.")
    add_hipblaslt_argument(parser)
    parser.add_argument("tunings", metavar="DIR", help="a folder of tuning files, or one of them")
    parser.add_argument(
        "--only", choices=("search",), required=True, help="the step to do (search: the only one so far)"
    )
    parser.add_argument(
        "--strategy", choices=list(STRATEGIES), help="how to search (default: as the files say)"
    )
    parser.add_argument("--seed", type=int, help="seed of the strategy (default: as the files say)")
    parser.add_argument(
        "--evaluations", type=positive, metavar="N",
        help="configurations to evaluate for each problem (default: as the files say)",
    )  # fmt: skip
    parser.add_argument(
        "--time-budget", type=positive_number, metavar="SECONDS",
        help="end the search for a problem after this time (default: as the files say)",
    )  # fmt: skip
    parser.add_argument(
        "--devices", "--device", metavar="LIST",
        help="devices that share the problems: numbers of devices of the target's driver, URIs, or all "
        "(default: as the files say)",
    )  # fmt: skip
    parser.add_argument(
        "--storage", metavar="FILE|URL",
        help=f"where evaluations are kept: FILE.db, FILE.log or the URL of a database (default: DIR/{STORAGE_FILE})",
    )  # fmt: skip
    parser.add_argument(
        "--library", metavar="DIR", help="a library whose winners of similar shapes are tried first"
    )
    parser.add_argument(
        "--num-cpu", "-j", type=positive, metavar="N", help="concurrent builds (default: all CPUs)"
    )
    parser.add_argument(
        "--timeout", type=positive_number, default=120.0, metavar="SECONDS",
        help="time limit for a step of one candidate (default: %(default)g)",
    )  # fmt: skip
    return parser


def _main(options: argparse.Namespace) -> int:
    place = folder(options.tunings)
    read, errors = read_tunings(place)
    for error in errors:
        warn(f"skipped: {error}")
    tunings = [_changed(tuning, options) for tuning in read]
    note_hipblaslt(options)
    output = place if place.is_dir() else place.parent
    cache = user_cache()
    how = SearchOptions(
        EvaluatorOptions("", seconds=options.timeout, peaks=cache / "machines"),
        BuildOptions(workers=options.num_cpu, seconds=options.timeout),
        Cache(cache),
        _devices(options, read),
    )
    library = Library.load(folder(options.library)) if options.library else None
    lines = LiveLines()

    def listen(event: Event) -> None:
        if line := lines.line(event):
            say(line)

    with open_storage(options.storage or output / STORAGE_FILE) as storage:
        found = search_tunings(tunings, storage, how, library, listen)
    _write_records(output / RECORDS_FILE, found.problems)
    _report(found.problems, found.times, output / RECORDS_FILE)
    failed = any(each.result is None or each.result.best is None for each in found.problems)
    return FAILED if failed or errors else SUCCESS


def _devices(options: argparse.Namespace, tunings: Sequence[Tuning]) -> tuple[str, ...]:
    """The devices of `--devices`; without it none, so that each file's own is used."""
    if not options.devices or not tunings:
        return ()
    usual = tunings[0].target.device_uri
    for tuning in tunings:
        if tuning.target.family != tunings[0].target.family:
            raise UsageError(
                f"--devices: the tuning files are for {tunings[0].target.name} and {tuning.target.name}",
                hint="name the files of one target, or leave --devices out",
            )
    devices = all_devices(usual) if options.devices == "all" else parse_devices(options.devices, usual)
    if warning := unlike(devices):
        warn(warning)
    return devices


def _changed(tuning: Tuning, options: argparse.Namespace) -> Tuning:
    """`tuning` with what the options say instead of its file."""
    given = {
        "strategy": options.strategy,
        "seed": options.seed,
        "evaluations": options.evaluations,
        "seconds": options.time_budget,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    if options.time_budget is not None and options.evaluations is None:
        changed["evaluations"] = None
    return replace(tuning, **changed)


def _write_records(path: Path, problems: Sequence[Searched]) -> None:
    """Write the record of every evaluation, for `report`."""
    with atomic_file(path) as file:
        for problem in problems:
            for evaluation in problem.result.evaluations if problem.result else ():
                file.write(to_line(evaluation.record).encode() + b"\n")


def _report(problems: Sequence[Searched], times: Times, records: Path) -> None:
    count = sum(len(each.result.evaluations) for each in problems if each.result)
    say(
        f"The fastest of {counted(count, 'evaluation')} of {counted(len(problems), 'problem')}; records in {records}:"
    )
    say_table(_row(each) for each in problems)
    say(
        f"compiling {times.compiling:.1f} s, measuring {times.measuring:.1f} s, neither {times.other:.1f} s "
        f"({100.0 * times.overhead:.1f} %)"
    )


def _row(problem: Searched) -> tuple[str, ...]:
    name, result = problem.tuning.name, problem.result
    if result is None:
        return name, "", "", problem.failure
    if result.best is None:
        return name, "", "", "no candidate was verified"
    default, best = result.default and result.default.milliseconds, result.best.milliseconds
    assert best is not None
    speedup = f"{default / best:.2f}x the default" if default else "no default"
    return name, f"{best:.4g} ms", speedup, result.best.configuration.name

"""`dispatch-profiler tune`: a workload -> a library of tuned kernels; or a library -> which entries still hold."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dispatch_profiler.command import FAILED, SUCCESS, Parser, folder, say, show, warn
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.generator.workload_files import read_reported
from dispatch_profiler.library import Entry, Library, find_library
from dispatch_profiler.library.cli import prove_hints
from dispatch_profiler.library.entry import Hardware, best_for, for_one_size
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.targets import DEFAULT_TARGET, Target
from dispatch_profiler.tuner.commands.arguments import (
    StepOptions,
    add_search_arguments,
    named_devices,
    own_device,
    parse_architecture,
    percent,
    step_options,
    tuning_changes,
    within_time,
)
from dispatch_profiler.tuner.commands.gen_configs_cli import (
    generate_tunings,
    profiling_place,
    read_problems,
    write_shares,
)
from dispatch_profiler.tuner.commands.optimize import (
    Outputs,
    check_output,
    finish_tunings,
    opened_bench,
    run_search,
    weights_of,
)
from dispatch_profiler.tuner.commands.tune_range import check_range_options, parse_ranges, tune_ranges
from dispatch_profiler.tuner.evaluation.devices import confined
from dispatch_profiler.tuner.packages import check_search
from dispatch_profiler.tuner.results.finalists import Benchmark
from dispatch_profiler.tuner.results.prove import measured_again, targets_of
from dispatch_profiler.tuner.results.uplift import Judged, line_of
from dispatch_profiler.tuner.tunings.problems import (
    SUMMARY_FILE,
    TIME,
    Share,
    TuningProblem,
    Weighed,
    problem_of,
    shares_of,
    weighed_by_time,
    write_tunings,
)
from dispatch_profiler.tuner.tunings.tuning_file import Searched, read_tunings

PROG = "dispatch-profiler tune"
#: The options that --help shows.
_COMMON = (
    "--output",
    "--time",
    "--target",
    "--devices",
    "--threads",
    "--jobs",
    "--evaluations",
    "--threshold",
    "--recheck",
)
#: Folders in the output folder.
TUNINGS, RESULTS, FINAL = "tunings", "results", "final"
#: Why a problem has no share.
_NOT_SEARCHED = "not searched, for lack of time"
#: Options that --recheck does not have, and where argparse puts them.
_OF_SEARCHES = {
    "--output": "output",
    "--min-share": "min_share",
    "--strategy": "strategy",
    "--least-gain": "least_gain",
    "--seed": "seed",
    "--evaluations": "evaluations",
    "--time": "time",
    "--budget": "budget",
    "--storage": "storage",
    "--library": "library",
    "--packed-weights": "packed_weights",
    "--cluster": "cluster",
    "--range": "range",
}


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Tune the operations of a workload, gen_configs and optimize in one command, or of a PyTorch model, which is then "
        "measured beside eager PyTorch and inductor. Or measure a library again.",
        HelpPage(
            _COMMON, (f"{prog} model.py:make_model --time=5m", f"{prog} shapes.csv -o tuned --evaluations=20")
        ),
        usage="%(prog)s FILE.py:NAME [options]\n       %(prog)s WORKLOAD [options]\n       %(prog)s --recheck LIBRARY [options]",
    )
    parser.add_argument(
        "workload", nargs="?", metavar="WORKLOAD",
        help="a log (hipBLASLt, rocBLAS, MIOpen), a CSV of shapes or a workload.yaml; or FILE.py:NAME or MODULE:NAME, a "
        "model, or a function or class that returns a model, alone or with its inputs: the file is executed",
    )  # fmt: skip
    parser.add_argument(
        "--recheck", metavar="LIBRARY",
        help="measure every entry of this library again, and list those that are no longer faster",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", "--output-dir", default="tuned", metavar="DIR",
        help=f"folder to write: {TUNINGS}, {RESULTS} and {FINAL} (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-a", "--target", "--architecture", metavar="NAME",
        help=f"a target such as rocm:gfx950, or an architecture (default: {DEFAULT_TARGET}, or the library's)",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--devices", "--device", metavar="LIST",
        help="devices that share the search: numbers of devices of the target's driver, URIs, or all; the first of "
        "them measures everything else (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--min-share", "--thr", type=percent, default=0.0, metavar="PERCENT",
        help="tune operations with at least this share of the total time (default: 0, which tunes all)",
    )  # fmt: skip
    parser.add_argument(
        "--range", action="append", metavar="NAME=LEAST:MOST",
        help="tune each operation for all these sizes at once, its weight a constant: m=1:4096 for the rows of products, "
        "n=1:64 for the images of convolutions; may be repeated (docs/tuning.md; default: the sizes of the workload)",
    )  # fmt: skip
    add_search_arguments(
        parser, usual="as for gen_configs", usual_time="2 to 4 minutes for a model, else no limit"
    )
    return parser


def tune_or_recheck(options: argparse.Namespace) -> int:
    """Tune the workload, or measure the library again, that `options` name. Returns the exit status. Raises UsageError."""
    usage = f"{options.prog} FILE.py:NAME, {options.prog} WORKLOAD, or {options.prog} --recheck LIBRARY"
    if options.workload is None and options.recheck is None:
        raise UsageError(
            "expected a model or a workload to tune, or --recheck and a library to measure again", hint=usage
        )
    if options.workload is not None and options.recheck is not None:
        raise UsageError("a workload and --recheck exclude each other", hint=usage)
    if options.range and options.workload is not None:
        check_range_options(options, make_parser(options.prog))
        ranges = parse_ranges(options.range)
        with confined_cores(options) as spare:
            return _tune_ranges(options, tune_options(options, spare), ranges)
    with confined_cores(options) as spare:
        return _recheck(options, spare) if options.recheck else tune_workload(tune_options(options, spare))


def _tune_ranges(arguments: argparse.Namespace, options: TuneOptions, ranges: Sequence[SizeRange]) -> int:
    reading = read_reported([options.workload])
    status = tune_ranges(
        reading.workload,
        ranges,
        _outputs(options.output),
        options.target,
        options.steps,
        arguments.evaluations,
        arguments.seed,
    )
    return FAILED if reading.damaged else status


def confined_cores(options: argparse.Namespace) -> AbstractContextManager[tuple[int, ...]]:
    """A context in which everything is measured on `--threads` cores; it has the other cores."""
    return confined(options.threads)


@dataclass(frozen=True)
class TuneOptions:
    """How to tune the workload in the file `workload`; everything is written to the folder `output`.

    Problems with at least `least_share` percent of the time are tuned; 0 tunes all. The devices and the time of the search
    are in `steps`. `changes` are fields of tunings with values that replace the usual ones.
    """

    workload: Path
    output: Path
    target: Target
    steps: StepOptions
    changes: Mapping[str, Any] = field(default_factory=dict)
    least_share: float = 0.0


def tune_options(
    options: argparse.Namespace, spare: tuple[int, ...], target: Target | None = None
) -> TuneOptions:
    """The options of a command line. Nothing is measured on the cores `spare`. `target` replaces the one that `options` name.

    Raises UsageError and TargetError, and MissingDependency if a package is missing that the search needs.
    """
    if not options.range:  # ranges are searched without a strategy
        check_search([options.strategy])
    target = target or parse_architecture(options.target or DEFAULT_TARGET)
    output = folder(options.output)
    _outputs(output)
    devices = named_devices(options.devices, target.device_uri)
    steps = step_options(options, devices, spare)
    return TuneOptions(
        folder(options.workload), output, target, steps, tuning_changes(options), options.min_share
    )


def tune_workload(options: TuneOptions) -> int:
    """Tune a workload, and write the library. Returns the exit status. Raises UsageError."""
    target, steps, files = options.target, options.steps, options.output / TUNINGS
    outputs = _outputs(options.output)
    log = read_problems(
        options.workload,
        files,
        target,
        lambda problems: check_output(outputs, target, [each.operation for each in problems]),
    )
    device = own_device(steps.search.devices, target.device_uri)
    place = profiling_place(target, device, is_required=True)
    is_complete = log.is_whole
    if options.least_share:
        is_complete = generate_tunings(log, files, place, options.least_share)
    else:
        # All problems are searched, which measures them untuned, too: their shares are known afterwards.
        write_tunings(files, [Share(Weighed(each, None), None, "") for each in log.problems], TIME, place)
    read, errors = read_tunings(files)
    for error in errors:
        warn(f"skipped: {error}")
    tunings = within_time([replace(tuning, **options.changes) for tuning in read], steps)
    with opened_bench(tunings[0], steps) as (bench, steps):
        searched = run_search(tunings, files, steps, bench)
        if not options.least_share:
            shares = _all_shares(log.problems, shares_of([_weighed(each, target) for each in searched]))
            write_shares(shares, TIME, files, place)
            is_complete = is_complete and all(each.is_complete for each in shares)
        finish_tunings(searched, bench, outputs, weights_of(tunings, files / SUMMARY_FILE), steps.rule)
    is_complete = is_complete and not errors and not any(each.is_failure for each in searched)
    return SUCCESS if is_complete else FAILED


def _outputs(output: Path) -> Outputs:
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output: {output} is a file", hint="name a folder")
    return Outputs(output / FINAL, output / RESULTS)


def check_outputs(output: Path, target: Target, operations: Collection[Operation]) -> None:
    """Raise UsageError if the folder `output` has the library of other operations, or for another target."""
    check_output(_outputs(output), target, operations)


def _all_shares(problems: Sequence[TuningProblem], known: Sequence[Share]) -> tuple[Share, ...]:
    """The shares of all `problems`, of which the `known` ones were searched."""
    shares = {each.problem.name: each for each in known}
    unknown = (Share(Weighed(each, None), None, "", _NOT_SEARCHED) for each in problems)
    return tuple(shares.get(each.problem.name, each) for each in unknown)


def _weighed(searched: Searched, target: Target) -> Weighed:
    """The weight of a problem by its untuned configurations, which its search measured."""
    problem = problem_of(searched.tuning)
    if searched.result is None:
        return Weighed(problem, None, reason=searched.failure)
    records = {each.dispatch.name: each.record for each in searched.result.evaluations}
    return weighed_by_time(problem, target, records)


def _check_recheck(options: argparse.Namespace, parser: Parser) -> None:
    """Raise UsageError for options of a search."""
    given = [
        option for option, name in _OF_SEARCHES.items() if getattr(options, name) != parser.get_default(name)
    ]
    if given:
        raise UsageError(
            f"{', '.join(given)} cannot be combined with --recheck, which measures a library and searches nothing",
            hint=f"{options.prog} --recheck {options.recheck}",
        )


def _recheck(options: argparse.Namespace, spare: tuple[int, ...]) -> int:
    _check_recheck(options, make_parser(options.prog))
    path = folder(options.recheck)
    library = Library.load(find_library(path))
    targets = targets_of(library, parse_architecture(options.target) if options.target else None)
    steps = step_options(options, spare_cores=spare)
    of_one = for_one_size(library.sound)
    if several := len(library.sound) - len(of_one):
        say(f"{counted(several, 'entry')} for several sizes: tune them again with --range")
    if several and not of_one:
        raise UsageError(f"--recheck: all entries of {path} are for several sizes", hint="tune them again")
    damaged = len(library.damaged)
    if damaged:
        hint = f"dispatch-profiler library check {path} names what is damaged"
        warn(f"{counted(damaged, 'damaged entry')} of {path} cannot be measured; {hint}")
    outcomes: list[bool] = []
    failure: TargetError | None = None
    groups = {target: [each for each in of_one if each.family == target.family] for target in targets}
    for target, group in groups.items():
        try:
            outcomes.append(_measured_again(group, target, path, options, steps))
        except TargetError as error:
            # Of a library for CPUs and GPUs, what this machine can measure is measured.
            failure = error
            if len(targets) > 1:
                warn(
                    f"{counted(len(group), 'entry')} for {target.name} cannot be measured here: {error.message}"
                )
    if failure is not None and not outcomes:
        raise failure
    for hint in prove_hints(list(itertools.chain.from_iterable(groups.values())), options.recheck):
        say(f"hint: {hint}")
    return SUCCESS if all(outcomes) and not damaged else FAILED


def _measured_again(
    entries: Sequence[Entry], target: Target, path: Path, options: argparse.Namespace, steps: StepOptions
) -> bool:
    """Measure those `entries` of a library that are for `target` and this hardware; whether all are still faster."""
    device = (*named_devices(options.devices, target.device_uri), target.device_uri)[0]
    benchmark = Benchmark(
        target,
        compiler_for(target),
        steps.benchmark_evaluator(device),
        steps.benchmark_build,
        say=lambda line: say(f"[Recheck]: {line}"),
    )
    of_here = best_for(entries, Hardware.here(target))
    if not of_here:
        raise TargetError(
            f"--recheck: all entries of {path} for {target.name} need instructions that this CPU lacks",
            hint="measure them again on such a CPU",
        )
    say(f"Measuring {counted(len(of_here), 'entry')} of {path} again")
    if other := len(entries) - len(of_here):
        say(f"{counted(other, 'entry')} for other CPUs or numbers of threads: measure there again")
    judged: list[Judged] = []
    try:
        for _, each in measured_again(of_here, benchmark, steps.rule):
            judged.append(each)
            _show_rechecked(each, f"{len(judged)} of {len(of_here)}")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"measured {len(judged)} of {counted(len(of_here), 'entry')} of {path}, still faster: {_held(judged)}; "
            "the library is unchanged"
        ) from None
    held = _held(judged)
    say(f"Still faster: {held} of {counted(len(of_here), 'entry')} of {path}")
    return held == len(of_here)


def _held(judged: Sequence[Judged]) -> int:
    return sum(each.is_kept for each in judged)


def _show_rechecked(judged: Judged, place: str) -> None:
    """Print the outcome of an entry: as data if it is no longer faster, else as progress."""
    if judged.is_kept:
        say(f"[Still faster]: {line_of(judged)}  [{place}]")
    else:
        show(line_of(judged))

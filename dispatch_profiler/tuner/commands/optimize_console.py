"""The steps of `optimize` and `tune`, with their output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dispatch_profiler.command import say, say_table, show
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.files.regular import atomic_file, write_atomic
from dispatch_profiler.library import library_file
from dispatch_profiler.library.library import old_spec_hint
from dispatch_profiler.profiler.records.record_file import to_line
from dispatch_profiler.tuner.commands.optimize import Finished, Outputs, Weights, finish
from dispatch_profiler.tuner.commands.search_arguments import (
    RECORDS_FILE,
    StepOptions,
    own_device,
    storage_in,
)
from dispatch_profiler.tuner.evaluation.stopwatch import Times
from dispatch_profiler.tuner.report.page import REPORT_FILE, SEARCH_REPORT_FILE, render_search
from dispatch_profiler.tuner.results.finalists import Benchmark
from dispatch_profiler.tuner.results.results import FINAL_FILE, METRICS_FILE, RAW_FILE, uplift_lines
from dispatch_profiler.tuner.search.events import Event
from dispatch_profiler.tuner.search.live import LiveLines
from dispatch_profiler.tuner.storage.storage import open_storage
from dispatch_profiler.tuner.tunings.tuning_file import Tuning
from dispatch_profiler.tuner.tunings.tuning_search import Searched, search_tunings


def run_search(tunings: Sequence[Tuning], files: Path, steps: StepOptions) -> tuple[Searched, ...]:
    """Search for the fastest configuration of each problem, and print the results.

    Writes the records of all evaluations to the folder `files`.
    """
    lines = LiveLines()

    def listen(event: Event) -> None:
        if line := lines.line(event):
            say(line)

    with open_storage(storage_in(files, steps)) as storage:
        result = search_tunings(tunings, storage, steps.search, steps.library, listen)
    _write_records(files / RECORDS_FILE, result.problems)
    _report_search(result.problems, result.times, files / RECORDS_FILE)
    return result.problems


def report_search(problems: Sequence[Searched], files: Path) -> None:
    """Write the report of a search whose winners are not benchmarked to the folder `files`."""
    targets = ", ".join(dict.fromkeys(each.tuning.target.name for each in problems))
    write_atomic(files / SEARCH_REPORT_FILE, render_search(problems, f"Search for {targets}"))
    say(f"Writing the searches to {files / SEARCH_REPORT_FILE}; nothing is benchmarked yet")


def _write_records(path: Path, problems: Sequence[Searched]) -> None:
    """Write the record of every evaluation, for `report`."""
    with atomic_file(path) as file:
        for problem in problems:
            for evaluation in problem.result.evaluations if problem.result else ():
                file.write(to_line(evaluation.record).encode() + b"\n")


def _report_search(problems: Sequence[Searched], times: Times, records: Path) -> None:
    count = sum(len(each.result.evaluations) for each in problems if each.result)
    say(
        f"The fastest of {counted(count, 'evaluation')} of {counted(len(problems), 'problem')}; records in {records}:"
    )
    say_table(_row(each) for each in problems)
    if not times.compiling + times.measuring:
        return  # everything was stored
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


def check_same_target(tunings: Sequence[Tuning], steps: StepOptions) -> None:
    """Raise UsageError if the tunings are for several targets or devices: a library is for one."""
    devices = steps.search.devices[:1]
    for what, names in (
        ("targets", dict.fromkeys(each.target.name for each in tunings)),
        ("devices", dict.fromkeys(devices or [each.device for each in tunings])),
    ):
        if len(names) > 1:
            raise UsageError(
                f"the tuning files are for several {what}, but a library is for one: {', '.join(names)}",
                hint="put the tuning files of each in a folder of its own, or search only: --only=search",
            )


def finish_tunings(
    searched: Sequence[Searched], outputs: Outputs, weights: Weights, steps: StepOptions
) -> Finished:
    """Merge, benchmark and filter the winners, and print the uplift. The tunings must be for one target and device.

    If several devices shared the search, the first of them on this machine measures the finalists.
    """
    tuning = searched[0].tuning
    device = own_device(steps.search.devices, tuning.device)
    benchmark = Benchmark(
        tuning.target,
        compiler_for(tuning.target),
        replace(steps.search.evaluator, device=device),
        steps.search.build,
    )
    try:
        finished = finish(searched, benchmark, outputs, steps.rule, weights, say)
    except TargetError as error:
        raise TargetError(
            f"the device failed after the search: {error.message}",
            hint="the search is stored, and the library is unchanged; repeat the command when the device works",
        ) from error
    names = ", ".join((RAW_FILE, FINAL_FILE, METRICS_FILE, REPORT_FILE))
    say(f"[Postprocess]: {outputs.results} has {names}")
    count = len(finished.library)
    say(
        f"[Postprocess]: {library_file(outputs.library)} has {counted(count, 'entry')} of "
        f"{counted(len(searched), 'problem')}"
        + ("" if count else ": nothing is faster than the compiler's untuned code")
    )
    if hint := old_spec_hint(outputs.library):
        say(hint)
    for line in uplift_lines(finished.uplift, weights.unit):
        show(line)
    return finished

"""Workload -> tuning files: profiles every problem untuned, and keeps the problems that contribute enough."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dispatch_profiler.compiler import Cache
from dispatch_profiler.configurations import spaces
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.records.record_file import JsonLines, StoredRecord, read_records, stored
from dispatch_profiler.profiler.records.resume import Wanted, left_to_do
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.evaluation.building import CandidateBuilder
from dispatch_profiler.tuner.spaces.seeds import baselines
from dispatch_profiler.tuner.tunings.problems import (
    FLOPS,
    SUMMARY_FILE,
    TIME,
    DefaultTime,
    Share,
    TuningProblem,
    Weighed,
    summary_text,
)
from dispatch_profiler.tuner.tunings.tuning_file import Tuning, read_tuning, tuning_text

#: The records of the untuned configurations, from which an interrupted run continues.
RECORDS_FILE = "untuned.jsonl"
#: Problems that are compiled together, before they are measured.
_TOGETHER = 128
#: Shares need no more precision than this.
_PRECISION = 0.02


@dataclass(frozen=True)
class ProfilingPlace:
    """Where problems are profiled.

    `device` is a URI. If it does not open, problems are weighed by FLOP; if `is_required`, that is an error. `cache`
    holds compiled modules, `peaks` is the folder that caches hardware peaks.
    """

    target: Target
    device: str
    is_required: bool = False
    cache: Cache | None = None
    peaks: Path | None = None


def weigh(
    problems: Sequence[TuningProblem], place: ProfilingPlace, records: Path, say: Callable[[str], None]
) -> tuple[tuple[Weighed, ...], str]:
    """The weight of each problem, in order, and its unit: `TIME` or `FLOPS`.

    A time is the time of the fastest correct untuned configuration. Each record is appended to the file
    `records` when it is made; a record that the file already contains is not made again. `say` is called with
    a line for each record, and with the reason for `FLOPS`. Raises TargetError if a required device does not
    open.
    """
    options = EvaluatorOptions(place.device, measure=MeasureOptions(StopRule(_PRECISION)), peaks=place.peaks)
    with Evaluator(options) as evaluator:
        try:
            evaluator.check_device()
        except TargetError as error:
            if place.is_required:
                raise
            say(
                f"problems are weighed by their FLOP count, not by their time: no device for {place.target.name} "
                f"is available here ({error.message})"
            )
            return tuple(Weighed(each, float(each.operation.flops)) for each in problems), FLOPS
        profiled = _profiled(problems, place, evaluator, records, say)
    return tuple(_weighed(each, place.target, profiled) for each in problems), TIME


def untuned(operation: Operation, target: Target) -> tuple[Dispatch, ...]:
    """The dispatches of the configurations that are used without tuning (see `baselines`)."""
    return tuple(Dispatch(operation, each) for each in baselines(operation, target))


def _profiled(
    problems: Sequence[TuningProblem],
    place: ProfilingPlace,
    evaluator: Evaluator,
    file: Path,
    say: Callable[[str], None],
) -> Mapping[str, StoredRecord]:
    """The record of each untuned dispatch, by its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    known = read_records(file) if file.exists() else ()
    profiled: dict[str, StoredRecord] = {}
    with JsonLines(file, append=True) as lines, CandidateBuilder(place.target, cache=place.cache) as builder:
        for begin in range(0, len(problems), _TOGETHER):
            dispatches = [
                each
                for problem in problems[begin : begin + _TOGETHER]
                for each in untuned(problem.operation, place.target)
            ]
            left, done = left_to_do(
                builder.candidates(dispatches),
                lambda each: [(each.dispatch.name, evaluator.provenance(each))],
                known,
                Wanted(verify=True, profile=True, mode=evaluator.mode.value),
            )
            profiled |= {record.dispatch: record for record in done}
            evaluator.load_ahead(left, say)
            for record in evaluator.records(left):
                lines.add(record)
                profiled[record.dispatch.name] = kept = stored(record)
                say(f"[Profiling]: {kept.outcome}")
    return profiled


def _weighed(problem: TuningProblem, target: Target, profiled: Mapping[str, StoredRecord]) -> Weighed:
    records = [profiled[each.name] for each in untuned(problem.operation, target) if each.name in profiled]
    times = [
        DefaultTime(each.measurement.median_ms, *each.measurement.interval_ms, each.configuration)
        for each in records
        if each.verdict is Verdict.SUCCESS and each.measurement is not None
    ]
    if times:
        time = min(times, key=lambda each: each.milliseconds)
        return Weighed(problem, time.milliseconds, time)
    reasons = dict.fromkeys(f"{each.verdict.value}: {each.reason}" for each in records)
    return Weighed(problem, None, reason=f"no untuned configuration is correct ({'; '.join(reasons)})")


# -- files -----------------------------------------------------------------------------------------


def check_output(folder: Path, problems: Iterable[TuningProblem], target: Target) -> None:
    """Raise UsageError unless `folder` is new, or contains nothing that conflicts with the files of `problems`.

    Tuning files of the same problems for the same target are replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output_dir: {folder} is a file", hint="name a folder")
    ours = {problem.name: problem.operation for problem in problems}
    others = [path.name for path in sorted(folder.glob("*.yaml")) if not _is_ours(path, ours, target)]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise UsageError(
            f"--output_dir: {folder} has files of other tunings: {', '.join(others[:3])}{more}",
            hint="name another folder, or remove them",
        )


def _is_ours(path: Path, problems: Mapping[str, Operation], target: Target) -> bool:
    try:
        tuning = read_tuning(path)
    except UsageError:
        return False
    return (
        path.stem == tuning.name and tuning.target == target and problems.get(tuning.name) == tuning.operation
    )


def write_tunings(
    folder: Path, shares: Sequence[Share], weighed_by: str, place: ProfilingPlace
) -> tuple[Path, ...]:
    """Write a tuning file and a script for each kept problem, and `summary.csv`; returns the tuning files.

    Each write is atomic. A tuning file that exists keeps its kinds, its strategy, its budget and its seed, which the
    user may have changed. Files of problems that are not kept are removed.
    """
    written = []
    for share in shares:
        path = folder / f"{share.problem.name}.yaml"
        script = path.with_suffix(".sh")
        if not share.is_kept:
            path.unlink(missing_ok=True)
            script.unlink(missing_ok=True)
            continue
        tuning = _tuning(share, place)
        if path.exists():
            known = read_tuning(path)
            tuning = replace(
                known, device=tuning.device, count=tuning.count, share=tuning.share, origin=tuning.origin
            )
        write_atomic(path, tuning_text(tuning))
        write_atomic(script, _script(share.problem))
        script.chmod(stat.S_IMODE(os.stat(script).st_mode) | 0o111)
        written.append(path)
    write_atomic(folder / SUMMARY_FILE, summary_text(shares, weighed_by))
    return tuple(written)


def _tuning(share: Share, place: ProfilingPlace) -> Tuning:
    problem, limits = share.problem, place.target.limits
    kinds = dict.fromkeys(space.kind.kind for space in spaces(problem.operation, limits))
    return Tuning(
        problem.name,
        problem.operation,
        place.target,
        place.device,
        problem.count,
        share.percent,
        problem.origin,
        tuple(kinds),
    )


def _script(problem: TuningProblem) -> str:
    return f"""#!/bin/sh
# Searches for the fastest configuration of {problem.operation.name}.
# Takes the options of `dispatch-profiler optimize`.
cd "$(dirname "$0")" || exit
exec dispatch-profiler optimize --only=search {problem.name}.yaml "$@"
"""


def kept_part(shares: Iterable[Share]) -> float:
    """The percentage of the workload that the kept problems make up."""
    return sum(each.percent for each in shares if each.is_kept and each.percent is not None)

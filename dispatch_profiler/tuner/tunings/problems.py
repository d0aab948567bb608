"""The problems of a workload, their short names, their shares of the workload, and their tuning files.

Names follow the style of hipBLASLt's tuning files: `BBS_TN_0`.

A name has three parts:

| part | of a matrix product | of another operation |
|---|---|---|
| `BBS` | the types of A and B, of C and D, and of the sums | the kind, its mode unless that is forward, then likewise: `CONV2D_SSS` |
| `TN` | `transA` and `transB` of the column-major call, as in a hipBLASLt log | - |
| `0` | its number among the problems of the workload with the same parts | |
"""

from __future__ import annotations

import csv
import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dispatch_profiler.compiler import Cache
from dispatch_profiler.configurations import spaces
from dispatch_profiler.console.markup import csv_text
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError, UsageError, short_repr
from dispatch_profiler.files.regular import read_bounded, remove_empty, write_atomic
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.element_types import ElementType
from dispatch_profiler.operations.short_names import label
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.records.record import StoredRecord, Verdict, stored
from dispatch_profiler.profiler.records.record_file import JsonLines, read_records
from dispatch_profiler.profiler.records.resume import Wanted, left_to_do
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.evaluation.building import CandidateBuilder
from dispatch_profiler.tuner.spaces.seeds import baselines
from dispatch_profiler.tuner.tunings.scripts import script_of
from dispatch_profiler.tuner.tunings.tuning_file import Tuning, read_tuning, tuning_text
from dispatch_profiler.workloads import Workload

#: The letters of hipBLASLt's types.
_LETTERS = {
    "f64": "D",
    "f32": "S",
    "f16": "H",
    "bf16": "B",
    "f8E4M3FN": "F8",
    "f8E5M2": "B8",
    "i8": "I8",
    "i32": "I",
}


@dataclass(frozen=True)
class TuningProblem:
    """An operation of a workload, with its name, how often it runs, where the count was read, and the model's modules."""

    name: str
    operation: Operation
    count: int = 1
    origin: str = ""
    modules: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What people call the operation: `conv 3x3 256->256 14x14 s1 (layer3.1.conv2)`."""
        return label(self.operation, self.modules)


def problems_of(workload: Workload) -> tuple[TuningProblem, ...]:
    """A problem for each entry, in order. Names depend on nothing but the order of the entries."""
    numbers: Counter[str] = Counter()
    problems = []
    for entry in workload.entries:
        start = prefix(entry.operation)
        problems.append(
            TuningProblem(
                f"{start}_{numbers[start]}", entry.operation, entry.count, entry.origin, entry.modules
            )
        )
        numbers[start] += 1
    return tuple(problems)


def prefix(operation: Operation) -> str:
    """The name of a problem without its number: `BBS_TN`, `CONV2D_SSS`, `CONV2D_WEIGHT_BACKWARD_SSS`."""
    product = operation.product
    # The column-major A is the row-major rhs; of mixed types, both are named.
    factors = [operation.operands[i].type for i in (1, 0)] if product else [operation.element_type]
    types = (*dict.fromkeys(factors), operation.results[0].type, operation.accumulator)
    letters = "".join(map(_letters, types))
    if product is None:
        convolution = operation.convolution
        is_forward = convolution is None or convolution.mode == "forward"
        mode = "" if convolution is None or is_forward else f"_{convolution.mode}"
        return f"{operation.kind}{mode}_{letters}".upper()
    # The row-major rhs is stored transposed unless A is.
    trans_a = "T" if product.rhs_layout == "n" else "N"
    trans_b = "T" if product.lhs_layout == "n" else "N"
    return f"{letters}_{trans_a}{trans_b}"


def _letters(element: ElementType) -> str:
    return _LETTERS.get(element.name, element.name.upper())


# -- shares ----------------------------------------------------------------------------------------

# How much each problem contributes to a workload, and which are worth tuning: `summary.csv`.


SUMMARY_FILE = "summary.csv"
#: Far above any summary: 10,000 problems take 2 MB.
_LARGEST_FILE = 2**28
#: Units of the weights of problems.
TIME, FLOPS = "time", "flops"
#: The units in messages.
UNITS = {TIME: "time", FLOPS: "FLOP count"}
_COLUMNS = (
    "problem", "operation", "count", "time(ms)", "low(ms)", "high(ms)", "weighed_by", "share(%)", "kept", "reason",
    "configuration", "origin",
)  # fmt: skip


@dataclass(frozen=True)
class DefaultTime:
    """Milliseconds of the fastest untuned configuration, with the 95 % interval as `Measurement.interval_ms` has it."""

    milliseconds: float
    low: float
    high: float
    configuration: str


@dataclass(frozen=True)
class Weighed:
    """A problem with the weight of one execution: milliseconds or FLOP.

    `weight` is None if it is unknown, `reason` says why. `time` is None if it was not measured.
    """

    problem: TuningProblem
    weight: float | None
    time: DefaultTime | None = None
    reason: str = ""

    @property
    def total(self) -> float:
        """The weight of all its executions; 0 if unknown."""
        return 0.0 if self.weight is None else self.weight * self.problem.count


@dataclass(frozen=True)
class Share:
    """A problem with its part of the whole workload in percent; None if unknown.

    `reason` says why it is not kept; empty if it is. `note` says why a kept problem has no share, if that is expected.
    """

    weighed: Weighed
    percent: float | None
    reason: str
    note: str = ""

    @property
    def problem(self) -> TuningProblem:
        return self.weighed.problem

    @property
    def is_kept(self) -> bool:
        return not self.reason

    @property
    def is_complete(self) -> bool:
        """Whether the share is known, or need not be."""
        return self.percent is not None or bool(self.note)


def shares_of(weighed: Sequence[Weighed], threshold: float = 0.0) -> tuple[Share, ...]:
    """The share of each problem, in order; shares of at least `threshold` percent are kept.

    A problem without a weight is not kept, and counts as 0 in the shares of the others.
    """
    whole = math.fsum(each.total for each in weighed)
    return tuple(_share(each, whole, threshold) for each in weighed)


def _share(weighed: Weighed, whole: float, threshold: float) -> Share:
    if weighed.weight is None:
        return Share(weighed, None, weighed.reason)
    percent = 100.0 * weighed.total / whole if whole > 0.0 else 0.0
    return Share(weighed, percent, "" if percent >= threshold else f"its share is below {threshold:g} %")


# -- summary.csv -----------------------------------------------------------------------------------


def summary_text(shares: Sequence[Share], weighed_by: str) -> str:
    """The text of a `summary.csv`, in the order of the workload."""
    return csv_text(_COLUMNS, (_row(share, weighed_by) for share in shares))


def _row(share: Share, weighed_by: str) -> Mapping[str, object]:
    problem, time = share.problem, share.weighed.time
    is_known = time is not None and math.isfinite(time.high)
    times = {} if time is None else {
        "time(ms)": repr(time.milliseconds),
        "low(ms)": repr(time.low) if is_known else "", "high(ms)": repr(time.high) if is_known else "",
        "configuration": time.configuration,
    }  # fmt: skip
    return {
        "problem": problem.name,
        "operation": problem.operation.name,
        "count": problem.count,
        **times,
        "weighed_by": weighed_by,
        "share(%)": "" if share.percent is None else repr(share.percent),
        "kept": "yes" if share.is_kept else "no",
        "reason": share.reason or share.note,
        "origin": problem.origin,
    }


@dataclass(frozen=True)
class SummaryRow:
    """A line of a `summary.csv`. `milliseconds` and `percent` are None if unknown."""

    problem: str
    operation: str
    count: int
    milliseconds: float | None
    percent: float | None
    weighed_by: str
    is_kept: bool


def read_summary(path: Path) -> tuple[SummaryRow, ...]:
    """The lines of a `summary.csv`, in order.

    Raises UsageError, which names the line, if the file is not one, is damaged, or names a problem twice.
    """
    try:
        lines = read_bounded(path, _LARGEST_FILE).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text", hint=_HINT) from error
    reader = csv.DictReader(lines)
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{path} is not a summary: it has no column {', '.join(missing)}", hint=_HINT)
    summary: dict[str, SummaryRow] = {}
    try:
        for row in reader:
            parsed = _parsed(row)
            if summary.setdefault(parsed.problem, parsed) is not parsed:
                raise ValueError(f"{parsed.problem} is listed twice")
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error}", hint=_HINT) from error
    return tuple(summary.values())


_HINT = "dispatch-profiler gen_configs writes it"


def _parsed(row: Mapping[str, str | None]) -> SummaryRow:
    """One line. Raises ValueError."""
    values = {name: row[name] or "" for name in _COLUMNS}
    if not values["problem"]:
        raise ValueError("problem is missing")
    if not (values["count"].isascii() and values["count"].isdigit()):
        raise ValueError(f"count: expected a whole number, but got {short_repr(values['count'])}")
    return SummaryRow(
        values["problem"],
        values["operation"],
        int(values["count"][:18]),
        _number(values, "time(ms)"),
        _number(values, "share(%)"),
        _choice(values, "weighed_by", (TIME, FLOPS)),
        _choice(values, "kept", ("yes", "no")) == "yes",
    )


def _number(values: Mapping[str, str], name: str) -> float | None:
    if not values[name]:
        return None
    try:
        number = float(values[name])
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0.0):
        raise ValueError(f"{name}: expected a number of at least 0, but got {short_repr(values[name])}")
    return number


def _choice(values: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    if values[name] not in choices:
        raise ValueError(f"{name}: expected {' or '.join(choices)}, but got {short_repr(values[name])}")
    return values[name]


# -- tuning files ----------------------------------------------------------------------------------

# Profiles every problem untuned, and keeps the problems that contribute enough.


#: The records of the untuned configurations, from which an interrupted run continues.
RECORDS_FILE = "untuned.jsonl"
#: Problems that are compiled together, before they are measured.
_TOGETHER = 128
#: Shares need no more precision than this, and no more seconds for each configuration: the search measures it again.
_PRECISION, _SECONDS = 0.02, 0.3


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
    stop = StopRule(_PRECISION, _SECONDS)
    options = EvaluatorOptions(place.device, measure=MeasureOptions(stop), peaks=place.peaks)
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
        try:
            profiled = _profiled(problems, place, evaluator, records, say)
        finally:
            remove_empty(records)  # as after Ctrl-C before the first record
    return tuple(weighed_by_time(each, place.target, profiled) for each in problems), TIME


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


def weighed_by_time(problem: TuningProblem, target: Target, profiled: Mapping[str, StoredRecord]) -> Weighed:
    """The weight of a problem by the records of its untuned dispatches, by their names, as far as they have been made."""
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
        raise UsageError(f"--output: {folder} is a file", hint="name a folder")
    ours = {problem.name: problem.operation for problem in problems}
    others = [path.name for path in sorted(folder.glob("*.yaml")) if not _is_ours(path, ours, target)]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise UsageError(
            f"--output: {folder} has files of other tunings: {', '.join(others[:3])}{more}",
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
                known,
                device=tuning.device,
                count=tuning.count,
                share=tuning.share,
                origin=tuning.origin,
                modules=tuning.modules,
            )
        write_atomic(path, tuning_text(tuning))
        write_atomic(script, script_of(path, share.problem.operation, place.target))
        script.chmod(stat.S_IMODE(os.stat(script).st_mode) | 0o111)
        written.append(path)
    write_atomic(folder / SUMMARY_FILE, summary_text(shares, weighed_by))
    return tuple(written)


def _tuning(share: Share, place: ProfilingPlace) -> Tuning:
    problem, limits = share.problem, place.target.limits
    # Some kinds only pack weights: a search that may not do so has no space of them.
    every = spaces(problem.operation, limits, packed_weights=True)
    kinds = dict.fromkeys(space.kind.kind for space in every)
    return Tuning(
        problem.name,
        problem.operation,
        place.target,
        place.device,
        problem.count,
        share.percent,
        problem.origin,
        tuple(kinds),
        modules=problem.modules,
    )


def problem_of(tuning: Tuning) -> TuningProblem:
    """The problem that a tuning file has."""
    return TuningProblem(tuning.name, tuning.operation, tuning.count, tuning.origin, tuning.modules)


def kept_part(shares: Iterable[Share]) -> float:
    """The percentage of the workload that the kept problems make up."""
    return sum(each.percent for each in shares if each.is_kept and each.percent is not None)

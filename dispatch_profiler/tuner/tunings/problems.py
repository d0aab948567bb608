"""The problems of a workload, their short names, and their shares of the workload.

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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.console.markup import csv_text
from dispatch_profiler.errors import UsageError, short_repr
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.element_types import ElementType
from dispatch_profiler.workloads import Workload

#: The letters of hipBLASLt's types.
_LETTERS = {"f64": "D", "f32": "S", "f16": "H", "bf16": "B", "f8E4M3FN": "F8", "i8": "I8", "i32": "I"}


@dataclass(frozen=True)
class TuningProblem:
    """An operation of a workload, with its name, how often it runs, and where the count was read."""

    name: str
    operation: Operation
    count: int = 1
    origin: str = ""


def problems_of(workload: Workload) -> tuple[TuningProblem, ...]:
    """A problem for each entry, in order. Names depend on nothing but the order of the entries."""
    numbers: Counter[str] = Counter()
    problems = []
    for entry in workload.entries:
        start = prefix(entry.operation)
        problems.append(
            TuningProblem(f"{start}_{numbers[start]}", entry.operation, entry.count, entry.origin)
        )
        numbers[start] += 1
    return tuple(problems)


def prefix(operation: Operation) -> str:
    """The name of a problem without its number: `BBS_TN`, `CONV2D_SSS`, `CONV2D_WEIGHT_BACKWARD_SSS`."""
    types = (operation.element_type, operation.results[0].type, operation.accumulator)
    letters = "".join(map(_letters, types))
    product = operation.product
    if product is None:
        convolution = operation.convolution
        is_forward = convolution is None or convolution.mode == "forward"
        mode = "" if convolution is None or is_forward else f"_{convolution.mode}"
        return f"{operation.kind}{mode}_{letters}".upper()
    # The column-major A is the row-major rhs, which is stored transposed unless A is.
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
    """Milliseconds of the fastest untuned configuration, with the 95 % interval."""

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

    `reason` says why it is not kept; empty if it is.
    """

    weighed: Weighed
    percent: float | None
    reason: str

    @property
    def problem(self) -> TuningProblem:
        return self.weighed.problem

    @property
    def is_kept(self) -> bool:
        return not self.reason


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
    times = {} if time is None else {
        "time(ms)": repr(time.milliseconds), "low(ms)": repr(time.low), "high(ms)": repr(time.high),
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
        "reason": share.reason,
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

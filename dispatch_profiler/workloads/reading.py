"""Reads workloads: workload.yaml, hipBLASLt logs, and commands of MIOpenDriver, recognized by their content."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import OperationError, UnsupportedFeature, WorkloadError
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.workloads.hipblaslt import FlowMaps, gemm_call
from dispatch_profiler.workloads.miopen import is_command, miopen_operations
from dispatch_profiler.workloads.workload_file import (
    Workload,
    WorkloadEntry,
    entry_of,
    is_workload_file,
    merged,
    workload_entries,
)

#: A log of 100,000 calls has 54 MB.
MOST_BYTES = 2**30


@dataclass(frozen=True)
class SkippedLine:
    """A line that gave no operation, and why; `is_unsupported` if it is not damaged."""

    file: str
    line: int
    reason: str
    is_unsupported: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {'not supported: ' if self.is_unsupported else ''}{self.reason}"


@dataclass(frozen=True)
class WorkloadReading:
    """The result of reading: the workload, the lines that gave no operation, and remarks about other lines.

    `calls` is the number of lines and entries that gave operations.
    """

    workload: Workload
    calls: int
    skipped: tuple[SkippedLine, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def damaged(self) -> tuple[SkippedLine, ...]:
        return tuple(line for line in self.skipped if not line.is_unsupported)

    @property
    def unsupported(self) -> tuple[SkippedLine, ...]:
        return tuple(line for line in self.skipped if line.is_unsupported)


@dataclass
class _FileContent:
    """The content of one file."""

    name: str
    entries: list[WorkloadEntry] = field(default_factory=list)
    skipped: list[SkippedLine] = field(default_factory=list)
    calls: int = 0
    with_gaps: int = 0
    scaled: int = 0
    #: Command lines that were left out, because the log has profile lines of the same calls.
    repeated: int = 0
    columns: tuple[str, ...] = ()
    flow_maps: FlowMaps = field(default_factory=FlowMaps)

    def read(self, number: int, parse: Callable[[], Iterable[WorkloadEntry]]) -> None:
        """Add the entries of one line, or the reason why it has none."""
        try:
            self.entries.extend(parse())
            self.calls += 1
        except UnsupportedFeature as error:
            self.skipped.append(SkippedLine(self.name, number, str(error), is_unsupported=True))
        except (WorkloadError, OperationError) as error:
            self.skipped.append(SkippedLine(self.name, number, str(error)))


def read_workload(*paths: Path) -> WorkloadReading:
    """Read and merge the files at `paths`; equal operations are one entry with their counts added.

    A line that cannot be read is in `skipped`. Raises UsageError if a file cannot be read, WorkloadError if it is
    empty or nothing in it is an operation.
    """
    contents = [_read(path) for path in paths]
    notes = [note for each in contents for note in _notes(each)]
    entries = [entry for each in contents for entry in each.entries]
    skipped = tuple(line for each in contents for line in each.skipped)
    return WorkloadReading(merged(entries), sum(each.calls for each in contents), skipped, tuple(notes))


def _read(path: Path) -> _FileContent:
    content = read_bounded(path, MOST_BYTES).decode("utf-8-sig", "replace")
    result = _FileContent(path.name)
    if is_workload_file(content):
        for number, data in workload_entries(content, str(path)):
            result.read(number, partial(_entries_of_row, data, f"{path.name}:{number}"))
    else:
        _read_lines(content, result)
    if not result.entries:
        raise _empty(path, result)
    return result


def _entries_of_row(data: object, origin: str) -> list[WorkloadEntry]:
    return [entry_of(data, origin)]


def _read_lines(content: str, result: _FileContent) -> None:
    has_profile = content.startswith("- {") or "\n- {" in content
    for number, line in _lines(content):
        if BENCH in line and has_profile and not line.startswith("- {"):
            result.repeated += 1
        elif columns := _header(line):
            result.columns = columns
        else:
            result.read(number, partial(_entries_of_line, line, f"{result.name}:{number}", result))


def _entries_of_line(line: str, origin: str, result: _FileContent) -> list[WorkloadEntry]:
    """The operations of one line of any form."""
    if line.startswith("- {"):
        fields = result.flow_maps.parse(line)
    elif BENCH in line:
        fields = bench_fields(line)
    elif is_command(line):
        return [WorkloadEntry(each, 1, origin) for each in miopen_operations(line)]
    elif result.columns:
        fields = csv_fields(line, result.columns)
    else:
        raise WorkloadError("neither a call in a hipBLASLt log nor a command of MIOpenDriver")
    call = gemm_call(fields)
    result.with_gaps += call.has_gaps
    result.scaled += call.is_scaled
    return [WorkloadEntry(call.operation, call.count, origin)]


def _lines(content: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without comments and blank lines."""
    for number, line in enumerate(content.split("\n"), 1):
        if (line := line.strip()) and not line.startswith("#") and line != "---":
            yield number, line


def _header(line: str) -> tuple[str, ...]:
    if line.startswith("- {"):
        return ()
    try:
        return csv_columns(line)
    except WorkloadError:
        return ()


def _notes(result: _FileContent) -> Iterator[str]:
    if result.with_gaps:
        yield (
            f"{result.name}: {counted(result.with_gaps, 'call')} with matrices that are parts of larger ones (by their "
            "leading dimension or stride): their operations have dense matrices of the same shape"
        )
    if result.scaled:
        yield (
            f"{result.name}: {counted(result.scaled, 'call')} with a factor for A or B (scaleA, scaleB): their operations "
            "leave it out"
        )
    if result.repeated:
        yield (
            f"{result.name}: {counted(result.repeated, f'{BENCH} line')} left out, because the log counts the same "
            "calls in its `call_count`s"
        )


def _empty(path: Path, result: _FileContent) -> WorkloadError:
    """The error for a file without any operation."""
    hint = "log a workload with HIPBLASLT_LOG_MASK=64, or with MIOPEN_ENABLE_LOGGING_CMD=1"
    if not result.skipped:
        return WorkloadError(f"{path} has no operations: it is empty, or has comments only", hint=hint)
    return WorkloadError(
        f"{path} has no operations: {counted(len(result.skipped), 'line')} skipped; the first is {result.skipped[0]}",
        hint=hint,
    )


# -- gemm syntaxes ---------------------------------------------------------------------------------

# The other forms of a hipBLASLt log: `hipblaslt-bench` command lines (mask 32) and CSV, as fields.
#
# Both give the field names of the YAML form (see `hipblaslt`).


BENCH = "hipblaslt-bench"
#: Names in command lines and CSV -> fields of the YAML form.
_RENAMED = {
    **{name: letter for letter in "MNK" for name in (letter.lower(), f"size{letter.lower()}")},
    **{name.lower(): name for name in ("transA", "transB", "scaleA", "scaleB", "scaleC", "scaleD")},
    **{name.lower(): name for name in ("swizzleA", "swizzleB", "amaxD", "scaleAlpha_vector")},
    "f": "function",
    "r": "precision",
    "batch": "batch_count",
}
_NUMBER = re.compile(r"-\.?\d.*")
_REQUIRED_COLUMNS = {"transA", "transB", "M", "N", "K"}
#: hipblaslt-bench numbers its rows: `[0]:transA,transB,...`.
_ROW_NUMBER = re.compile(r"\s*\[\d+\]:")


def bench_fields(line: str) -> dict[str, str]:
    """`hipblaslt-bench -m 768 --transA T --bias_vector ...` -> {"M": "768", "transA": "T", "bias_vector": "true"}.

    Options that are not given have the program's defaults, except for the shape, which is required.
    """
    words = line.partition(BENCH)[2].split()
    fields: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or not word.lstrip("-"):
            raise WorkloadError(f"expected an option of {BENCH}, but got {word[:40]!r}")
        name, _, value = word.lstrip("-").partition("=")
        following = words[at + 1] if at + 1 < len(words) else "-"
        if not value and (not following.startswith("-") or _NUMBER.fullmatch(following)):
            value = following
            at += 1
        fields[_renamed(name)] = value or "true"
        at += 1
    precision = fields.get("precision", "f32_r")
    defaults = {f"{operand}_type": precision for operand in "abd"}
    return {"transA": "N", "transB": "N", "batch_count": "1", "compute_type": "f32_r", **defaults, **fields}


def csv_columns(line: str) -> tuple[str, ...]:
    """The fields that the header of a CSV log names; empty if `line` is no such header."""
    if "," not in line:
        return ()
    columns = tuple(_renamed(name) for name in _values(line))
    return columns if set(columns) >= _REQUIRED_COLUMNS else ()


def csv_fields(line: str, columns: tuple[str, ...]) -> dict[str, str]:
    """The fields of a row; empty cells are left out."""
    values = _values(line)
    if len(values) != len(columns):
        raise WorkloadError(
            f"the row has {counted(len(values), 'value')}, but the header has {counted(len(columns), 'column')}"
        )
    return {name: value for name, value in zip(columns, values, strict=True) if value}


def _values(line: str) -> list[str]:
    try:
        return [value.strip() for value in next(csv.reader([_ROW_NUMBER.sub("", line)]), [])]
    except csv.Error as error:
        raise WorkloadError(f"not a row of CSV: {error}") from error


def _renamed(name: str) -> str:
    name = name.strip()
    return _RENAMED.get(name.lower(), name)

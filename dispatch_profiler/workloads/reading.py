"""Reads workloads: workload.yaml, tables of shapes, logs of hipBLASLt and rocBLAS, and commands of MIOpenDriver.

The form of a file, and of each line of a log, is recognized by its content.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import OperationError, UnsupportedFeature, WorkloadError
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.workloads.bench_lines import (
    bench_fields,
    bench_program,
    check_types,
    csv_columns,
    csv_fields,
)
from dispatch_profiler.workloads.hipblaslt import FlowMaps, gemm_call
from dispatch_profiler.workloads.miopen import is_command, message_reason, miopen_operations
from dispatch_profiler.workloads.rocblas import FUNCTION, rocblas_fields, trace_reason
from dispatch_profiler.workloads.tables import TABLE_HINT, Table, missing_header, table_of
from dispatch_profiler.workloads.workload_file import (
    EntryProblem,
    Workload,
    WorkloadEntry,
    is_workload_file,
    merged,
    read_entry,
    workload_entries,
)

#: A log of 100,000 calls has 54 MB.
MOST_BYTES = 2**30
#: Byte order marks -> encodings; UTF-32's begins like UTF-16's. PowerShell's `>` writes UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: The number in front of a line that `uniq -c` writes, and what follows it: no row of numbers.
_COUNTED = re.compile(r"([0-9]{1,15})[ \t]+([^\s0-9,;].*)")
#: ... and a row of numbers.
_COUNTED_ROW = re.compile(r"([0-9]{1,15}) +([0-9]+[,;\t].*)")
_PROFILE_LINE = re.compile(r"(?:^|\n)[ \t]*(?:[0-9]+[ \t]+)?- +\{[^\n]*")


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
    #: What to do if nothing in the file is an operation.
    hint: str = "log a workload with HIPBLASLT_LOG_MASK=64, or with MIOPEN_ENABLE_LOGGING_CMD=1"
    entries: list[WorkloadEntry] = field(default_factory=list)
    skipped: list[SkippedLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    calls: int = 0
    with_gaps: int = 0
    scaled: int = 0
    #: Benchmark programs -> command lines that were left out, because the log has profile lines of the same calls.
    repeated: Counter[str] = field(default_factory=Counter)
    #: The columns of the last header: of a log, or of a table of shapes.
    columns: tuple[str, ...] = ()
    table: Table | None = None
    flow_maps: FlowMaps = field(default_factory=FlowMaps)

    @property
    def is_named_table(self) -> bool:
        """Whether the file's name says that it is a table."""
        return self.name.lower().endswith((".csv", ".tsv"))

    def read(self, number: int, parse: Callable[[], Iterable[WorkloadEntry]], count: int = 1) -> None:
        """Add the entries of one line, `count` times, or the reason why it has none."""
        try:
            found = list(parse())
        except UnsupportedFeature as error:
            self.skip(number, str(error), is_unsupported=True)
        except (WorkloadError, OperationError) as error:
            self.skip(number, str(error))
        else:
            self.entries.extend(found if count == 1 else (replace(e, count=e.count * count) for e in found))
            self.calls += 1

    def skip(self, number: int, reason: str, *, is_unsupported: bool = False) -> None:
        """Add the reason why a line has no operation."""
        self.skipped.append(SkippedLine(self.name, number, reason, is_unsupported))


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
    content = _decoded(read_bounded(path, MOST_BYTES))
    result = _FileContent(path.name)
    if result.is_named_table:
        result.hint = TABLE_HINT
    if is_workload_file(content):
        result.hint = "correct the entries: docs/workloads.md shows the format"
        for entry in workload_entries(content, str(path)):
            found = read_entry(entry, path.name)
            if isinstance(found, EntryProblem):
                result.skip(found.line, found.reason)
            else:
                result.entries.append(found)
                result.calls += 1
    else:
        _read_lines(content, result, str(path))
    if not result.entries:
        raise _empty(path, result)
    return result


def _decoded(data: bytes) -> str:
    """The text of a file: UTF-8, or what its byte order mark says. What is no text is replaced."""
    encoding = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "")
    if not encoding:
        # UTF-16 without a mark: every second byte of ASCII is 0.
        start = data[:64]
        if len(start) >= 8 and not any(start[1::2]) and all(start[::2]):
            encoding = "utf-16-le"
        elif len(start) >= 8 and not any(start[::2]) and all(start[1::2]):
            encoding = "utf-16-be"
    return data.decode(encoding or "utf-8", "replace")


def _read_lines(content: str, result: _FileContent, where: str) -> None:
    profiled = _profiled_programs(content)
    for at, (number, text) in enumerate(_lines(content)):
        count, line = _counted(text, result)
        if line.startswith("#"):
            continue
        if (program := bench_program(line)) in profiled and not line.startswith("- {"):
            result.repeated[program] += count
        elif not _read_header(line, result, f"{where}:{number}", is_first=at == 0):
            parse = partial(_entries_of_line, line, f"{result.name}:{number}", result)
            result.read(number, parse, count)


def _profiled_programs(content: str) -> frozenset[str]:
    """The benchmark programs, hipblaslt-bench and rocblas-bench, whose calls a log also counts in lines of its own."""
    first = _PROFILE_LINE.search(content)
    if first is None:
        return frozenset()
    if FUNCTION not in content:
        return frozenset({"hipblaslt-bench"})
    is_other = any(FUNCTION not in match[0] for match in _PROFILE_LINE.finditer(content))
    return frozenset({"rocblas-bench", *(["hipblaslt-bench"] if is_other else [])})


def _counted(line: str, result: _FileContent) -> tuple[int, str]:
    """The count that `uniq -c` wrote in front of a line, and the line; 1 without one."""
    if not line[0].isdigit():
        return 1, line
    match = _COUNTED.fullmatch(line)
    if result.table and result.table.begins_with_text:
        return 1, line
    if match is None and (result.table or result.columns):
        match = _COUNTED_ROW.fullmatch(line)
    return (max(1, int(match[1])), match[2]) if match else (1, line)


def _read_header(line: str, result: _FileContent, where: str, *, is_first: bool) -> bool:
    """Take the columns of a header, of a log in CSV or of a table. Raises WorkloadError for a misspelled first line."""
    if line.startswith("- {"):
        return False
    if columns := _header(line):
        check_types(columns, where)
        result.columns, result.table = columns, None
        return True
    if table := table_of(line, where):
        result.columns, result.table = (), table
        result.hint = "correct the rows: docs/workloads.md lists the columns of a table"
        result.notes.extend(table.notes(result.name))
        return True
    if (
        is_first
        and not is_command(line)
        and (problem := missing_header(line, is_table=result.is_named_table))
    ):
        raise WorkloadError(f"{where}: {problem.message}", hint=problem.hint)
    return False


def _entries_of_line(line: str, origin: str, result: _FileContent) -> list[WorkloadEntry]:
    """The operations of one line of any form."""
    if line.startswith("- {"):
        fields: Mapping[str, str] = result.flow_maps.parse(line)
        if FUNCTION in fields:
            fields = rocblas_fields(fields)
    elif bench_program(line):
        fields = bench_fields(line)
    elif is_command(line):
        return [WorkloadEntry(each, 1, origin) for each in miopen_operations(line)]
    elif reason := message_reason(line) or trace_reason(line):
        raise UnsupportedFeature(reason)
    elif result.table:
        return [result.table.entry(line, origin)]
    elif result.columns:
        fields = csv_fields(line, result.columns)
    else:
        raise WorkloadError("neither a call in a hipBLASLt log nor a command of MIOpenDriver")
    call = gemm_call(fields)
    result.with_gaps += call.has_gaps
    result.scaled += call.is_scaled
    return [WorkloadEntry(call.operation, call.count, origin)]


def _lines(content: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without comments, blank lines, and the line `sep=;` of spreadsheets."""
    for number, line in enumerate(content.split("\n"), 1):
        if (
            (line := line.strip())
            and not line.startswith("#")
            and line != "---"
            and not line.startswith("sep=")
        ):
            yield number, line


def _header(line: str) -> tuple[str, ...]:
    try:
        return csv_columns(line)
    except WorkloadError:
        return ()


def _notes(result: _FileContent) -> Iterator[str]:
    if result.with_gaps:
        yield (
            f"{result.name}: {counted(result.with_gaps, 'call')} with matrices that are parts of larger ones (by their "
            "leading dimension or stride) or anywhere in memory: their operations have dense matrices of the same shape"
        )
    if result.scaled:
        yield (
            f"{result.name}: {counted(result.scaled, 'call')} with a factor for A or B (scaleA, scaleB): their operations "
            "leave it out"
        )
    for program, lines in result.repeated.items():
        yield (
            f"{result.name}: {counted(lines, f'{program} line')} left out, because the log counts the same "
            "calls in its `call_count`s"
        )
    yield from result.notes


def _empty(path: Path, result: _FileContent) -> WorkloadError:
    """The error for a file without any operation."""
    if not result.skipped:
        what = "has a header only" if result.table or result.columns else "is empty, or has comments only"
        return WorkloadError(f"{path} has no operations: it {what}", hint=result.hint)
    skipped = counted(len(result.skipped), "line")
    if all(line.is_unsupported for line in result.skipped):
        listed = Counter(line.reason for line in result.skipped).most_common(1)
        return WorkloadError(
            f"{path} has no operations: {skipped} skipped, not supported; the first is {result.skipped[0]}",
            hint=_unsupported_hint(*listed[0], len(result.skipped)),
        )
    return WorkloadError(
        f"{path} has no operations: {skipped} skipped; the first is {result.skipped[0]}", hint=result.hint
    )


def _unsupported_hint(reason: str, count: int, total: int) -> str:
    """What to do about a log whose lines are all valid and not supported."""
    if reason.startswith("LogCmdFind"):
        return "log the calls too: keep MIOPEN_ENABLE_LOGGING_CMD=1 set while the program computes"
    if reason.startswith("a_type=") and "both must be the same type" in reason:
        return (
            "operands of different types are not multiplied: list the products with both operands in the wider type, in a "
            "table (m,n,k,type,count) or a workload.yaml, to tune what comes nearest"
        )
    frequent = f"{count} of {total} have the reason {reason!r}; " if total > count > 1 else ""
    return (
        f"the log was read, but no operation computes its calls: {frequent}docs/workloads.md lists what is supported. "
        "Write the nearest operations in a table (m,n,k,type,count) or a workload.yaml"
    )

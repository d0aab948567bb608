"""A workload, and workload.yaml: operations with their counts and origins, as this package writes them and as users do.

    format: dispatch_profiler workload
    version: 1
    operations:
    - {"operation": {"kind": "matmul", "m": 128, "n": 768, "k": 768}, "count": 48, "origin": "gemm_log.yaml:1"}

An entry may leave out `count` (1), `origin`, `modules` (of captured models: `["layer3.0.conv2", "layer3.1.conv2"]`), and
the fields of its operation that have defaults.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dispatch_profiler.errors import WorkloadError, did_you_mean, nearest, short_repr
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.files.json_fields import FieldError, mapping, parse_json, text, texts, whole
from dispatch_profiler.files.yaml_files import MOST_BYTES, FieldLines, parse_yaml_lines
from dispatch_profiler.operations import Operation
from dispatch_profiler.workloads.operation_fields import FieldProblem, operation_of


@dataclass(frozen=True)
class WorkloadEntry:
    """One operation of a workload. `origin` names its source, `modules` the modules of a model that compute it."""

    operation: Operation
    count: int = 1
    origin: str = ""
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Entries in the order in which they were read, with distinct operations."""

    entries: tuple[WorkloadEntry, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(entry.operation for entry in self.entries)


def merged(entries: list[WorkloadEntry]) -> Workload:
    """A workload that merges entries with equal operations: adds up their counts, and joins their modules."""
    by_operation: dict[Operation, WorkloadEntry] = {}
    for entry in entries:
        first = by_operation.setdefault(entry.operation, entry)
        if first is not entry:
            modules = tuple(dict.fromkeys((*first.modules, *entry.modules)))
            by_operation[entry.operation] = replace(first, count=first.count + entry.count, modules=modules)
    return Workload(tuple(by_operation.values()))


FORMAT = "dispatch_profiler workload"
VERSION = 1
_HEADER = f"format: {FORMAT}\nversion: {VERSION}\noperations:\n"
#: The file of a workload without entries.
_EMPTY = _HEADER.replace("operations:", "operations: []").encode()
#: Calls of one operation: far above any log.
MOST_CALLS = 10**15


def workload_text(workload: Workload) -> str:
    """The text of a workload.yaml. Each entry is one line of JSON, which is YAML too."""
    lines = list(map(_line, workload.entries))
    return _HEADER + "".join(f"- {line}\n" for line in lines) if lines else _EMPTY.decode()


def _line(entry: WorkloadEntry) -> str:
    data = {"operation": entry.operation.to_dict(), "count": entry.count, "origin": entry.origin}
    return json.dumps({**data, "modules": entry.modules} if entry.modules else data)


def write_workload(workload: Workload, path: Path) -> None:
    """Write `workload` to `path` as a workload.yaml; complete, or not at all."""
    write_output(path, workload_text(workload))


def append_workload(entries: Iterable[WorkloadEntry], path: Path) -> None:
    """Add `entries` to a workload.yaml that this package wrote, or begin one. Several processes may do so at once.

    Readers merge equal operations and add up their counts. Raises OSError.
    """
    lines = "".join(f"- {_line(entry)}\n" for entry in entries).encode()
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have written since the file was opened.
        file.seek(0)
        if file.read(len(_EMPTY) + 1) in (b"", _EMPTY):
            file.truncate(0)
            lines = _HEADER.encode() + lines
        file.write(lines)
        file.flush()


_TOP_FIELDS = ("format", "version", "operations")
_ENTRY_FIELDS = ("operation", "count", "origin", "modules")
_EXAMPLE = "- operation: {kind: matmul, m: 128, n: 768, k: 768}"
_ENTRY = re.compile(r"^ *- *\{? *[\"']?operation[\"']? *:", re.MULTILINE)
_TOP_FIELD = re.compile(r"([A-Za-z_]\w{0,40}) *:(?:\s|$)")


@dataclass(frozen=True)
class RawEntry:
    """The data of one entry, or what is wrong with its line, and the lines of its fields."""

    data: object
    lines: FieldLines


@dataclass(frozen=True)
class EntryProblem:
    """What is wrong with an entry, and on which line."""

    line: int
    reason: str


def is_workload_file(content: str) -> bool:
    """Whether a text is a workload.yaml: by its first line that is no comment, also misspelled, or by its entries."""
    start = content[:10_000]
    if _ENTRY.search(start):
        return True
    lines = (line.strip() for line in start.splitlines())
    first = next((line for line in lines if line and not line.startswith(("#", "---"))), "")
    match = _TOP_FIELD.match(first)
    return match is not None and bool(nearest(match[1], _TOP_FIELDS, cutoff=0.8))


def workload_entries(content: str, where: str) -> Iterator[RawEntry]:
    """The entries of a workload.yaml, in order.

    Raises WorkloadError if the file is not a workload.yaml of this version, UsageError if it is not YAML.
    """
    if content.startswith(_HEADER) and all(line.startswith('- {"') for _, line in _lines(content)):
        # Parsed line by line, as it was written: 100 times faster than YAML, and a damaged line affects no other line.
        yield from _written(content)
        return
    if len(content) > MOST_BYTES:
        raise WorkloadError(
            f"{where} is larger than {MOST_BYTES} characters",
            hint="entries as --save-workload writes them, one line of JSON each, have no limit",
        )
    data, lines = parse_yaml_lines(content.encode(), where)
    if isinstance(data, dict) and (unknown := [name for name in data if name not in _TOP_FIELDS]):
        raise WorkloadError(
            f"{where}:{lines.of(unknown[:1])}: unknown field {short_repr(unknown[0])} of a workload",
            hint=did_you_mean(str(unknown[0]), _TOP_FIELDS),
        )
    if not isinstance(data, dict) or not isinstance(data.get("operations"), list):
        at = f":{lines.of(['operations'])}" if isinstance(data, dict) and "operations" in data else ""
        raise WorkloadError(
            f"{where}{at} has no list `operations`", hint=f"write `operations:`, and below it {_EXAMPLE!r}"
        )
    if data.get("format", FORMAT) != FORMAT or data.get("version", VERSION) != VERSION:
        raise WorkloadError(
            f"{where} has format {data.get('format')!r} and version {data.get('version')!r}",
            hint=f"this program reads version {VERSION} of {FORMAT!r}",
        )
    inner = lines.inner["operations"].inner
    for index, entry in enumerate(data["operations"]):
        yield RawEntry(entry, inner[index])


def _lines(content: str) -> Iterator[tuple[int, str]]:
    """Lines after the header with their numbers, without blank lines and comments."""
    for number, line in enumerate(content.split("\n")[_HEADER.count("\n") :], 1 + _HEADER.count("\n")):
        if line.strip() and not line.startswith("#"):
            yield number, line


def _written(content: str) -> Iterator[RawEntry]:
    """Entries of a file that this package wrote; a damaged line yields its error."""
    for number, line in _lines(content):
        try:
            yield RawEntry(parse_json(line.removeprefix("- ")), FieldLines(number))
        except FieldError as error:
            if isinstance(cause := error.__cause__, json.JSONDecodeError):
                # JSON counts lines and characters of its own.
                error = FieldError(
                    f"not JSON: {cause.msg} at {short_repr(cause.doc[cause.pos : cause.pos + 20])}"
                )
            yield RawEntry(error, FieldLines(number))


def entry_of(data: object, origin: str) -> WorkloadEntry:
    """One entry from its data; `origin` applies if the entry has none. Raises WorkloadError."""
    found = _entry(data, origin)
    if isinstance(found, FieldProblem):
        raise WorkloadError(found.reason)
    return found


def read_entry(raw: RawEntry, file: str) -> WorkloadEntry | EntryProblem:
    """One entry of `file`, or what is wrong with it."""
    found = _entry(raw.data, f"{file}:{raw.lines.line}")
    if isinstance(found, FieldProblem):
        return EntryProblem(raw.lines.of(found.path), found.reason)
    return found


def _entry(data: object, origin: str) -> WorkloadEntry | FieldProblem:
    if isinstance(data, FieldError):
        return FieldProblem((), str(data))
    try:
        row = mapping(data, "the entry")
    except FieldError as error:
        return FieldProblem((), f"{error}: write {_EXAMPLE!r}")
    if unknown := [name for name in row if name not in _ENTRY_FIELDS]:
        is_flat = "operation" not in row and "kind" in row
        hint = f"write {_EXAMPLE!r}" if is_flat else did_you_mean(str(unknown[0]), _ENTRY_FIELDS)
        return FieldProblem(unknown[:1], f"the entry has no field {short_repr(unknown[0])}: {hint}")
    if "operation" not in row:
        return FieldProblem((), f"operation is missing: write {_EXAMPLE!r}")
    operation = operation_of(row["operation"])
    if isinstance(operation, FieldProblem):
        return FieldProblem(("operation", *operation.path), f"operation: {operation.reason}")
    try:
        name = "count"
        count = whole(row, name, least=1, most=MOST_CALLS, default=1)
        name = "origin"
        given = text(row, name, "") or origin
        name = "modules"
        return WorkloadEntry(operation, count, given, texts(row, name, ()))
    except FieldError as error:
        return FieldProblem((name,), str(error))

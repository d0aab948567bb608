"""A workload, and workload.yaml: operations with their counts and origins, as this package writes them and as users do.

    format: dispatch_profiler workload
    version: 1
    operations:
    - {"operation": {"kind": "matmul", "m": 128, "n": 768, "k": 768}, "count": 48, "origin": "gemm_log.yaml:1"}

An entry may leave out `count` (1), `origin`, and the fields of its operation that have defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dispatch_profiler.errors import DispatchProfilerError, WorkloadError, reason_of
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.files.json_fields import FieldError, check_bounded, mapping, parse_json, text, whole
from dispatch_profiler.files.yaml_files import MOST_BYTES, parse_yaml
from dispatch_profiler.operations import Operation, operation_from_dict, operation_kind


@dataclass(frozen=True)
class WorkloadEntry:
    """One operation of a workload. `origin` names its source."""

    operation: Operation
    count: int = 1
    origin: str = ""


@dataclass(frozen=True)
class Workload:
    """Entries in the order in which they were read, with distinct operations."""

    entries: tuple[WorkloadEntry, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(entry.operation for entry in self.entries)


def merged(entries: list[WorkloadEntry]) -> Workload:
    """A workload that merges entries with equal operations and adds up their counts."""
    by_operation: dict[Operation, WorkloadEntry] = {}
    for entry in entries:
        first = by_operation.setdefault(entry.operation, entry)
        if first is not entry:
            by_operation[entry.operation] = replace(first, count=first.count + entry.count)
    return Workload(tuple(by_operation.values()))


FORMAT = "dispatch_profiler workload"
VERSION = 1
_HEADER = f"format: {FORMAT}\nversion: {VERSION}\noperations:\n"
#: Calls of one operation: far above any log.
_MOST_CALLS = 10**15
#: Errors that constructors raise for invalid values.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DispatchProfilerError)


def workload_text(workload: Workload) -> str:
    """The text of a workload.yaml. Each entry is one line of JSON, which is YAML too."""
    lines = [
        json.dumps({"operation": entry.operation.to_dict(), "count": entry.count, "origin": entry.origin})
        for entry in workload.entries
    ]
    return (
        _HEADER.replace("operations:", "operations: []")
        if not lines
        else _HEADER + "".join(f"- {line}\n" for line in lines)
    )


def write_workload(workload: Workload, path: Path) -> None:
    """Write `workload` to `path` as a workload.yaml; complete, or not at all."""
    write_output(path, workload_text(workload))


def is_workload_file(content: str) -> bool:
    """Whether a text is a workload.yaml, by its first line that is no comment."""
    lines = (line.strip() for line in content[:10_000].splitlines())
    first = next((line for line in lines if line and not line.startswith(("#", "---"))), "")
    return first.startswith(("format:", "version:", "operations:"))


def workload_entries(content: str, where: str) -> Iterator[tuple[int, object]]:
    """The line (or, in a file that was not written by this package, the number) of each entry, and its data.

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
    data = parse_yaml(content.encode(), where)
    if not isinstance(data, dict) or not isinstance(data.get("operations"), list):
        raise WorkloadError(f"{where} has no list `operations`", hint="docs/workloads.md shows the format")
    if data.get("format", FORMAT) != FORMAT or data.get("version", VERSION) != VERSION:
        raise WorkloadError(
            f"{where} has format {data.get('format')!r} and version {data.get('version')!r}",
            hint=f"this program reads version {VERSION} of {FORMAT!r}",
        )
    yield from enumerate(data["operations"], 1)


def _lines(content: str) -> Iterator[tuple[int, str]]:
    """Lines after the header with their numbers, without blank lines and comments."""
    for number, line in enumerate(content.split("\n")[_HEADER.count("\n") :], 1 + _HEADER.count("\n")):
        if line.strip() and not line.startswith("#"):
            yield number, line


def _written(content: str) -> Iterator[tuple[int, object]]:
    """Entries of a file that this package wrote; a damaged line yields its error."""
    for number, line in _lines(content):
        try:
            yield number, parse_json(line.removeprefix("- "))
        except FieldError as error:
            yield number, error


def entry_of(data: object, origin: str) -> WorkloadEntry:
    """One entry from its data; `origin` applies if the entry has none. Raises WorkloadError."""
    if isinstance(data, FieldError):
        raise WorkloadError(str(data)) from data
    try:
        row = mapping(data, "the entry")
        operation = _operation(mapping(row.get("operation"), "operation"))
        count = whole(row, "count", least=1, most=_MOST_CALLS, default=1)
        return WorkloadEntry(operation, count, text(row, "origin", "") or origin)
    except FieldError as error:
        raise WorkloadError(str(error)) from error


def _operation(data: Mapping[str, Any]) -> Operation:
    check_bounded(data, "operation")
    try:
        options = operation_kind(data["kind"]).type_options
        defaults = {"types": [], "epilogue": "none"} if "epilogue" in options else {}
        operation = operation_from_dict({**defaults, **data})
        _ = hash(operation), operation.name, operation.flops
    except KeyError as error:
        raise WorkloadError(f"operation: {error.args[0]} is missing") from error
    except DispatchProfilerError as error:
        raise WorkloadError(f"operation: {error}", hint=error.hint) from error
    except _DAMAGE as error:
        raise WorkloadError(f"operation: {reason_of(error)}") from error
    return operation

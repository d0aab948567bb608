"""The JSON of a manifest: its versions, and conversion from and to entries.

| version | differences from the next |
|---|---|
| 1 | a module may lack `target` (its operation's is used) and `flags`; a dispatch may lack `is_transient` |
| 2 | |

An operation that was written without `count` or `origin` has 1 and "".

Lines of the journal have no version: rows of both are read alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dispatch_profiler.configurations import configuration_from_dict
from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.dispatches.entries import Artifact, DispatchEntry, ModuleEntry, OperationEntry, State
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.files.json_fields import (
    FieldError,
    check_bounded,
    flag,
    mapping,
    rows,
    text,
    texts,
    whole,
    within,
)
from dispatch_profiler.operations import Operation, operation_from_dict

_FORMAT = "dispatch_profiler manifest"
#: Versions that are read; the last is written.
VERSIONS = (1, 2)
#: Executions per call: a larger number than the compiler accepts is damage.
_MOST_REPEATS = 10**6
#: Errors that constructors raise for invalid values.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DispatchProfilerError)


def is_manifest(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is marked as a manifest."""
    return data.get("format") == _FORMAT


def to_text(lines: Iterable[str]) -> str:
    """The text of `Tree.manifest` from the `operation_line` of each operation."""
    operations = ",\n".join(lines)
    return f'{{"format": "{_FORMAT}", "version": {VERSIONS[-1]}, "operations": [\n{operations}\n]}}\n'


def operation_line(entry: OperationEntry) -> str:
    """One operation as a line of JSON."""
    row = {
        "name": entry.operation.name,
        "operation": entry.operation.to_dict(),
        "target": entry.target,
        "source_sha256": entry.source_sha256,
        "count": entry.count,
        "origin": entry.origin,
        "dispatches": [
            {
                "name": d.dispatch.name,
                "configuration": d.dispatch.configuration.to_dict(),
                "state": d.state.value,
                "reason": d.reason,
                "applied": d.applied,
                "is_transient": d.is_transient,
            }
            for d in entry.dispatches
        ],
        "modules": [
            {
                "name": m.name,
                "key": m.key,
                "repeat": m.repeat,
                "compiler": m.compiler,
                "target": m.target,
                "verify": None if m.verify is None else vars(m.verify),
                "profile": None if m.profile is None else vars(m.profile),
                "flags": list(m.flags),
            }
            for m in entry.modules
        ],
    }
    return json.dumps(row, separators=(",", ":"))


def operations_of(data: Mapping[str, Any]) -> list[OperationEntry]:
    """The operations of a manifest. Raises FieldError."""
    return [operation_of(row) for row in rows(data, "operations")]


def operation_of(row: Mapping[str, Any]) -> OperationEntry:
    """Parse one operation. Raises FieldError if the operation or the identity of a dispatch cannot be read.

    A dispatch whose state or module cannot be read becomes `not compiled`, without affecting others.
    """
    operation = _operation(row)
    entry = OperationEntry(
        operation=operation,
        target=text(row, "target"),
        source_sha256=text(row, "source_sha256"),
        dispatches=tuple(_dispatch(operation, each) for each in rows(row, "dispatches")),
        count=whole(row, "count", least=1, default=1),
        origin=text(row, "origin", ""),
    )
    modules = {d.dispatch.configuration.module for d in entry.dispatches}
    for each in rows(row, "modules"):
        # Any other name would let the author of the manifest choose a path.
        if (name := text(each, "name")) in modules:
            entry = _with_module(entry, name, each)
    return entry


def _with_module(entry: OperationEntry, name: str, row: Mapping[str, Any]) -> OperationEntry:
    try:
        module = ModuleEntry(
            name=name,
            key=text(row, "key"),
            repeat=whole(row, "repeat", least=1, most=_MOST_REPEATS),
            compiler=text(row, "compiler"),
            target=text(row, "target", entry.target),
            verify=_artifact(row, "verify"),
            profile=_artifact(row, "profile"),
            flags=texts(row, "flags", ()),
        )
    except FieldError as error:
        reason = f"its module's entry in the manifest is damaged ({error}): run compile.py again"
        dispatches = (
            _damaged(d, reason) if d.dispatch.configuration.module == name else d for d in entry.dispatches
        )
        return replace(entry, dispatches=tuple(dispatches))
    return replace(entry, modules=(*entry.modules, module))


def _damaged(entry: DispatchEntry, reason: str) -> DispatchEntry:
    return DispatchEntry(entry.dispatch, State.NOT_COMPILED, reason, is_transient=True)


def _operation(row: Mapping[str, Any]) -> Operation:
    data = mapping(row.get("operation"), "operation")
    check_bounded(data, "operation")
    try:
        operation = operation_from_dict(data)
        _ = hash(operation), operation.name, operation.flops
    except _DAMAGE as error:
        raise FieldError(f"operation: {_describe(error)}") from error
    return operation


def _dispatch(operation: Operation, row: Mapping[str, Any]) -> DispatchEntry:
    data = mapping(row.get("configuration"), "configuration")
    check_bounded(data, "configuration")
    try:
        entry = DispatchEntry(Dispatch(operation, configuration_from_dict(data)))
        _ = hash(entry.dispatch), entry.dispatch.name, entry.dispatch.configuration.module
    except _DAMAGE as error:
        raise FieldError(f"configuration: {_describe(error)}") from error
    try:
        return replace(
            entry,
            state=_state(row),
            reason=text(row, "reason"),
            applied=text(row, "applied"),
            is_transient=flag(row, "is_transient", False),
        )
    except FieldError as error:
        return _damaged(entry, f"its entry in the manifest is damaged ({error}): run compile.py again")


def _describe(error: Exception) -> str:
    """`KeyError('kind')` for a built-in error, the message for an error of this package."""
    return str(error) if isinstance(error, DispatchProfilerError) else repr(error)


def _state(row: Mapping[str, Any]) -> State:
    name = text(row, "state")
    if name not in (state.value for state in State):
        raise FieldError(f"state: {name!r} is not one of {', '.join(state.value for state in State)}")
    return State(name)


def _artifact(row: Mapping[str, Any], name: str) -> Artifact | None:
    if name not in row:
        raise FieldError(f"{name}: missing")
    if row[name] is None:
        return None
    found = mapping(row[name], name)
    return within(name, lambda: Artifact(text(found, "sha256"), whole(found, "bytes")))

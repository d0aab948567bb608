"""The JSON of a manifest: its versions, and entries to and from it.

| version | differs from the next in |
|---|---|
| 1 | a module may have no `target` (that of its operation is meant) and no `flags`; a dispatch no `is_transient` |
| 2 | |

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
from dispatch_profiler.json_fields import (
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
#: That are read; the last is written.
VERSIONS = (1, 2)
#: Of executions in a call: a larger number than the compiler takes is damage.
_MOST_REPEATS = 10**6
#: What objects make of values that are not theirs.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DispatchProfilerError)


def is_manifest(data: Mapping[str, Any]) -> bool:
    """Does a JSON object say that it is one?"""
    return data.get("format") == _FORMAT


def to_text(entries: Iterable[OperationEntry]) -> str:
    """The text of `Tree.manifest`, an operation a line."""
    lines = ",\n".join(map(operation_line, entries))
    return f'{{"format": "{_FORMAT}", "version": {VERSIONS[-1]}, "operations": [\n{lines}\n]}}\n'


def operation_line(entry: OperationEntry) -> str:
    """One operation as a line of JSON."""
    row = {
        "name": entry.operation.name,
        "operation": entry.operation.to_dict(),
        "target": entry.target,
        "source_sha256": entry.source_sha256,
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
    """One operation. Raises FieldError if it, or what identifies its dispatches, cannot be read.

    A dispatch whose state, or the module it is in, cannot be read is Not compiled: others go on.
    """
    operation = _operation(row)
    entry = OperationEntry(
        operation=operation,
        target=text(row, "target"),
        source_sha256=text(row, "source_sha256"),
        dispatches=tuple(_dispatch(operation, each) for each in rows(row, "dispatches")),
    )
    modules = {d.dispatch.configuration.module for d in entry.dispatches}
    for each in rows(row, "modules"):
        # A name that no configuration has would be a path of the writer's choice.
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
        raise FieldError(f"operation: {_told(error)}") from error
    return operation


def _dispatch(operation: Operation, row: Mapping[str, Any]) -> DispatchEntry:
    data = mapping(row.get("configuration"), "configuration")
    check_bounded(data, "configuration")
    try:
        entry = DispatchEntry(Dispatch(operation, configuration_from_dict(data)))
        _ = hash(entry.dispatch), entry.dispatch.name, entry.dispatch.configuration.module
    except _DAMAGE as error:
        raise FieldError(f"configuration: {_told(error)}") from error
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


def _told(error: Exception) -> str:
    """An error of a class as `KeyError('kind')`, one of ours as its message."""
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

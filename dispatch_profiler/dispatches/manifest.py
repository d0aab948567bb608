"""The JSON record beside a generated tree: every dispatch, its hashes, its state."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dispatch_profiler.configurations import configuration_from_dict
from dispatch_profiler.dispatches.dispatch import (
    Artifact,
    Dispatch,
    DispatchEntry,
    ModuleEntry,
    OperationEntry,
    State,
)
from dispatch_profiler.dispatches.selection import Selection
from dispatch_profiler.dispatches.tree import Tree
from dispatch_profiler.errors import DispatchProfilerError, TreeError, UsageError
from dispatch_profiler.files.json_fields import (
    FieldError,
    check_bounded,
    flag,
    mapping,
    parse_json,
    rows,
    text,
    texts,
    whole,
    within,
)
from dispatch_profiler.files.regular import locked, read_bounded, remove_leftovers, write_atomic
from dispatch_profiler.operations import Operation, operation_from_dict
from dispatch_profiler.targets import Target, parse_target

# -- manifest json ---------------------------------------------------------------------------------

# The JSON of a manifest: its versions, and conversion from and to entries.
#
# | version | differences from the next |
# |---|---|
# | 1 | a module may lack `target` (its operation's is used) and `flags`; a dispatch may lack `is_transient` |
# | 2 | |
#
# An operation that was written without `count` or `origin` has 1 and "".
#
# Lines of the journal have no version: rows of both are read alike.


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
    artifact = mapping(row[name], name)
    return within(name, lambda: Artifact(text(artifact, "sha256"), whole(artifact, "bytes")))


#: Far above any manifest: ten thousand dispatches take 5 MB.
_LARGEST_FILE = 2**30


@dataclass(frozen=True)
class Manifest:
    """All operations of one tree, in the order in which they were generated."""

    tree: Tree
    entries: tuple[OperationEntry, ...]

    @property
    def target(self) -> Target:
        """The first target of the tree: its compiler and its device serve the whole family.

        Raises TreeError if the tree is empty or has several families.
        """
        families = {entry.target.partition(":")[0] for entry in self.entries}
        if len(families) != 1:
            names = ", ".join(sorted(families)) or "none"
            raise TreeError(
                f"{self.tree.manifest} holds dispatches for several target families or none: {names}",
                hint="use one --generated-dir per family",
            )
        return self.targets[0] if self.targets else parse_target(self.entries[0].target)

    @property
    def family(self) -> str:
        """The family of `target`, which all of the tree shares."""
        return self.target.family

    @property
    def targets(self) -> tuple[Target, ...]:
        """The distinct targets that its dispatches were compiled for, or generated for if not compiled yet."""
        names = dict.fromkeys(e.target_of(d.dispatch) for e, d in self.dispatches())
        return tuple(map(parse_target, names))

    @property
    def host(self) -> str:
        """`Target.host` of the compiling machine, if code in the tree depends on it; otherwise empty."""
        return next((target.host for target in self.targets if target.host), "")

    def dispatches(self) -> Iterator[tuple[OperationEntry, DispatchEntry]]:
        for entry in self.entries:
            for dispatch in entry.dispatches:
                yield entry, dispatch

    def choose(self, selection: Selection) -> list[tuple[OperationEntry, DispatchEntry]]:
        """The entries of `dispatches()` that `selection` matches. SelectionError if a pattern matches no entry."""
        return selection.choose(
            self.dispatches(), lambda pair: pair[0].operation.kind, lambda pair: pair[1].dispatch.name
        )


def load_manifest(tree: Tree) -> Manifest:
    """Read the manifest of `tree`.

    A dispatch whose state or module cannot be read becomes `not compiled`, with the reason. Raises TreeError
    if the manifest is missing, of another program, or damaged in another way.
    """
    path = tree.manifest
    if not tree.folder.is_dir():
        raise TreeError(f"there is no folder {tree.folder}", hint="give the folder that holds generated/")
    if not path.exists():
        raise TreeError(
            f"no generated tree in {tree.folder}: {path} is missing",
            hint="run generator.py with the same --generated-dir first",
        )
    try:
        data = parse_json(_read(path))
    except FieldError as error:
        raise TreeError(f"the manifest {path} is damaged: {error}", hint=_again(path)) from error
    if not isinstance(data, dict) or not is_manifest(data):
        raise TreeError(f"{path} is not a manifest of dispatch_profiler", hint=_again(path))
    if data.get("version") not in VERSIONS:
        raise TreeError(
            f"{path} has version {data.get('version')!r}, but this program reads {VERSIONS[0]} to {VERSIONS[-1]}",
            hint=_again(path),
        )
    try:
        entries = {entry.operation: entry for entry in operations_of(data)}
    except FieldError as error:
        raise TreeError(f"the manifest {path} is damaged: {error}", hint=_again(path)) from error
    for part in _read_journal(tree):
        _merge(entries, part)
    return Manifest(tree, tuple(entries.values()))


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, _LARGEST_FILE)
    except UsageError as error:
        raise TreeError(error.message, hint=_again(path)) from error


def _again(path: Path) -> str:
    return f"remove {path} and run generator.py and compile.py again"


@dataclass(frozen=True)
class Snapshot:
    """A manifest as written; the writer need not read it, or render its lines, again until the file changes."""

    entries: Mapping[Operation, OperationEntry]
    lines: Mapping[Operation, str]
    file: tuple[int, int, int]


def add_generated(tree: Tree, entries: Iterable[OperationEntry], last: Snapshot | None = None) -> Snapshot:
    """Add generated operations to the manifest on disk, under a lock, keeping operations that other processes added.

    An operation whose source and dispatches are unchanged keeps its compiled modules. If an operation has
    lost dispatches, files that were made only from lost dispatches are removed. `last` is the result of the
    previous call; the manifest is read only if it has changed since.
    """
    with _locked(tree):
        if last is not None and not tree.journal.exists() and _file_of(tree) == last.file:
            known, lines = dict(last.entries), dict(last.lines)
        else:
            known, lines = _entries_on_disk(tree), {}
        for entry in entries:
            old = known.get(entry.operation)
            same = old is not None and old.same_source(entry)
            new = old.with_use_of(entry) if old is not None and same else entry
            if new is old:
                continue
            if old is not None and not same:
                _remove_dropped(tree, old, entry)
            known[entry.operation] = new
            lines.pop(entry.operation, None)
        for operation in known.keys() - lines.keys():
            lines[operation] = operation_line(known[operation])
        _write(tree, (lines[operation] for operation in known))
        return Snapshot(known, lines, _file_of(tree))


def set_added(tree: Tree, added: Mapping[Operation, Dispatch | None]) -> None:
    """Replace the dispatches that were added to operations by the dispatches in `added` (None: by nothing).

    A dispatch that the tree already has keeps its compiled modules, as do all dispatches that the generator
    wrote. Files made only from removed dispatches are removed. Operations that the manifest does not have are
    ignored.
    """
    with _locked(tree):
        known = _entries_on_disk(tree)
        new = {
            operation: known[operation].with_added(added[operation])
            for operation in added
            if operation in known
        }
        changed = {operation: entry for operation, entry in new.items() if entry != known[operation]}
        if changed or tree.journal.exists():
            _write(tree, map(operation_line, (known | changed).values()))
        for operation, entry in changed.items():
            _remove_dropped(tree, known[operation], entry)


def _file_of(tree: Tree) -> tuple[int, int, int]:
    """Identifies the manifest's file: each update replaces it by a new file."""
    if not tree.manifest.exists():
        return (0, 0, 0)
    stat = tree.manifest.stat()
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)


def _remove_dropped(tree: Tree, old: OperationEntry, new: OperationEntry) -> None:
    """Remove the files made from dispatches that `new` no longer has: nothing would refer to them."""
    for path in {*_made_files(tree, old)} - {*_made_files(tree, new)}:
        path.unlink(missing_ok=True)


def _made_files(tree: Tree, entry: OperationEntry) -> Iterator[Path]:
    for d in entry.dispatches:
        yield tree.reproducer(entry.operation, d.dispatch.name)
        yield from tree.made_of(entry.operation, d.dispatch.configuration.module)
        if not d.dispatch.configuration.is_generated:
            yield tree.source_of(d.dispatch)


def note_result(tree: Tree, part: OperationEntry) -> None:
    """Append the results of some dispatches and modules of one operation to the journal.

    Each is saved immediately, in case the process ends: rewriting the manifest of ten thousand dispatches
    for each of them would take longer than compiling them.
    """
    row = operation_line(part)
    with _locked(tree), tree.journal.open("a", encoding="utf-8") as journal:
        # A process killed while writing may have left half a line: start on a new line.
        journal.write(f"\n{row}\n")


def fold_journal(tree: Tree) -> None:
    """Merge the journal, also of a run that was killed, into the manifest."""
    with _locked(tree):
        if tree.journal.exists():
            _write(tree, map(operation_line, _entries_on_disk(tree).values()))


def _entries_on_disk(tree: Tree) -> dict[Operation, OperationEntry]:
    entries = load_manifest(tree).entries if tree.manifest.exists() else ()
    return {entry.operation: entry for entry in entries}


def _write(tree: Tree, lines: Iterable[str]) -> None:
    remove_leftovers(tree.root)
    write_atomic(tree.manifest, to_text(lines))
    tree.journal.unlink(missing_ok=True)


def _read_journal(tree: Tree) -> list[OperationEntry]:
    if not tree.journal.exists():
        return []
    entries = []
    for line in filter(None, _read(tree.journal).split(b"\n")):
        with contextlib.suppress(FieldError):  # half a line is a result that was being written
            entries.append(operation_of(mapping(parse_json(line))))
    return entries


def _locked(tree: Tree) -> contextlib.AbstractContextManager[None]:
    return locked(tree.root / ".manifest.lock")


def _merge(entries: dict[Operation, OperationEntry], part: OperationEntry) -> None:
    """Replace the dispatches and modules in `entries` that `part` holds.

    Does nothing if the operation has been generated again since: its results are obsolete. So is a module with a
    dispatch that has been replaced since.
    """
    known = entries.get(part.operation)
    if known is None or known.source_sha256 != part.source_sha256:
        return
    done = {d.dispatch: d for d in part.dispatches}
    obsolete = {d.configuration.module for d in done.keys() - {d.dispatch for d in known.dispatches}}
    modules = tuple(m for m in part.modules if m.name not in obsolete)
    names = {m.name for m in modules}
    entries[part.operation] = replace(
        known,
        dispatches=tuple(done.get(d.dispatch, d) for d in known.dispatches),
        modules=(*(m for m in known.modules if m.name not in names), *modules),
    )

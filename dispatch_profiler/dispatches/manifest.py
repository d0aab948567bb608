"""The JSON record beside a generated tree: every dispatch, its hashes, its state."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from dispatch_profiler.configurations import configuration_from_dict
from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.dispatches.selection import Selection
from dispatch_profiler.dispatches.tree import Tree
from dispatch_profiler.errors import DispatchProfilerError, TreeError, reason_of
from dispatch_profiler.files import locked, remove_leftovers, write_atomic
from dispatch_profiler.operations import Operation, operation_from_dict
from dispatch_profiler.targets import Target, parse_target

_FORMAT = "dispatch_profiler manifest"
_VERSION = 1


class State(str, Enum):
    """How far a dispatch has come. The last two carry a reason."""

    GENERATED = "generated"
    COMPILED = "compiled"
    NOT_COMPILED = "not compiled"
    NOT_APPLIED = "not applied"


@dataclass(frozen=True)
class DispatchEntry:
    """One dispatch of the tree.

    `applied` is what the compiler configured for it, in its own words; empty until compiled.
    `is_transient` tells of a failure that another time or another machine may not see.
    """

    dispatch: Dispatch
    state: State = State.GENERATED
    reason: str = ""
    applied: str = ""
    is_transient: bool = False


@dataclass(frozen=True)
class Artifact:
    """A file that was made from the source: its content's SHA-256 and size in bytes."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class ModuleEntry:
    """One pair of vmfbs: all configurations of an operation that share their compiler flags.

    `key` is the content hash of all that went in. `repeat` is how often the profile vmfb does
    each dispatch in one call. `target` is what it was compiled for, which need not be what its
    operation was generated for. Without `verify` and `profile` no dispatch of it compiled.
    """

    name: str
    key: str
    repeat: int
    compiler: str
    target: str
    verify: Artifact | None
    profile: Artifact | None
    #: The compiler's flags: of the target, of the configurations, and of the command line.
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperationEntry:
    """One operation of the tree with its dispatches and what was compiled of them.

    `target` is what it was generated for.
    """

    operation: Operation
    target: str
    source_sha256: str
    dispatches: tuple[DispatchEntry, ...]
    modules: tuple[ModuleEntry, ...] = ()

    def same_source(self, other: OperationEntry) -> bool:
        """Does `other` stand for the same dispatches of the same text, and is all here for its target?"""
        return _made(self) == _made(other) and all(m.target == other.target for m in self.modules)

    def module_of(self, dispatch: Dispatch) -> ModuleEntry | None:
        """The module that holds `dispatch`; None until it is compiled."""
        return next((m for m in self.modules if m.name == dispatch.configuration.module), None)

    def target_of(self, dispatch: Dispatch) -> str:
        """What `dispatch` was compiled for; until then, what it was generated for."""
        module = self.module_of(dispatch)
        return self.target if module is None else module.target


def _made(entry: OperationEntry) -> tuple[object, ...]:
    return entry.target, entry.source_sha256, tuple(d.dispatch for d in entry.dispatches)


@dataclass(frozen=True)
class Manifest:
    """Every operation of one tree, in the order in which they were generated."""

    tree: Tree
    entries: tuple[OperationEntry, ...]

    @property
    def target(self) -> Target:
        """The first target of the tree: its compiler and its device serve the whole family.

        TreeError if the tree is not for one family.
        """
        families = {entry.target.partition(":")[0] for entry in self.entries}
        if len(families) != 1:
            names = ", ".join(sorted(families)) or "none"
            raise TreeError(
                f"{self.tree.manifest} holds dispatches for several families of targets or none: {names}",
                hint="use one --generated-dir for each",
            )
        return self.targets[0] if self.targets else parse_target(self.entries[0].target)

    @property
    def family(self) -> str:
        """That of `target`, for which the whole tree is."""
        return self.target.family

    @property
    def targets(self) -> tuple[Target, ...]:
        """What its dispatches were compiled for, or generated for until then, each once."""
        names = dict.fromkeys(e.target_of(d.dispatch) for e, d in self.dispatches())
        return tuple(map(parse_target, names))

    @property
    def host(self) -> str:
        """This machine, as `Target.host` has it, if code in the tree is for the machine that made it."""
        return next((target.host for target in self.targets if target.host), "")

    def dispatches(self) -> Iterator[tuple[OperationEntry, DispatchEntry]]:
        for entry in self.entries:
            for dispatch in entry.dispatches:
                yield entry, dispatch

    def choose(self, selection: Selection) -> list[tuple[OperationEntry, DispatchEntry]]:
        """Those of `dispatches()` that belong to `selection`. SelectionError if a pattern names none."""
        return selection.choose(
            self.dispatches(), lambda pair: pair[0].operation.kind, lambda pair: pair[1].dispatch.name
        )


def load_manifest(tree: Tree) -> Manifest:
    """Read the manifest of `tree`.

    Raises TreeError if there is none, if it is not ours, or if it is damaged.
    """
    path = tree.manifest
    if not tree.folder.is_dir():
        raise TreeError(f"there is no folder {tree.folder}", hint="give the folder that holds generated/")
    if not path.is_file():
        raise TreeError(
            f"there is no generated tree in {tree.folder}: {path} is missing",
            hint="run generator.py with the same --generated-dir first",
        )
    try:
        data = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TreeError(f"the manifest {path} is damaged: {reason_of(error)}", hint=_again(path)) from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise TreeError(f"{path} is not a manifest of dispatch_profiler", hint=_again(path))
    if data.get("version") != _VERSION:
        raise TreeError(
            f"{path} has version {data.get('version')!r}, but this program reads {_VERSION}",
            hint=_again(path),
        )
    try:
        entries = {row.operation: row for row in map(_read_operation, data["operations"])}
    except (KeyError, TypeError, ValueError, AttributeError, DispatchProfilerError) as error:
        raise TreeError(f"the manifest {path} is damaged: {error!r}", hint=_again(path)) from error
    for part in _read_journal(tree):
        _merge(entries, part)
    return Manifest(tree, tuple(entries.values()))


def _again(path: Any) -> str:
    return f"remove {path} and run generator.py and compile.py again"


def add_generated(tree: Tree, entries: Iterable[OperationEntry]) -> None:
    """Put generated operations into the manifest on disk, under a lock, beside what others put there.

    One whose source and dispatches are known keeps what was compiled of it for its target. Of one that has lost
    dispatches, the files go that were made of these alone.
    """
    with _locked(tree):
        known = _entries_on_disk(tree)
        for entry in entries:
            old = known.get(entry.operation)
            if old is not None and old.same_source(entry):
                continue
            if old is not None:
                _remove_dropped(tree, old, entry)
            known[entry.operation] = entry
        _write(tree, known)


def _remove_dropped(tree: Tree, old: OperationEntry, new: OperationEntry) -> None:
    """Remove what was made of dispatches that `new` no longer has: nothing would name it."""
    for path in {*_made_files(tree, old)} - {*_made_files(tree, new)}:
        path.unlink(missing_ok=True)


def _made_files(tree: Tree, entry: OperationEntry) -> Iterator[Path]:
    for d in entry.dispatches:
        yield tree.reproducer(entry.operation, d.dispatch.name)
        yield from tree.made_of(entry.operation, d.dispatch.configuration.module)


def note_result(tree: Tree, part: OperationEntry) -> None:
    """Add what has become of some dispatches and modules of one operation to the journal.

    At once, whatever happens to us next: writing the manifest of ten thousand dispatches for each
    of them would take longer than they do.
    """
    row = json.dumps(_write_operation(part), separators=(",", ":"))
    with _locked(tree), tree.journal.open("a") as journal:
        # Whoever was killed while it wrote has left half a line: ours starts on a new one.
        journal.write(f"\n{row}\n")


def fold_journal(tree: Tree) -> None:
    """Put what the journal holds, ours and that of a run that was killed, into the manifest."""
    with _locked(tree):
        if tree.journal.exists():
            _write(tree, _entries_on_disk(tree))


def _entries_on_disk(tree: Tree) -> dict[Operation, OperationEntry]:
    entries = load_manifest(tree).entries if tree.manifest.exists() else ()
    return {entry.operation: entry for entry in entries}


def _write(tree: Tree, entries: Mapping[Operation, OperationEntry]) -> None:
    remove_leftovers(tree.root)
    write_atomic(tree.manifest, to_json(Manifest(tree, tuple(entries.values()))))
    tree.journal.unlink(missing_ok=True)


def _read_journal(tree: Tree) -> list[OperationEntry]:
    try:
        lines = tree.journal.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in filter(None, lines):
        # Half a line is a result that was in flight.
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, DispatchProfilerError):
            found.append(_read_operation(json.loads(line)))
    return found


def _locked(tree: Tree) -> contextlib.AbstractContextManager[None]:
    return locked(tree.root / ".manifest.lock")


def _merge(entries: dict[Operation, OperationEntry], part: OperationEntry) -> None:
    """Put the dispatches and modules of `part` in the place of those that `entries` has of them.

    Nothing if the operation has been generated anew in the meantime: its results are dropped.
    """
    known = entries.get(part.operation)
    if known is None or known.source_sha256 != part.source_sha256:
        return
    done = {d.dispatch: d for d in part.dispatches}
    names = {m.name for m in part.modules}
    entries[part.operation] = replace(
        known,
        dispatches=tuple(done.get(d.dispatch, d) for d in known.dispatches),
        modules=(*(m for m in known.modules if m.name not in names), *part.modules),
    )


# -- JSON ----------------------------------------------------------------------------------------


def to_json(manifest: Manifest) -> str:
    """The text of `Tree.manifest`."""
    rows = ",\n".join(
        json.dumps(_write_operation(entry), separators=(",", ":")) for entry in manifest.entries
    )
    return f'{{"format": "{_FORMAT}", "version": {_VERSION}, "operations": [\n{rows}\n]}}\n'


def _write_operation(entry: OperationEntry) -> dict[str, Any]:
    return {
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


def _read_operation(row: Mapping[str, Any]) -> OperationEntry:
    operation = operation_from_dict(row["operation"])
    return OperationEntry(
        operation=operation,
        target=str(row["target"]),
        source_sha256=str(row["source_sha256"]),
        dispatches=tuple(
            DispatchEntry(
                Dispatch(operation, configuration_from_dict(d["configuration"])),
                State(d["state"]),
                str(d["reason"]),
                str(d["applied"]),
                bool(d.get("is_transient", False)),
            )
            for d in row["dispatches"]
        ),
        modules=tuple(
            ModuleEntry(
                str(m["name"]),
                str(m["key"]),
                int(m["repeat"]),
                str(m["compiler"]),
                str(m.get("target", row["target"])),  # earlier manifests had one for the whole operation
                None if m["verify"] is None else Artifact(**m["verify"]),
                None if m["profile"] is None else Artifact(**m["profile"]),
                tuple(map(str, m.get("flags", ()))),
            )
            for m in row["modules"]
        ),
    )

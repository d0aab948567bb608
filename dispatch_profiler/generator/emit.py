"""A plan -> MLIR files and a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dispatch_profiler.dispatches import (
    DispatchEntry,
    OperationEntry,
    add_generated,
    load_manifest,
    set_added,
)
from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.dispatches.manifest import Snapshot
from dispatch_profiler.dispatches.tree import Tree
from dispatch_profiler.errors import TargetError, TreeError, UsageError
from dispatch_profiler.files.regular import read_bounded, sha256, write_atomic
from dispatch_profiler.generator.plan import Plan
from dispatch_profiler.generator.render import render_module
from dispatch_profiler.operations import Operation
from dispatch_profiler.workloads import WorkloadEntry

#: Operations written before the first update of the manifest.
_FEWEST = 15


def emit(plan: Plan, tree: Tree) -> Iterator[tuple[Path, tuple[Dispatch, ...]]]:
    """Write every operation of `plan` and add it to the manifest; yields each file with its dispatches.

    Operations of the tree that are not in the plan are kept. An operation that is generated again with the
    same text keeps its compiled modules. If the caller stops early, or on Ctrl-C, the manifest has all
    written operations; after `kill -9` it has at least about half of them.
    """
    known = {entry.operation: entry for entry in check_tree(plan, tree)}
    uses = {entry.operation: entry for entry in plan.workload.entries}
    entries: list[OperationEntry] = []
    written = 0
    last: Snapshot | None = None
    try:
        for operation, dispatches in plan.groups:
            text = render_module(operation, dispatches)
            use = uses.get(operation, WorkloadEntry(operation))
            entry = OperationEntry(
                operation,
                plan.target.name,
                sha256(text.encode()),
                tuple(map(DispatchEntry, dispatches)),
                count=use.count,
                origin=use.origin,
            )
            path = tree.source(operation)
            old = known.get(operation)
            if not _has_content(path, text):
                _write(path, text)
            entries.append(old.with_use_of(entry) if old is not None and old.same_source(entry) else entry)
            # Each update writes the whole manifest, so they get rarer as it grows.
            if len(entries) > max(written, _FEWEST):
                last = add_generated(tree, entries, last)
                written += len(entries)
                entries.clear()
            yield path, dispatches
    finally:
        if entries:
            _save(tree, entries, last)


def emit_added(tree: Tree, added: Mapping[Operation, Dispatch | None]) -> None:
    """Write dispatches beside the generated ones, each in a file of its own, and set them in the manifest.

    They replace dispatches that were added before; None removes them. See `set_added`.
    """
    for operation, dispatch in added.items():
        if dispatch is not None:
            path, text = tree.source_of(dispatch), render_module(operation, [dispatch])
            if not _has_content(path, text):
                _write(path, text)
    set_added(tree, added)


def _save(tree: Tree, entries: list[OperationEntry], last: Snapshot | None) -> None:
    """Add `entries` to the manifest, even if Ctrl-C interrupts it."""
    try:
        add_generated(tree, entries, last)
    except KeyboardInterrupt:
        add_generated(tree, entries)
        raise


def check_tree(plan: Plan, tree: Tree) -> tuple[OperationEntry, ...]:
    """Entries of the existing tree; empty if it does not exist yet.

    Raises TreeError if a file is in the place of a folder, TargetError if the tree is for another target
    family.
    """
    for folder in (tree.folder, tree.root.parent, tree.root):
        if folder.exists() and not folder.is_dir():
            raise TreeError(f"{folder} is a file, not a folder", hint="use another --generated-dir")
    if not tree.manifest.exists():
        return ()
    old = load_manifest(tree)
    if old.entries and old.family != plan.target.family:
        raise TargetError(
            f"the tree in {tree.folder} is for {old.family}, not for {plan.target.name}",
            hint="use another --generated-dir for another family of targets",
        )
    return old.entries


def _write(path: Path, text: str) -> None:
    try:
        write_atomic(path, text)
    except (PermissionError, IsADirectoryError) as error:
        raise TreeError(
            f"cannot write {path}: {error.strerror}", hint="use another --generated-dir"
        ) from error


def _has_content(path: Path, text: str) -> bool:
    data = text.encode()
    try:
        return read_bounded(path, len(data)) == data
    except UsageError:
        return False

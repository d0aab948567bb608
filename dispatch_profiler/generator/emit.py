"""A plan -> MLIR files and a manifest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dispatch_profiler.errors import TargetError, TreeError
from dispatch_profiler.files import sha256, write_atomic
from dispatch_profiler.generator.dispatch import Dispatch
from dispatch_profiler.generator.manifest import DispatchEntry, OperationEntry, load_manifest, update_manifest
from dispatch_profiler.generator.plan import Plan
from dispatch_profiler.generator.render import render_module
from dispatch_profiler.generator.tree import Tree


def emit(plan: Plan, tree: Tree) -> Iterator[tuple[Path, tuple[Dispatch, ...]]]:
    """Write every operation of `plan`, then the manifest; yields each file with its dispatches.

    Operations that are in the tree already and not in the plan stay. One that is generated anew
    with the same text keeps what was compiled of it. If the caller stops half-way, what has been
    written is in the manifest.
    """
    if tree.folder.exists() and not tree.folder.is_dir():
        raise TreeError(f"{tree.folder} is a file, not a folder")
    old_manifest = load_manifest(tree) if tree.manifest.exists() else None
    if old_manifest is not None and old_manifest.entries and old_manifest.family != plan.target.family:
        raise TargetError(
            f"the tree in {tree.folder} is for {old_manifest.family}, not for {plan.target.name}",
            hint="use another --generated-dir for another family of targets",
        )
    known = {e.operation: e for e in old_manifest.entries} if old_manifest else {}
    entries: list[OperationEntry] = []
    try:
        for operation, dispatches in plan.groups:
            text = render_module(operation, dispatches)
            entry = OperationEntry(
                operation, plan.target.name, sha256(text.encode()), tuple(map(DispatchEntry, dispatches))
            )
            path = tree.source(operation)
            old = known.get(operation)
            unchanged = old is not None and _made(old) == _made(entry)
            if not unchanged or not path.exists():
                write_atomic(path, text)
            entries.append(old if old is not None and unchanged else entry)
            yield path, dispatches
    finally:
        update_manifest(tree, entries, generated=True)


def _made(entry: OperationEntry) -> tuple[object, ...]:
    return entry.target, entry.source_sha256, tuple(d.dispatch for d in entry.dispatches)

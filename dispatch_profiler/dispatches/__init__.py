"""The on-disk contract between stages: dispatches, the generated tree, its manifest, selections and bundles."""

from dispatch_profiler.dispatches.bundle import BundleInfo, unpacked, write_bundle
from dispatch_profiler.dispatches.dispatch import (
    Artifact,
    Dispatch,
    DispatchEntry,
    ModuleEntry,
    OperationEntry,
    State,
)
from dispatch_profiler.dispatches.manifest import (
    Manifest,
    add_generated,
    fold_journal,
    load_manifest,
    note_result,
    set_added,
)
from dispatch_profiler.dispatches.selection import Selection
from dispatch_profiler.dispatches.tree import Tree

__all__ = [
    "Artifact",
    "BundleInfo",
    "Dispatch",
    "DispatchEntry",
    "Manifest",
    "ModuleEntry",
    "OperationEntry",
    "Selection",
    "State",
    "Tree",
    "add_generated",
    "fold_journal",
    "load_manifest",
    "note_result",
    "set_added",
    "unpacked",
    "write_bundle",
]

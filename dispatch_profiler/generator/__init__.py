"""Operations x configurations -> a generated tree with its manifest."""

from dispatch_profiler.generator.bundle import BundleInfo, unpacked, write_bundle
from dispatch_profiler.generator.dispatch import Dispatch
from dispatch_profiler.generator.emit import check_tree, emit
from dispatch_profiler.generator.manifest import (
    Artifact,
    DispatchEntry,
    Manifest,
    ModuleEntry,
    OperationEntry,
    State,
    add_generated,
    fold_journal,
    load_manifest,
    note_result,
)
from dispatch_profiler.generator.plan import Choices, LeftOut, Plan, plan_generation
from dispatch_profiler.generator.render import render_module
from dispatch_profiler.generator.selection import Selection
from dispatch_profiler.generator.tree import Tree

__all__ = [
    "Artifact",
    "BundleInfo",
    "Choices",
    "Dispatch",
    "DispatchEntry",
    "LeftOut",
    "Manifest",
    "ModuleEntry",
    "OperationEntry",
    "Plan",
    "Selection",
    "State",
    "Tree",
    "add_generated",
    "check_tree",
    "emit",
    "fold_journal",
    "load_manifest",
    "note_result",
    "plan_generation",
    "render_module",
    "unpacked",
    "write_bundle",
]

"""The vmfbs of a tree, run only if they are what the compiler wrote."""

from __future__ import annotations

from pathlib import Path

from dispatch_profiler.compiler import artifact_of
from dispatch_profiler.dispatches import ModuleEntry, OperationEntry, Tree
from dispatch_profiler.dispatches.tree import Purpose
from dispatch_profiler.errors import ToolError
from dispatch_profiler.profiler.evaluation.device_worker import Module


class DamagedVmfb(ToolError):
    """A vmfb is not what was compiled."""


class Vmfbs:
    """Looks at each file once. `damaged` collects those that are not what was compiled."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._checked: dict[Path, bool] = {}
        self.damaged: list[Path] = []

    def module(self, entry: OperationEntry, module: ModuleEntry, purpose: Purpose) -> Module:
        """What a worker loads. Raises DamagedVmfb."""
        path = self._tree.vmfb(entry.operation, module.name, purpose)
        wanted = module.verify if purpose == "verify" else module.profile
        if path not in self._checked:
            self._checked[path] = wanted is not None and artifact_of(path) == wanted
            if not self._checked[path]:
                self.damaged.append(path)
        if not self._checked[path] or wanted is None:
            raise DamagedVmfb(f"{path.name} is damaged or missing: run compile.py again")
        return Module(str(path), wanted.sha256, module.repeat if purpose == "profile" else 1)

"""What tests of the profiler share: trees that are made once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from dispatch_profiler.profiler.providers import numpy_library

_made: dict[str, Path] = {}


@pytest.fixture
def tree(null_tree: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """As `null_tree`, but a tree that was asked for before is copied from the last time."""

    def make(*arguments: str, faults: dict[str, dict[str, object]] | None = None) -> Path:
        key = json.dumps([arguments, faults])
        if key not in _made:
            made = null_tree(*arguments, faults=faults)
            _made[key] = tmp_path_factory.mktemp("tree")
            shutil.copytree(made / "generated", _made[key] / "generated")
            return made
        shutil.copytree(_made[key] / "generated", Path.cwd() / "generated")
        return Path.cwd()

    return make


@pytest.fixture
def write_nothing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function. What numpy and torch bind after its call computes nothing."""

    def patch() -> None:
        nothing = SimpleNamespace(computation=lambda operation: lambda *handles: None)
        monkeypatch.setattr(numpy_library, "numpy_family", lambda operation: nothing)
        if find_spec("torch"):
            from dispatch_profiler.profiler.providers import torch_library

            monkeypatch.setattr(torch_library, "computation", lambda *_: lambda *handles: handles[-1])

    return patch

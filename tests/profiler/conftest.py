"""What tests of the profiler share: trees that are made once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

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

"""Loads programs that lie outside the package, such as those in scripts/ and benchmarks/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def load_script(path: str) -> ModuleType:
    """The program at `path` below the project's root, as a module; what lies beside it can be imported."""
    file = ROOT / path
    name = "_".join(["script", *file.relative_to(ROOT).with_suffix("").parts])
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    path_before = sys.path.copy()
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path_before
    return module

"""`from dispatch_profiler.boo import ...`: what callers of kernels need, from one place, each loaded on first use."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from dispatch_profiler import boo

#: To add a name is a promise; to remove one belongs in the CHANGELOG, under Changed.
NAMES = {
    "BooOpRegistry", "CachePopulator", "CachePrepopulator", "ConvSignature", "GEMMSignature", "Launchable",
    "LayerNormSignature", "empty_aligned", "get_launchable", "refreeze", "wait_for_kernels",
}  # fmt: skip


def test_names_are_what_their_modules_have_for_type_checkers_and_at_run_time():
    (block,) = [node for node in ast.parse(Path(boo.__file__).read_text()).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    declared = {name.name: node.module for node in imports for name in node.names}
    assert set(boo.__all__) == set(declared) == NAMES
    for name, module in declared.items():
        assert getattr(boo, name) is getattr(import_module(str(module)), name)


def test_the_import_loads_neither_torch_nor_numpy_nor_iree():
    program = "import sys, dispatch_profiler.boo; print(sorted({'torch', 'numpy', 'iree'} & {*sys.modules}))"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"

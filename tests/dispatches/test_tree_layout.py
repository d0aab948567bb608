"""The layout of a tree, as in the IREE dispatch profiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.dispatches import Tree
from dispatch_profiler.operations import ElementTypes, Matmul

OPERATION = Matmul(64, 64, 4096, ElementTypes("f16", "f16", "f16"))
NAME = "matmul_64x64x4096_f16t_f16t_f16t"
FOLDER = f"x/generated/linalg/matmul/{NAME}"
TREE = Tree(Path("x"))


def test_an_operation_has_a_folder_of_its_own():
    """With its source, and what the compiler said."""
    assert str(TREE.operation(OPERATION)) == FOLDER
    assert str(TREE.source(OPERATION)) == f"{FOLDER}/{NAME}.mlir"
    assert str(TREE.compiler_output(OPERATION)) == f"{FOLDER}/iree_compile_cmd_stdout.mlir"


@pytest.mark.parametrize("purpose", ["verify", "profile"])
@pytest.mark.parametrize(("module", "infix"), [("", ""), ("data_tiling", "_data_tiling")])
def test_a_vmfb_is_named_by_flow_and_purpose(module, infix, purpose):
    """The one without a flow has the IREE dispatch profiler's name."""
    assert str(TREE.vmfb(OPERATION, module, purpose)) == f"{FOLDER}/{NAME}{infix}_{purpose}.vmfb"


def test_the_manifest_lies_at_the_root():
    """Cached references lie beside it, outside `linalg`."""
    assert str(TREE.manifest) == "x/generated/linalg/manifest.json"
    assert TREE.manifest.parent == TREE.root
    assert str(TREE.references) == "x/generated/reference_cache"

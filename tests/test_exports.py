"""`from dispatch_profiler import ...`: what programs need, from one place, each loaded when it is first used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dispatch_profiler

SOURCE = Path(dispatch_profiler.__file__)
#: To add a name is a promise; to remove one belongs in the CHANGELOG, under Changed.
NAMES = {
    "BatchMatmul", "BiasBackward", "BuildRequest", "Built", "Cache", "Candidate", "Captured", "Choices", "CompareOptions",
    "CompileOptions", "CompilerError", "Configuration", "Contraction", "Conv1d", "Conv2d", "Conv3d", "CpuTarget", "CpuTiles",
    "CudaTarget", "Default", "Device", "Dispatch", "DispatchProfilerError", "ElementType", "ElementTypes",
    "Epilogue", "Evaluator", "EvaluatorOptions", "Extern", "Flow", "Formed", "GpuTiles", "IreeCompiler",
    "KernelObject", "KernelSource", "Launch", "LeftToTorch", "LayerNorm", "LayerNormInputBackward", "LayerNormWeightBackward", "Library", "Limits", "ListedConfiguration", "Manifest", "Matmul",
    "MeasureOptions", "Measurement", "Microkernel", "MissingDependency", "MmaTiles", "Mode", "NullCompiler",
    "NullTarget", "Operation", "Plan", "Program", "Provenance", "Record", "RocmTarget", "RunComparison",
    "Selection", "SimtTiles", "Space", "State", "StopRule", "StoredRecord", "Sweep", "Target", "Tensor",
    "Tree", "TreeCandidates", "TritonRows", "TritonTiles", "UsageError", "Verdict", "VulkanTarget", "Workload",
    "WorkloadEntry", "WorkloadReading", "build_key", "build_request", "capture", "compare_records", "compile_tree", "compiler_for",
    "configuration_from_dict", "draw_valid", "emit", "fastest_form", "load_configurations", "load_manifest",
    "open_device", "operation_from_dict", "parse_target", "plan_generation", "read_records", "read_workload",
    "rejection_reason", "render_module", "render_page", "shipped_configurations", "spaces",
    "sweep_workload", "unpacked", "write_bundle", "write_workload",
}  # fmt: skip


def declared() -> dict[str, str]:
    """Name -> module, as type checkers see it."""
    (block,) = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.asname or "": f"{node.module}.{name.name}" for node in imports for name in node.names}


def test_the_list_is_the_one_that_is_promised():
    assert set(dispatch_profiler.__all__) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_is_what_its_module_has(name: str):
    """Type checkers see the same."""
    module, _, attribute = declared()[name].rpartition(".")
    assert attribute == name
    assert getattr(dispatch_profiler, name) is getattr(import_module(module), name)


def test_type_checkers_see_the_same_list():
    assert set(declared()) == NAMES


def test_the_names_are_listed_and_imported_by_a_star():
    assert set(dir(dispatch_profiler)) >= NAMES
    found: dict[str, object] = {}
    exec("from dispatch_profiler import *", found)
    assert set(found) - {"__builtins__"} == NAMES


def test_the_program_of_the_readme_imports_from_one_place():
    text = (SOURCE.parents[1] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    imports = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.ImportFrom)]
    assert {each.module for each in imports} == {"pathlib", "dispatch_profiler"}
    assert {
        name.name for each in imports if each.module == "dispatch_profiler" for name in each.names
    } <= NAMES


def test_any_other_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'dispatch_profiler' has no attribute 'Matmull'"):
        _ = dispatch_profiler.Matmull


def modules_after(program: str) -> set[str]:
    """What Python has imported when `program` ends."""
    command = [
        sys.executable,
        "-c",
        f"import sys; before = set(sys.modules)\n{program}\nprint(*set(sys.modules) - before)",
    ]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_else():
    """Neither numpy nor any part of itself but the version, and the function that makes its exports."""
    loaded = modules_after("import dispatch_profiler")
    found = {name for name in loaded if name.startswith(("dispatch_profiler.", "numpy", "iree", "torch"))}
    assert found == {"dispatch_profiler.exports", "dispatch_profiler.version"}


def test_describing_work_imports_neither_iree_nor_torch():
    loaded = modules_after(
        "from dispatch_profiler import Matmul, CpuTiles, Workload, parse_target, plan_generation"
    )
    assert "dispatch_profiler.operations" in loaded
    assert not [name for name in loaded if name.partition(".")[0] in ("iree", "torch", "triton", "joblib")]


def test_a_compiler_process_does_not_import_joblib():
    """It would start a fifth more slowly; `pool` is the module whose functions it is given."""
    loaded = modules_after("import dispatch_profiler.compiler.workers.pool")
    assert "dispatch_profiler.isolation" in loaded
    assert "joblib" not in loaded

"""Packages of whole models: AOTInductor compiles them, and programs in C++ run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from exported_models import SCHEMA, sample
from torch import nn

from dispatch_profiler import ExportedModel, export_model
from dispatch_profiler.boo.model_export import operators, packaging
from dispatch_profiler.boo.model_export.exporting import PACKAGE
from dispatch_profiler.boo.model_export.packaging import loaded
from dispatch_profiler.errors import ToolError

ROOT = Path(__file__).parents[3]
TORCH = Path(torch.__file__).parent
#: They compile for the CPU.
pytestmark = [
    pytest.mark.works_on_ir,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: g++ on PATH"),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}


def exported(folder: Path, model: nn.Module, inputs: Any, **options: Any) -> ExportedModel:
    return export_model(model, inputs, folder, fusion_schema=SCHEMA, **{"measure": False, **options})


def compiled_example(folder: Path) -> Path:
    """The example of a folder, compiled by g++."""
    flags = [f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}"]
    libraries = ["-ltorch", "-ltorch_cpu", "-lc10"]
    command = ["g++", "-std=c++20", "example.cpp", *flags, *libraries, "-o", "example"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "example"


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "bf16"])
def test_a_program_in_cpp_computes_the_model(dtype: torch.dtype, tmp_path: Path):
    model, inputs = sample(dtype)
    export = exported(tmp_path, model, inputs)
    assert len(export.kernels) == 4 and not export.left_to_torch
    for name, tensor in inputs.items():
        (tmp_path / f"{name}.bin").write_bytes(raw(tensor))
    example = compiled_example(tmp_path)

    exact = model.double()(*[inputs["x"].double()], scale=inputs["scale"].double())
    for threads in "1", "4":
        arguments = [PACKAGE, *(f"{name}.bin" for name in inputs)]
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [example, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        # The results in order: classes, count, image, nothing, x.
        assert re.findall(r"result(\d)", done.stdout) == ["0", "1", "2", "4"]
        for at, name in (0, "classes"), (2, "image"), (4, "x"):
            data = (tmp_path / f"result{at}.bin").read_bytes()
            found = torch.frombuffer(bytearray(data), dtype=dtype).reshape(exact[name].shape)
            assert_close(found, exact[name], TOLERANCE[dtype])


def assert_close(found: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    """Every element, relative to the largest one."""
    error = (found.double() - exact).abs().max()
    assert error <= tolerance * exact.abs().max()


def test_a_package_keeps_structure_strides_and_threads_in_python(tmp_path: Path):
    model, inputs = sample()
    package = loaded(exported(tmp_path, model, inputs).package)
    with torch.no_grad():
        found, expected = package(**inputs), model(**inputs)

    assert list(found) == list(expected) and found["nothing"] is None
    assert found["image"].stride() == expected["image"].stride()


def test_without_a_gain_the_package_has_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packaging, "relative_time", lambda *_: 1.2)
    model, inputs = sample()
    # All regions are taken: nothing is measured but the packages, whose times are given.
    monkeypatch.setattr(
        "dispatch_profiler.boo.backends.graph_compiler.Backend.region_choice", lambda *_: None
    )
    export = exported(tmp_path, model, inputs, measure=True)

    assert (export.kernels, export.relative_time) == ((), 1.2)
    assert "has none" in (tmp_path / "README.txt").read_text()
    assert b"aoti_torch_cpu_region" not in (tmp_path / PACKAGE).read_bytes()
    torch.testing.assert_close(loaded(export.package)(**inputs)["classes"], model(**inputs)["classes"])


def test_a_package_with_a_wrong_constant_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    right: Callable[..., bytes] = operators.operand_bytes

    def wrong(source: Any, tensors: Any) -> bytes:
        data = np.frombuffer(right(source, tensors), np.float32).copy()
        data[-1] += 1
        return data.tobytes()

    monkeypatch.setattr(operators, "operand_bytes", wrong)
    with pytest.raises(ToolError, match="the package computes something else than the model: an error of"):
        exported(tmp_path, *sample())
    assert not (tmp_path / PACKAGE).exists()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_the_lines_of_the_page_run_in_their_order(tmp_path: Path, shared_cache: None):
    page = (ROOT / "docs/model_export.md").read_text()
    (block,) = re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    lines = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    for line in [*lines, None]:
        command = [sys.executable, "-c", program] if line is None else ["sh", "-c", line]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        if line == lines[-1]:
            assert "result0: CPUFloatType [1, 10]" in done.stdout

"""`dispatch-profiler explain`: what becomes of each part of a model in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from worker_helpers import use_in_process_workers

from dispatch_profiler.__main__ import main

torch = pytest.importorskip("torch")

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 4096)
    def forward(self, x, scale=1.0):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)) * scale)

def make(batch=2):
    return Net(), torch.randn(batch, 3, 8, 8)

def named():
    return Net(), {"scale": torch.tensor(2.0), "x": torch.randn(2, 3, 8, 8)}

def mismatched():
    return Net(), torch.randn(1, 4, 8, 8)

class Once(nn.Module):
    # Fails when it is compiled, which calls it before eager torch does.
    calls = 0
    @torch.compiler.disable
    def check(self):
        self.calls += 1
        if self.calls == 1:
            raise ValueError("called for the first time")
    def forward(self, x):
        self.check()
        return x

def once():
    return Once(), torch.randn(2)
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_net(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_cache: None, without_gpu: None
):
    use_in_process_workers(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["explain", "--no-measure", "--full", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", ["make", "named"])
def test_each_region_has_a_line_with_its_kernel(capsys, name: str):
    first, title, *regions = explained(capsys, f"net.py:{name}")

    assert first == f"net.py:{name}"
    assert title == f"{len(regions)} of {len(regions)} regions are fused"
    (convolution,) = (each for each in regions if "conv2d_2x8x8x3_8x3x3x3_2x6x6x8_f32" in each)
    assert convolution.split()[:2] == ["inference", "fused"]
    assert " in conv: conv2d_" in convolution
    assert "; predicted: the library has no entry" in convolution


def test_with_freeze_kernels_take_packed_weights(capsys):
    plain, frozen = (
        next(each for each in explained(capsys, *options, "net.py:make") if " in conv: conv2d_" in each)
        for options in ((), ("--freeze",))
    )
    assert "(tile_config_packed_" in frozen and frozen.endswith("; frozen")
    assert "(tile_config_packed_" not in plain and "; not frozen: freezing would use " in plain


def test_without_full_each_kernel_has_a_short_line(capsys):
    assert main(["explain", "--no-measure", "net.py:make"]) == 0
    first, title, header, *lines = capsys.readouterr().out.splitlines()
    assert first == "net.py:make" and header.split() == [
        "%",
        "us",
        "torch",
        "tuning",
        "kernel",
        "from",
        "operation",
    ]
    assert title.endswith("regions are computed by kernels of this package")
    (convolution,) = (each for each in lines if "conv 3x3 3->8 8x8 s1 n2 +relu (conv)" in each)
    assert "predicted" in convolution or "untuned" in convolution
    assert max(map(len, lines)) <= 100


def test_options_choose_batches_types_and_rules(capsys):
    lines = explained(capsys, "net.py:make", "--batch=1,3", "--dtype=bf16", "--matrix-products")

    assert [each for each in lines if each.startswith("net.py")] == [
        "net.py:make, batch 1",
        "net.py:make, batch 3",
    ]
    fused = [each for each in lines if " fused " in each and "bf16" in each]
    assert [f"{kind}_{batch}x" in each for each, (kind, batch) in zip(
        fused, [("conv2d", 1), ("matmul", 1), ("conv2d", 3), ("matmul", 3)], strict=True
    )] == [True] * 4  # fmt: skip


def test_training_has_the_graph_of_the_forward(capsys):
    lines = explained(capsys, "net.py:make", "--training")
    assert {each.split()[0] for each in lines[2:]} >= {"forward"}


def test_a_model_that_fails_is_an_error_with_its_message(capsys):
    """That of eager torch, which is shorter than that of torch.compile; and nothing else."""
    assert main(["explain", "net.py:mismatched"]) == 2

    said = capsys.readouterr().err
    assert (
        "net.py:mismatched failed: RuntimeError: Given groups=1, weight of size [8, 3, 3, 3], expected"
        in said
    )
    assert "in eager torch as well" in said and "Traceback" not in said


def test_a_model_that_only_torch_compile_rejects_has_its_message(capsys):
    assert main(["explain", "net.py:once"]) == 2

    said = capsys.readouterr().err
    assert "net.py:once failed: " in said and "called for the first time" in said
    assert "it runs in eager torch" in said


def test_ctrl_c_while_torch_is_imported_is_no_error_of_the_model(capsys, monkeypatch):
    """Python 3.11 makes it a RuntimeError if it arrives while a class is created."""

    def interrupted(*_: object) -> str:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("dispatch_profiler.boo.capture.explain_cli.explained", interrupted)
    assert main(["explain", "net.py:make"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_closed_output_is_no_error_of_the_model(capsys, monkeypatch):
    def broken(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("dispatch_profiler.boo.capture.explain_cli.show", broken)
    assert main(["explain", "net.py:make", "--no-measure"]) == 1
    assert "failed" not in capsys.readouterr().err


def test_what_the_compiler_said_is_shown(capsys, monkeypatch):
    """Of the configuration that is not used for it."""
    from dispatch_profiler.compiler import IreeCompiler
    from dispatch_profiler.compiler.workers import pool
    from dispatch_profiler.errors import WorkerCrashed

    build = pool.build_with

    def crashing(compiler, request):
        if isinstance(compiler, IreeCompiler) and "tile_config_default" not in request.dispatches[0].name:
            raise WorkerCrashed("killed by SIGABRT: LLVM ERROR: no such vector", is_deterministic=True)
        return build(compiler, request)

    monkeypatch.setattr(pool, "build_with", crashing)
    monkeypatch.setenv("BOO_CACHE_DIR", str(Path("own").absolute()))
    (line,) = (each for each in explained(capsys, "net.py:make") if "conv2d_2x8x8x3" in each)

    assert "(tile_config_default)" in line
    assert "not compiled: killed by SIGABRT: LLVM ERROR: no such vector" in line

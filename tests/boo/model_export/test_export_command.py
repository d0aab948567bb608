"""`dispatch-profiler export FILE.py:NAME`: what it prints, and what it rejects before anything is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from dispatch_profiler import ExportedModel
from dispatch_profiler.boo.model_export import cli, exporting, native_library

MODEL = """
import torch
from torch import nn

def make(batch=1):
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.randn(batch, 3, 8, 8)

def rectifier():
    return nn.ReLU(), torch.randn(3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    return tmp_path


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each export, which writes nothing."""
    calls: list[dict[str, Any]] = []

    def export_model(model: Any, inputs: Any, folder: Path, **options: Any) -> ExportedModel:
        calls.append({"inputs": inputs, "folder": folder, **options})
        return ExportedModel(
            folder / exporting.PACKAGE,
            (("conv2d_x", "tiles"),),
            (("softmax", "torch is faster"),) * 2,
            0.5 if options["measure"] else None,
        )

    monkeypatch.setattr(exporting, "export_model", export_model)
    return calls


def test_kernels_are_printed_and_what_is_left(folder: Path, exports: Any, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["net.py:make", "-o", "out", "--batch=4"]) == 0

    (call,) = exports
    assert (call["folder"], call["measure"], tuple(call["inputs"].shape)) == (Path("out"), True, (4, 3, 8, 8))
    shown = capsys.readouterr()
    assert shown.out == "conv2d_x  tiles\n"
    assert "2 softmax  torch is faster" in shown.err
    assert "With kernels, a call takes 0.50 of the time without" in shown.err
    assert "Wrote out/model.pt2 with 1 kernel" in shown.err


def test_nothing_is_measured_if_asked(folder: Path, exports: Any, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["net.py:make", "-o", "out", "--no-measure", "--matrix-products"]) == 0

    (call,) = exports
    assert not call["measure"] and call["fusion_schema"].rule_for("matrix_product") is not None
    assert "of the time" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["net.py:make", "-o", "out", "--batch=1,2"],
            "--batch: a package is for inference, with one batch size",
        ),
        (["net.py:make", "-o", "out", "--training"], "--training: a package is for inference"),
        (["net.py:make", "-o", "net.py"], "net.py is a file"),
        (["net.py:rectifier", "-o", "out"], "no kernel of this package computes a part of the model"),
        (["net.py:make"], "--output"),
    ],
)
def test_what_cannot_be_exported_is_a_usage_error(
    folder: Path, arguments: list[str], message: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(native_library, "check_tools", lambda: "g++")
    assert cli.main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (folder / "out").exists()

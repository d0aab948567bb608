"""`dispatch-profiler capture`: files and modules to workload.yaml, and what is wrong with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dispatch_profiler import read_workload
from dispatch_profiler.boo.capture.cli import main

pytest.importorskip("torch")

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 400)
    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))

def make():
    return Net(), torch.randn(2, 3, 8, 8)

def make_batch(batch=1):
    return Net(), (torch.randn(batch, 3, 8, 8),)

def named():
    return Net(), {"x": torch.randn(1, 3, 8, 8)}

def failing():
    raise ValueError("no weights here")

def mismatched():
    return Net(), torch.randn(1, 4, 8, 8)

def scalar():
    return Net(), (torch.randn(1, 3, 8, 8), torch.tensor(1.0))

def nothing():
    return nn.ReLU(), torch.randn(3)

def text():
    return "resnet"

def leaving():
    raise SystemExit(7)

def number():
    return Net(), 5

NUMBER = 3
"""


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


def captured(*words: str) -> list[tuple[int, object, int]]:
    """Batch, type and count of each operation that was written."""
    assert main([*words, "-o", "found.yaml"]) == 0
    entries = read_workload(Path("found.yaml")).workload.entries
    return [(entry.operation.n, entry.operation.operands[0].type.name, entry.count) for entry in entries]


@pytest.mark.parametrize("name", ["make", "named", "make_batch"])
def test_a_function_returns_a_model_and_its_inputs(model_file, name: str, capsys):
    assert captured(f"net.py:{name}") == [(2 if name == "make" else 1, "f32", 1)]
    said = capsys.readouterr()
    assert "Wrote 1 operation" in said.err
    assert "1 matrix_product" in said.err and "no rule" in said.err


def test_a_class_takes_shapes_of_inputs(model_file):
    assert captured("net.py:Net", "--input=3x3x8x8") == [(3, "f32", 1)]


@pytest.mark.parametrize("name", ["make", "named"])
def test_entries_have_the_paths_of_modules(model_file, name: str):
    assert main([f"net.py:{name}", "--matrix-products", "-o", "found.yaml"]) == 0
    entries = read_workload(Path("found.yaml")).workload.entries
    assert [each.modules for each in entries] == [("conv",), ("head",)]


@pytest.mark.usefixtures("backward_kernels")
def test_gradients_have_the_paths_of_their_forward(model_file):
    main(["net.py:make", "--training", "-o", "found.yaml"])
    entries = read_workload(Path("found.yaml")).workload.entries
    assert {each.modules for each in entries} == {("conv",)} and len(entries) > 1


@pytest.mark.parametrize("name", ["make", "make_batch"])
def test_batches_are_captured_together(model_file, name: str):
    assert captured(f"net.py:{name}", "--batch=1,8") == [(1, "f32", 1), (8, "f32", 1)]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_types(model_file, dtype: str):
    assert captured("net.py:make", f"--dtype={dtype}") == [(2, dtype, 1)]


@pytest.mark.usefixtures("backward_kernels")
def test_training_with_backward_kernels_has_gradients_of_weights(model_file):
    main(["net.py:make", "--training", "-o", "found.yaml"])
    operations = read_workload(Path("found.yaml")).workload.operations

    assert any(getattr(each, "mode", "") == "weight_backward" for each in operations)


def test_matrix_products_are_an_option(model_file):
    main(["net.py:make", "--matrix-products", "-o", "found.yaml"])
    assert [each.kind for each in read_workload(Path("found.yaml")).workload.operations] == [
        "conv2d",
        "matmul",
    ]


def test_an_installed_module(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["torch.nn:Identity", "--input=1x2"]) == 2
    assert "no operation that a kernel" in capsys.readouterr().err


def test_a_model_of_a_module(model_file):
    with Path("net.py").open("a") as file:
        file.write("\nMODEL = Net()\n")
    main(["net.py:MODEL", "--input=2x3x8x8", "-o", "found.yaml"])
    (found,) = read_workload(Path("found.yaml")).workload.operations
    main(["net.py:make", "--batch=2", "-o", "made.yaml"])
    (made,) = read_workload(Path("made.yaml")).workload.operations
    assert found == made


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["net.py"], "does not name a model"),
        (["other.py:make"], "other.py is not a file"),
        (["nets.py:make"], "did you mean 'net.py'?"),
        (["net.py:mak"], "did you mean 'make'"),
        (["net.py:NUMBER"], "has no model, function or class 'NUMBER'"),
        (["net:make"], "the current directory is not searched"),
        (["net.py:failing"], "failing() failed: ValueError: no weights here (net.py:"),
        (
            ["net.py:mismatched"],
            "failed: RuntimeError: Given groups=1, weight of size [8, 3, 3, 3], expected input",
        ),
        (["net.py:leaving"], "leaving() failed: it calls sys.exit(7)"),
        (["net.py:number"], "number() returned a model with inputs of type int"),
        (["net.py:text"], "returned str, not a model"),
        (["net.py:Net"], "--input=1x3x224x224"),
        (["net.py:scalar", "--batch=4"], "give scalar a parameter `batch`"),
        (["net.py:nothing"], "has no operation"),
        (["net.py:make", "--batch=0"], "0"),
        (["net.py:make", "--input=1x"], "expected a shape such as"),
        (["net.py:make", "--dtype=int"], "--dtype"),
        (["broken.py:make"], "SyntaxError"),
        (["importing.py:make"], "(importing.py:1)\nhint: correct the name, or install the package"),
        (["script.py:make"], "it calls sys.exit(0)"),
    ],
)
def test_wrong_input_has_a_clear_message_and_writes_nothing(model_file, words, message: str, capsys):
    Path("broken.py").write_text("def make(:")
    Path("script.py").write_text("import sys\nsys.exit(0)")
    Path("importing.py").write_text("import net_that_is_not_installed")

    assert main([*words, "-o", "found.yaml"]) == 2

    assert message in capsys.readouterr().err
    assert not Path("found.yaml").exists()


def test_the_folder_of_a_file_is_not_searched(model_file, capsys):
    """A file is executed because it is named; what lies beside it is not."""
    Path("beside.py").write_text("open('executed', 'w')")
    Path("user.py").write_text("import beside")

    assert main(["user.py:make"]) == 2
    said = capsys.readouterr().err
    assert "No module named 'beside'" in said and "add its absolute path to PYTHONPATH" in said
    assert not Path("executed").exists()


def test_without_torch_the_message_says_how_to_install_it(model_file, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)

    assert main(["net.py:make"]) == 2
    assert "torch is not installed" in capsys.readouterr().err

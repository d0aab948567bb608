"""`dispatch-profiler tune FILE.py:NAME`: from a model to a library and a proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import dispatch_profiler
from dispatch_profiler import Library, read_workload
from dispatch_profiler.boo.model_tuning import cli, proof, tuning
from dispatch_profiler.boo.model_tuning.proof import AFTER, BEFORE, EAGER, INDUCTOR, Way
from dispatch_profiler.configurations import Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.tuner.commands import tune_cli
from dispatch_profiler.tuner.commands.tune_cli import TuneOptions

MODEL = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)

def rectifier():
    return nn.ReLU(), torch.randn(3)
"""


def entry(operation: Operation) -> Entry:
    speed = Estimate(2.0, 1.9, 2.1)
    return Entry(
        Dispatch(operation, Formed("permuted")),
        speed,
        speed,
        Provenance("local-task", "llvm-cpu", "compiler x", 7),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "log:1").write_text("")
    return tmp_path


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[TuneOptions]:
    """The options of each search, which finds an entry for the first operation; models are only run eagerly."""
    calls: list[TuneOptions] = []

    def tune_workload(options: TuneOptions) -> int:
        calls.append(options)
        operation = read_workload(options.workload).workload.entries[0].operation
        Library([entry(operation)]).save(options.output / tune_cli.FINAL)
        return 0

    monkeypatch.setattr(tune_cli, "tune_workload", tune_workload)
    names = EAGER, INDUCTOR, BEFORE, AFTER
    monkeypatch.setattr(
        proof, "usual_ways", lambda library, **_: {name: Way(library=library) for name in names}
    )
    monkeypatch.setattr(proof, "in_turns", lambda calls, effort: {side: 7 * [1.0] for side in calls})
    return calls


@pytest.mark.parametrize(
    ("text", "is_model"),
    [
        ("net.py:make", True),
        ("torchvision.models:resnet18", True),
        ("log:1", False),
        ("workload.yaml", False),
        ("a/b.py:c", True),
        ("gemm.log", False),
        ("-:x", False),
        ("net.py:", False),
    ],
)
def test_a_model_is_told_from_a_workload(folder: Path, text: str, is_model: bool):
    assert cli.names_model(text) is is_model


def test_a_model_is_captured_tuned_and_proven(folder: Path, tuned: Any, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["net.py:make", "-o", "out", "--time=90s", "--batch=4"]) == 0
    (options,) = tuned
    assert (options.steps.search.seconds, options.workload) == (90.0, Path("out/workload.yaml"))
    assert options.changes == {"packed_weights": True} and options.target.name == "llvm-cpu"
    (entry,) = read_workload(Path("out/workload.yaml")).workload.entries
    assert entry.operation.n == 4
    shown = capsys.readouterr()
    assert "net.py:make, batch 4 on" in shown.out and "7 rounds in turns" in shown.out
    assert "times as fast" in shown.out and "after tuning" in shown.out


def test_without_a_time_it_suits_the_machine(folder: Path, tuned: Any):
    assert cli.main(["net.py:make"]) == 0
    assert tuned[0].steps.search.seconds in {120.0, 180.0, 240.0}
    assert [tuning.usual_seconds(each) for each in (1, 2, 4, 8, 16, 96)] == [240, 240, 180, 180, 120, 120]


def test_weights_that_are_trained_are_not_packed(folder: Path, tuned: Any):
    assert cli.main(["net.py:make", "--training"]) == 0
    assert "packed_weights" not in tuned[0].changes


def test_a_model_without_operations_is_an_error(folder: Path, tuned: Any, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["net.py:rectifier"]) == 2
    assert "has no operation that a kernel of this package computes" in capsys.readouterr().err
    assert not tuned


@pytest.mark.parametrize(
    ("file", "sentence", "hint"),
    [
        ("net.py", "it defines make, rectifier", "net.py:make"),
        ("nets.py", "a model also needs the name of a function", "nets.py:NAME"),
    ],
)
def test_a_model_without_its_name_is_no_log(
    folder: Path, tuned: Any, capsys: pytest.CaptureFixture[str], file: str, sentence: str, hint: str
):
    assert cli.main([file]) == 2
    said = capsys.readouterr().err
    assert f"{file} is a Python file" in said and sentence in said and said.rstrip().endswith(hint)
    assert not tuned


def test_a_file_that_does_not_exist_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["nets.py:make"]) == 2
    assert "nets.py is not a file" in capsys.readouterr().err


def test_without_a_compiler_for_inductor_nothing_is_searched(
    folder: Path, tuned: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from torch._inductor import cpp_builder, exc

    def missing() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    assert cli.main(["net.py:make"]) == 2
    assert "no C++ compiler, which inductor" in capsys.readouterr().err and not tuned


def test_the_function_does_the_same(folder: Path, tuned: Any):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    found = dispatch_profiler.tune(model, torch.randn(1, 3, 8, 8), seconds=60, output="mine")
    assert found.library == Path("mine/final") and found.is_complete
    assert tuned[0].steps.search.seconds == 60.0 and list(found.proofs[0].sides) == [
        EAGER,
        INDUCTOR,
        BEFORE,
        AFTER,
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["workload.yaml", "--dtype=bf16"], "--dtype: only for models"),
        (["workload.yaml", "--batch=2", "--training"], "--batch, --training: only for models"),
        (["--recheck=lib", "--input=1x3x8x8"], "--input: only for models"),
        (
            ["net.py:make", "--target=rocm:gfx950"],
            "--target=rocm:gfx950: the model is on cpu, where its kernels cannot run",
        ),
        (["net.py:make", "--target=null"], "the model is on cpu"),
        (["net.py:rectifier", "--training"], "net.py:rectifier has no parameters to train"),
    ],
)
def test_options_that_do_not_fit_are_errors(
    folder: Path, tuned: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
):
    """Before anything is searched."""
    assert cli.main(arguments) == 2
    assert sentence in capsys.readouterr().err and not tuned


def test_the_library_of_another_model_is_not_replaced(
    folder: Path, tuned: Any, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["net.py:make"]) == 0
    written = Path("tuned/workload.yaml").read_text()
    assert cli.main(["net.py:make", "--batch=2"]) == 2
    assert "tuned/final has entries of other tunings" in capsys.readouterr().err
    assert Path("tuned/workload.yaml").read_text() == written


def test_ctrl_c_in_the_proof_says_that_the_library_is_complete(
    folder: Path, tuned: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(calls: Any, effort: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(proof, "in_turns", interrupted)
    assert cli.main(["net.py:make"]) == 130
    assert "the library tuned/final is complete; only the proof is missing" in capsys.readouterr().err


def test_wrong_results_with_the_tuned_kernels_are_a_failure(
    folder: Path, tuned: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def doubles(module: Any, example_inputs: Any, **_: Any) -> Any:
        return lambda *arguments: torch.utils._pytree.tree_map(lambda each: 2 * each, module(*arguments))

    ways = {EAGER: Way(), INDUCTOR: Way(), BEFORE: Way(), AFTER: Way(doubles, "tuned/final")}
    monkeypatch.setattr(proof, "usual_ways", lambda *_, **__: ways)
    assert cli.main(["net.py:make"]) == 1
    assert (
        "Do not use tuned/final; the model with its kernels is wrong: an error of" in capsys.readouterr().out
    )


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_seconds_are_positive(folder: Path, tuned: Any, seconds: float):
    with pytest.raises(ValueError, match="expected positive seconds"):
        dispatch_profiler.tune(nn.Linear(2, 2), torch.randn(1, 2), seconds=seconds)


def test_the_model_keeps_its_mode(folder: Path, tuned: Any):
    """A new module is in training mode; its batch norms have running statistics in the proof."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout())
    found = dispatch_profiler.tune(model, torch.randn(1, 3, 8, 8), output="mine")
    assert model.training and model[1].training and not found.proofs[0].note


@pytest.mark.slow  # inductor, two searches and their benchmark
@pytest.mark.timeout(600)
def test_a_model_is_tuned_by_real_compilers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("BOO_AUTOTUNE", "quick")
    assert cli.main(["net.py:make", "--time=5s"]) == 0
    shown = capsys.readouterr()
    assert "net.py:make on" in shown.out and "before tuning" in shown.out and "wrong" not in shown.out

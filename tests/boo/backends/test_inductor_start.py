"""Inductor is left out where nothing is left to it, and what it needs to know is found out while it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compiled_models import check_equals_eager
from torch import nn

from dispatch_profiler.boo.backends import backend, graph_compiler, inductor
from dispatch_profiler.boo.fusion.execute import calls
from dispatch_profiler.boo.fusion.schema import BACKWARD_FUSIONS, DEFAULT_SUPPORTED_BOO_FUSIONS


@pytest.fixture
def nested(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that inductor gets, which eager torch computes in its place."""
    found: list[Any] = []

    def compile_nested(self: Any, module: Any, example_inputs: Any) -> Any:
        found.append(module)
        return module.forward

    monkeypatch.setattr(graph_compiler.GraphCompiler, "compile_nested", compile_nested)
    return found


FILTERS = torch.randn(4, 3, 3, 3)


def convolution(*others: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *others).eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(1, 3, 6, 6).to(memory_format=torch.channels_last),
        torch.randn(1, 3, 6, 6),
        torch.randn(6, 3, 1, 6).transpose(0, 2),
        torch.randn(1, 3, 1, 6).expand(2, 3, 6, 6),
    ],
    ids=["channels_last", "contiguous", "transposed", "expanded"],
)
def test_a_graph_of_regions_alone_needs_no_inductor(nested: list[Any], x: torch.Tensor) -> None:
    model = convolution(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    check_equals_eager(model, backend("inductor"), x)
    assert nested == []


def test_rows_of_other_strides_need_no_inductor(nested: list[Any]) -> None:
    check_equals_eager(nn.LayerNorm(6).eval(), backend("inductor"), torch.randn(6, 4).t())
    assert nested == []


@pytest.mark.slow
def test_an_input_of_several_regions_is_copied_once(
    nested: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1)

        def forward(self, x: Any) -> Any:
            return self.one(x).mean((2, 3)) + self.other(x).mean((2, 3))

    copied: list[tuple[int, ...]] = []
    flat_channels = calls.flat_channels

    def note(tensor: Any, **options: Any) -> Any:
        copied.append(tuple(tensor.shape))
        return flat_channels(tensor, **options)

    monkeypatch.setattr(calls, "flat_channels", note)
    check_equals_eager(Two().eval(), backend("inductor"), torch.randn(1, 3, 6, 6))
    assert nested == []
    assert copied.count((1, 3, 6, 6)) == 1


@pytest.mark.slow
def test_an_input_that_is_returned_too(nested: list[Any]) -> None:
    """As it was given."""
    x = torch.randn(1, 3, 6, 6)
    check_equals_eager(lambda x: (torch.conv2d(x, FILTERS).mean((2, 3)), x * 2), backend("inductor"), x)
    assert len(nested) == 1


@pytest.mark.slow
def test_a_gradient_that_is_not_needed_needs_no_inductor(nested: list[Any]) -> None:
    """That of the input of a first layer, in whose place the graph returns None."""
    gradients = DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules(BACKWARD_FUSIONS)
    x = torch.randn(1, 3, 6, 6).to(memory_format=torch.channels_last)
    w = FILTERS.to(memory_format=torch.channels_last).clone().requires_grad_()
    compiled = torch.compile(torch.conv2d, backend=backend("inductor", gradients), dynamic=False)
    (found,) = torch.autograd.grad(compiled(x, w).square().sum(), w)
    (expected,) = torch.autograd.grad(torch.conv2d(x, w).square().sum(), w)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)  # sums of up to 32 products of 100
    assert nested == []


def test_inductor_gets_what_is_left(nested: list[Any]) -> None:
    check_equals_eager(
        convolution(nn.Flatten(), nn.Linear(64, 5)), backend("inductor"), torch.randn(1, 3, 6, 6)
    )
    assert len(nested) == 1
    check_equals_eager(nn.Linear(8, 5).eval(), backend("inductor"), torch.randn(1, 8))
    assert len(nested) == 2


def test_inductor_gets_its_options_and_other_backends_get_everything(nested: list[Any]) -> None:
    x = torch.randn(1, 3, 6, 6)
    check_equals_eager(convolution(), backend("inductor"), x, options={"max_autotune": False})
    check_equals_eager(convolution(), backend("aot_eager"), x)
    assert len(nested) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own, in inductor
@pytest.mark.parametrize("options", [None, {"max_fusion_size": 8}])
@pytest.mark.parametrize("grad", [False, True])
def test_inductor_knows_which_inputs_are_parameters_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, options: Any, grad: bool
) -> None:
    """CUDA graphs would copy them in each call."""
    from torch._inductor import compile_fx

    found: list[int] = []
    compile_inner = compile_fx.compile_fx_inner

    def noted(graph: Any, inputs: Any, **given: Any) -> Any:
        found.append(len(inputs) - len(given["static_input_idxs"]))
        return compile_inner(graph, inputs, **given)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", noted)
    monkeypatch.setattr(inductor, "_uses_gpu", lambda inputs: True)
    model, x = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Conv1d(2, 3, 1)).eval(), torch.randn(2, 8)
    compiled = torch.compile(model, backend=backend("inductor"), dynamic=False, options=options)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert found == [1]


def graph_of(device: str) -> Any:
    graph: Any = torch.fx.Graph()
    graph.placeholder("x").meta["val"] = torch.empty(2, device=device)
    graph.output(())
    return torch.fx.GraphModule({}, graph)


def test_inductor_is_prepared_once_and_only_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    is_done = threading.Event()

    def fail(folder: Path | None) -> None:
        done.append(threading.current_thread().name)
        raise OSError("planted")  # which is left to inductor

    monkeypatch.setattr(inductor, "_hash_triton", lambda: done.append("triton"))
    monkeypatch.setattr(inductor, "ask_for_vector_instructions", fail)
    monkeypatch.setattr(inductor, "_preprocess_headers", is_done.set)
    inductor._start.cache_clear()
    inductor.prepare_inductor(graph_of("meta"))
    for _ in range(2):
        inductor.prepare_inductor(graph_of("cpu"))
    assert is_done.wait(60)
    assert done == ["triton", "preparing inductor"]


def test_inductor_compiles_once_the_vector_instructions_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that ask inductor change each other's compiler flags. It is imported meanwhile."""
    is_imported = threading.Event()
    known: list[bool] = []

    def ask(folder: Path | None) -> None:
        assert is_imported.wait(60)
        known.append(True)

    monkeypatch.setattr(inductor, "_hash_triton", lambda: None)
    monkeypatch.setattr(inductor, "ask_for_vector_instructions", ask)
    monkeypatch.setattr(inductor, "_preprocess_headers", lambda: None)
    monkeypatch.setattr(inductor, "importlib", SimpleNamespace(import_module=lambda name: is_imported.set()))
    inductor._start.cache_clear()
    inductor.prepare_inductor(graph_of("cpu"))
    assert known


def test_headers_are_preprocessed_as_for_the_kernels_of_inductor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Inductor finds the result under the same arguments."""
    from torch._inductor import codecache

    asked: list[tuple[Any, Any]] = []

    def precompile(*args: Any, **settings: Any) -> str:
        asked.append((args, settings))
        return str(tmp_path / "header.h")

    if not hasattr(codecache, "_precompile_header"):
        pytest.skip("torch preprocesses no headers")
    monkeypatch.setattr(codecache, "_precompile_header", precompile)
    monkeypatch.setattr(codecache.CppPythonBindingsCodeCache, "cache", {})  # earlier tests filled it
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(tmp_path / "none"))
    inductor._preprocess_headers()
    assert asked == []
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(tmp_path))
    inductor._preprocess_headers()
    code = 'extern "C" void kernel(float* x) {}'
    codecache.CppPythonBindingsCodeCache.load_pybinding_async(
        ["float*"], code, submit_fn=lambda compile_it: None
    )
    assert len(asked) == 2
    assert asked[0] == asked[1]


MAX_POOLS = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
x, losses = torch.randn(2, 3, 12, 12), []
for each in (torch.compile(model, backend="iree_boo_inductor"), model):
    model.zero_grad()
    each(x).square().sum().backward()
    losses.append(model[0].weight.grad.clone())
torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
"""


@pytest.mark.slow
def test_training_begins_with_no_part_of_inductor_imported(tmp_path: Path) -> None:
    """Decompositions of max pools need parts of inductor that they do not import."""
    done = subprocess.run(
        [sys.executable, "-c", MAX_POOLS],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]

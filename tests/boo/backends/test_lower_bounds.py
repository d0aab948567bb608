"""What inductor cannot beat: torch's kernels for the convolutions and products of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dispatch_profiler.boo.backends import lower_bounds
from dispatch_profiler.boo.backends.lower_bounds import kernels_alone
from dispatch_profiler.boo.fusion.traced_graphs import GraphKind, boxed, compiled_by

X = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """Two equal convolutions, another one, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.grouped, self.linear = nn.Conv2d(8, 16, 1, stride=2, groups=2), nn.Linear(144, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.grouped(self.second(torch.relu(self.first(x)))))
        return self.linear(x.flatten(1)).softmax(-1)


class Called(TorchDispatchMode):
    """Notes the operators that are called, and the strides of their first operand."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.strides: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.__name__.partition(".")[0])
        self.strides.append(next((each.stride() for each in args if isinstance(each, torch.Tensor)), ()))
        return function(*args, **(kwargs or {}))


def graph(*, frozen: bool = False) -> Any:
    graphs: list[Any] = []

    def keep(kind: GraphKind, module: Any, inputs: Any) -> Any:
        graphs.append(module.graph)
        return boxed(module.forward)

    def compile_graph(module: Any, inputs: Any) -> Any:
        return compiled_by(keep, module, inputs, saves_memory=False, freezes=frozen)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(Network().eval(), backend=compile_graph, dynamic=False)(X)
    return graphs[0]


def called(function: Callable[[], Any] | None) -> Called:
    assert function is not None
    with torch.no_grad(), Called() as found:
        function()
    return found


@pytest.mark.parametrize("frozen", [False, True])
def test_every_way_computes_the_same(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Any] = []

    def seconds_of(call: Callable[[], Any]) -> float:
        results.append(call())
        return 1.0

    monkeypatch.setattr(lower_bounds, "seconds_of", seconds_of)
    with torch.no_grad():
        kernels_alone(graph(frozen=frozen))
    by_shape: dict[Any, list[Any]] = {}
    for each in results:
        by_shape.setdefault(each.shape, []).append(each)
    assert {tuple(each) for each in by_shape} == {(2, 8, 6, 6), (2, 16, 3, 3), (2, 5)}
    for first, *others in by_shape.values():
        for each in others:
            torch.testing.assert_close(each, first)
    has_packing = frozen and torch.backends.mkldnn.is_available()
    of_products = (3 if torch.backends.mkl.is_available() else 2) if has_packing else 1
    of_convolutions = 3 if has_packing else 2
    assert len(results) == 3 * (2 * of_convolutions + of_products)


def test_each_convolution_and_product_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_bounds, "seconds_of", lambda call: 1.0)
    assert called(kernels_alone(graph())).names == ["convolution"] * 3 + ["addmm"]


def test_the_fastest_way_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal convolutions, too, which are not measured again."""
    taken = iter([3.0] * 3 + [2.0] * 3 + [1.0] * 3 + [2.0] * 3 + [1.0] * 99)
    monkeypatch.setattr(lower_bounds, "seconds_of", lambda call: next(taken))
    found = called(kernels_alone(graph()))
    channels_last = X.to(memory_format=torch.channels_last).stride()
    assert found.strides[:3] == [channels_last, channels_last, X.stride()]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_frozen_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []

    def less_and_less(call: Callable[[], Any]) -> float:
        taken.append(1.0 / (1 + len(taken)))
        return taken[-1]

    monkeypatch.setattr(lower_bounds, "seconds_of", less_and_less)
    with torch.no_grad():
        found = called(kernels_alone(graph(frozen=True)))
    assert found.names[:3] == ["_convolution_pointwise"] * 3
    assert found.names[3] == "_linear_pointwise"


def test_each_weight_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_bounds, "seconds_of", lambda call: 1.0)
    memory: list[int] = []

    class Weights(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            memory.append(args[1].data_ptr())
            return function(*args, **(kwargs or {}))

    bound = kernels_alone(graph())
    assert bound is not None
    with torch.no_grad(), Weights():
        bound()
    assert len(set(memory[:3])) == 3


def test_other_graphs_have_no_bound() -> None:
    assert kernels_alone(inference_graph(nn.Sequential(nn.ReLU(), nn.LayerNorm(6)), X).graph) is None

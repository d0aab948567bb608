"""A graph that is handed over is the same graph in the process that compiles it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dispatch_profiler.boo.backends.handed_graphs import (
    INDUCTOR,
    BackgroundSettings,
    GraphOutcome,
    HandedGraph,
    TensorLike,
)
from dispatch_profiler.boo.backends.known_graphs import entry_of
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS
from dispatch_profiler.errors import UsageError

SETTINGS = BackgroundSettings(None, DEFAULT_SUPPORTED_BOO_FUSIONS, False, False)


def handed_over(function: Callable[..., Any], *inputs: Any) -> tuple[HandedGraph, Any, Any]:
    """The handed graph of a function, Dynamo's graph module, and its inputs."""
    found: list[Any] = []

    def backend(module: Any, example_inputs: Any) -> Any:
        entry = entry_of(module, example_inputs, ())
        assert entry is not None
        found.extend((HandedGraph.of(SETTINGS, module, example_inputs, entry), module, example_inputs))
        return module.forward

    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=False)(*inputs)
    return found[0], found[1], found[2]


def several(x: Any, weight: Any) -> Any:
    """Functions, methods, slices, keywords, types and several results."""
    y = torch.nn.functional.gelu(torch.conv2d(x, weight, padding=(1, 1)), approximate="tanh")
    first, second = y[:, 1:, None].to(torch.float64).flatten(1, 2).chunk(2, dim=1)
    return torch.cat([first, second.mul(2)], 1).permute(0, 2, 3, 1), y.mean((2, 3), keepdim=True)


def described(module: Any) -> list[tuple[str, ...]]:
    return [
        (node.op, node.name, *map(str, (node.target, node.args, node.kwargs))) for node in module.graph.nodes
    ]


def test_a_handed_graph_computes_the_same() -> None:
    x, weight = torch.randn(2, 3, 4, 4), torch.randn(5, 3, 3, 3)
    handed, module, inputs = handed_over(several, x, weight)

    rebuilt, empty = pickle.loads(pickle.dumps(handed)).rebuilt()

    assert described(rebuilt) == described(module)
    assert [(each.shape, each.stride(), each.dtype) for each in empty] == [
        (each.shape, each.stride(), each.dtype) for each in inputs
    ]
    for result, expected in zip(rebuilt.forward(*inputs), module.forward(*inputs), strict=True):
        assert torch.equal(result, expected)


def test_no_values_are_handed_over() -> None:
    handed, *_ = handed_over(torch.nn.functional.linear, torch.randn(1, 512), torch.randn(512, 512))

    assert len(pickle.dumps(handed)) < 2**16


def test_parameters_are_marked() -> None:
    layer = torch.nn.Linear(3, 3)
    handed, *_ = handed_over(layer, torch.randn(1, 3))

    assert sorted(bool(each.static) for each in handed.inputs) == [False, True, True]


@pytest.mark.parametrize("is_inference", [False, True])
def test_tensors_have_the_same_properties(is_inference: bool) -> None:
    with torch.inference_mode(is_inference):
        tensor = torch.randn(2, 3, 4).permute(2, 0, 1)
    made = TensorLike.of(tensor).empty()

    assert TensorLike.of(made) == TensorLike.of(tensor)


def test_an_outcome_is_read_back() -> None:
    outcome = GraphOutcome(INDUCTOR, "abc", {1: (4, 1)})

    assert GraphOutcome.parse(outcome.text) == outcome


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "runs"}',
        '{"kind": "other", "graph": "", "strides": {}}',
        '{"kind": "runs", "graph": 1, "strides": {}}',
        '{"kind": "runs", "graph": "", "strides": {"a": [1]}}',
        '{"kind": "runs", "graph": "", "strides": [1]}',
    ],
)
def test_damaged_outcomes_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        GraphOutcome.parse(text)

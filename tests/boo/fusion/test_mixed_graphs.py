"""Graphs of runs and torch's operators as text: what is read back computes the same, and nothing else is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dispatch_profiler.boo.fusion.execute.mixed_graphs import MixedGraph
from dispatch_profiler.errors import UsageError


def traced(function: Callable[..., Any], *inputs: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    make: Any = make_fx
    return make(lambda *given: list(function(*given)))(*inputs).graph


def numbers(x: Any, y: Any) -> Any:
    """Operators with numbers, lists, types, devices, memory formats, keywords, and several results."""
    values, places = torch.ops.aten.sort.default(x)
    full = torch.ops.aten.full.default([2, 3], float("-inf"), dtype=torch.float64, device="cpu")
    cat = torch.ops.aten.cat.default([values, y, x], 1)
    like = torch.ops.aten.clone.default(x, memory_format=torch.contiguous_format)
    parts = torch.ops.aten.index.Tensor(y, [None, places[0]])
    gelu = torch.ops.aten.gelu.default(x, approximate="tanh")
    return cat, full, like, parts, gelu, places


def test_a_graph_is_read_back_as_it_was() -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    graph = MixedGraph.of(traced(numbers, x, y))
    assert graph is not None

    read = MixedGraph.parse(graph.text)

    assert (read.inputs, read.text, read.regions) == (2, graph.text, ())
    for result, expected in zip(read.function(strict=False)(x, y), numbers(x, y), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [torch.ops.aten.add_.Tensor(x, 1)],
        lambda x: [torch.ops.prims.sin.default(x)],
        lambda x: [x + torch.tensor(1.0)],  # a constant of the graph
    ],
    ids=["writes", "another namespace", "a constant"],
)
def test_other_graphs_are_not_kept(function: Callable[..., Any]) -> None:
    assert MixedGraph.of(traced(function, torch.randn(3))) is None


NODE = ["aten.relu.default", [{"value": 0}], {}]
GRAPH = {"inputs": 1, "nodes": [NODE], "outputs": [{"value": 1}]}


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": [["aten.from_file.default", ["/etc/passwd"], {}]]},
        {"nodes": [["aten.relu_.default", [{"value": 0}], {}]]},
        {"nodes": [["aten.relu.missing", [{"value": 0}], {}]]},
        {"nodes": [["aten.__class__.__init__", [], {}]]},
        {"nodes": [["os.system", ["true"], {}]]},
        {"nodes": [["aten.relu.default", [{"value": 1}], {}]]},
        {"nodes": [["aten.relu.default", [{"dtype": "nn"}], {}]]},
        {"nodes": [["aten.relu.default", [{"file": "x"}], {}]]},
        {"nodes": [["aten.relu.default", [[[[[[[0]]]]]]], {}]]},
        {"nodes": [["run", [[{"value": 0}], "no run"], {}]]},
        {"nodes": [["aten.relu.default", 3, {}]]},
        {"nodes": [[3, [], {}]]},
        {"outputs": [{"value": 2}]},
        {"inputs": -1},
        {"more": 1},
    ],
)
def test_anything_else_is_rejected(change: dict[str, Any]) -> None:
    def read(given: dict[str, Any]) -> Any:
        return MixedGraph.parse(json.dumps(given)).function(strict=False)

    assert torch.equal(read(GRAPH)(torch.tensor([-1.0, 1.0]))[0], torch.tensor([0.0, 1.0]))
    with pytest.raises(UsageError):
        read({**GRAPH, **change})


@pytest.mark.parametrize("text", ["", "[]", "null", '{"inputs": 1}', "[" * 100_000])
def test_damaged_texts_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        MixedGraph.parse(text)

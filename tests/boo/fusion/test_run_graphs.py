"""Graphs of runs: of a graph of torch, as text, and as a function."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch.nn import functional

from dispatch_profiler.boo.backends.graph_kernels import Fallbacks, fuse
from dispatch_profiler.boo.fusion.execute import run_graphs
from dispatch_profiler.boo.fusion.execute.run_graphs import RunGraph
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS
from dispatch_profiler.errors import UsageError

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


def fused(function: Any, *inputs: Any) -> Any:
    module = inference_graph(function, *inputs)
    return fuse(module, DEFAULT_SUPPORTED_BOO_FUSIONS, Fallbacks(strict=True)).module.graph


def filters_of_a_convolution(w: Any, small: Any, x: Any) -> Any:
    """The filters of the second convolution are computed by the first one, so that one run cannot have both."""
    filters = functional.conv2d(w, small).relu()
    return functional.conv2d(x, filters), functional.conv2d(x, w).relu()


def inputs() -> tuple[torch.Tensor, ...]:
    return images(4, 4, 3, 3), images(4, 4, 1, 1), images(2, 4, 6, 6)


def fused_filters() -> Any:
    return fused(filters_of_a_convolution, *inputs())


def in_its_order(given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Inputs as the graph takes them, which differs between versions of torch."""
    shapes = [node.meta["val"].shape for node in fused_filters().nodes if node.op == "placeholder"]
    return sorted(given, key=lambda each: shapes.index(each.shape))


@cache
def text() -> str:
    """The text of the graph, which is compiled once for all that change it."""
    return graph().text


def graph() -> RunGraph:
    found = RunGraph.of(fused_filters())
    assert found is not None
    return found


@pytest.mark.slow
def test_two_runs_compute_what_torch_computes() -> None:
    found = graph()
    assert len(found.calls) == 2
    given = inputs()
    results = RunGraph.parse(found.text).function(strict=True)(*in_its_order(given))
    for result, expected in zip(results, filters_of_a_convolution(*given), strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.slow
def test_what_later_runs_do_not_need_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters, once the second convolution has been computed."""
    alive: list[Any] = []

    class Call:
        def __init__(self, spec: Any, *, strict: bool) -> None:
            self.spec = spec

        def __call__(self, *values: Any) -> list[Any]:
            results = [torch.zeros(shape) for shape, _, _ in self.spec.results]
            alive.append([weakref.ref(each) for each in results])
            return results

    monkeypatch.setattr(run_graphs, "DirectCall", Call)
    found = graph()
    returned = found.function(strict=True)(*in_its_order(inputs()))
    gc.collect()
    ids = {id(each) for each in returned}
    assert len(ids) == len(found.outputs) == 2
    left = {id(each()) for step in alive for each in step if each() is not None}
    assert left == ids


@pytest.mark.slow
def test_a_gradient_that_is_not_needed_is_none() -> None:
    given = inputs()
    found = replace(graph(), outputs=(None, graph().outputs[0]))
    nothing, result = found.function(strict=True)(*in_its_order(given))
    assert nothing is None
    torch.testing.assert_close(result, filters_of_a_convolution(*given)[0])


@pytest.mark.slow
def test_a_graph_with_anything_else_is_none() -> None:
    w = images(4, 4, 1, 1)
    assert RunGraph.of(fused(lambda x: functional.conv2d(x, w).cumsum(1), images(1, 4, 2, 2))) is None
    assert RunGraph.of(fused(lambda x: x + 1, images(1, 4, 2, 2))) is None


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"inputs": -1},
        {"inputs": 2},
        {"inputs": 10**9},
        {"inputs": "3"},
        {"calls": 1},
        {"calls": [["{}", []]]},
        {"calls": [[1, []]]},
        {"calls": [[]]},
        {"outputs": [99]},
        {"outputs": [-1]},
        {"outputs": None},
        {"outputs": [None]},
    ],
)
def test_other_texts_are_errors(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the text is not a graph of runs"):
        RunGraph.parse(json.dumps({**json.loads(text()), **change}))


def test_a_run_takes_values_that_precede_it() -> None:
    data = json.loads(text())
    data["calls"].reverse()
    with pytest.raises(UsageError):
        RunGraph.parse(json.dumps(data))

"""Which operators of a graph a kernel may compute in the memory of an input, and what the graph is then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph

from dispatch_profiler.boo.fusion.execute.torch_operator import is_run, run_of
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.match.updates import cache_updates
from dispatch_profiler.boo.fusion.nodes import fake_mode
from dispatch_profiler.boo.fusion.plan.rewriting import rewrite
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

aten: Any = torch.ops.aten
KEYS, AT, ROWS = torch.randn(1, 2, 8, 16), torch.tensor([3, 5]), torch.randn(1, 2, 2, 16)


def copies(keys: Any, at: Any, rows: Any) -> Any:
    keys.index_copy_(2, at, rows)
    return keys.sum(2)


def assigns(keys: Any, at: Any, rows: Any) -> Any:
    keys[:, :, at] = rows
    return keys.sum(2)


def reads_before(keys: Any, at: Any, rows: Any) -> Any:
    before = keys.sum(2)
    keys.index_copy_(2, at, rows)
    return before + keys.sum(2)


def leaves_alone(keys: Any, at: Any, rows: Any) -> Any:
    return keys.index_copy(2, at, rows).sum(2)


def returns_another(keys: Any, at: Any, rows: Any) -> Any:
    """A tensor of its own, which later changes of the cache must not reach."""
    made = keys.index_copy(2, at, rows)
    keys.copy_(made)
    return made


def adds(keys: Any, at: Any, rows: Any) -> Any:
    keys.index_put_((torch.tensor([0]), torch.tensor([1]), at), rows[0, 0], accumulate=True)
    return keys.sum(2)


def accumulates(keys: Any, at: Any, rows: Any) -> Any:
    keys.index_put_((at[:1] - 3,), rows.repeat(1, 1, 4, 1), accumulate=True)
    return keys.sum(2)


def repeats_rows(keys: Any, at: Any, rows: Any) -> Any:
    keys[:, :, at] = rows[:, :, :1]
    return keys.sum(2)


def writes_more(keys: Any, at: Any, rows: Any) -> Any:
    keys.index_copy_(2, at, rows)
    keys.mul_(2)
    return keys.sum(2)


@pytest.mark.parametrize("function", [copies, assigns])
def test_updates_are_found(function: Callable[..., Any]) -> None:
    graph = inference_graph(function, KEYS.clone(), AT, ROWS, writes=True).graph
    (node,) = cache_updates(graph)
    assert node.target in (aten.index_copy.default, aten.index_put.default)


@pytest.mark.parametrize(
    "function",
    [reads_before, leaves_alone, returns_another, adds, accumulates, repeats_rows, writes_more],
    ids=lambda each: each.__name__,
)
def test_other_writes_are_left_to_torch(function: Callable[..., Any]) -> None:
    graph = inference_graph(function, KEYS.clone(), AT, ROWS, writes=True).graph
    assert not cache_updates(graph)


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        (torch.randn(1, 2, 16, 16)[:, :, ::2], ROWS),
        (KEYS.double(), ROWS.double()),
        (KEYS.to("meta"), ROWS.to("meta")),
    ],
    ids=["gaps", "f64", "no CPU"],
)
def test_other_caches_are_left_to_torch(keys: Any, rows: Any) -> None:
    at = AT.to(keys.device)
    assert not cache_updates(inference_graph(copies, keys, at, rows, writes=True).graph)


def fused(function: Callable[..., Any], *inputs: Any) -> Any:
    """The graph of a function with all regions and programs in it."""
    module = inference_graph(function, *inputs, writes=True)
    regions, _ = find_regions(module.graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    regions += find_glue(module.graph, regions)
    rewrite(module.graph, regions, fake_mode(module.graph))
    return module.graph


def attends(x: Any, weight: Any, keys: Any, at: Any) -> Any:
    """Rows of a product become keys of an attention, whose own product is returned with them."""
    made = torch.nn.functional.linear(x, weight).reshape(1, -1, 2, 16).transpose(1, 2)
    keys.index_copy_(2, at, made)
    found = torch.nn.functional.scaled_dot_product_attention(made, keys, keys)
    return torch.nn.functional.linear(found.transpose(1, 2).reshape(1, -1, 32), weight)


def test_a_run_continues_behind_an_update() -> None:
    graph = fused(attends, torch.randn(1, 1, 32), torch.randn(32, 32), KEYS.clone(), AT[:1])
    (call,) = [node for node in graph.nodes if is_run(node.target)]
    run, inputs = run_of(call)
    assert [step.operation.kind for step, _ in run.steps if step.update is None].count("matmul") == 2
    (updated,) = run.updated_inputs
    assert tuple(inputs[updated].meta["val"].shape) == KEYS.shape
    assert not [node for node in graph.nodes if node.target is aten.copy_.default]


def sums(x: Any, weight: Any, keys: Any, at: Any) -> Any:
    """What torch computes between an update and a product divides the run."""
    keys.index_copy_(2, at, torch.nn.functional.linear(x, weight).reshape(1, -1, 2, 16).transpose(1, 2))
    return torch.nn.functional.linear(keys.reshape(8, 32), weight) + keys.cumsum(2).reshape(8, 32)


def places(x: Any, weight: Any, keys: Any, at: Any) -> Any:
    """The positions follow from a product, so that the update is alone."""
    made = torch.nn.functional.linear(x, weight)
    at = at + (made.argmax(2).reshape(1) % 4)
    keys.index_copy_(2, at, made.reshape(1, -1, 2, 16).transpose(1, 2))
    return torch.nn.functional.linear(keys.reshape(8, 32), weight) + keys.cumsum(2).reshape(8, 32)


@pytest.mark.usefixtures("kernels_of_this_run")
@pytest.mark.parametrize(("function", "updating"), [(sums, 1), (places, 0)])
def test_what_torch_reads_is_the_updated_cache(function: Callable[..., Any], updating: int) -> None:
    x, weight = torch.randn(1, 1, 32), torch.randn(32, 32)
    graph = fused(function, x, weight, KEYS.clone(), AT[:1])
    runs = [run_of(node)[0] for node in graph.nodes if is_run(node.target)]
    assert (len(runs), sum(bool(run.updated_inputs) for run in runs)) == (2, updating)
    found, expected = KEYS.clone(), KEYS.clone()
    result = function(x, weight, expected, AT[:1])
    given = {each.shape: each for each in (x, weight, found, AT[:1])}
    order = [given[node.meta["val"].shape] for node in graph.nodes if node.op == "placeholder"]
    (computed,) = torch.fx.GraphModule({}, graph)(*order)
    torch.testing.assert_close(computed, result, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

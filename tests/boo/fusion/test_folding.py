"""Constants of frozen graphs are computed once, and what is returned or random in each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS
from dispatch_profiler.boo.fusion.folding import fold_constants, needs_no_compiler

aten: Any = torch.ops.aten


class _Built:
    """A graph of operators with `meta["val"]`."""

    def __init__(self) -> None:
        self.graph: Any = Graph()
        self.root = torch.nn.Module()

    def placeholder(self, value: Any) -> Any:
        node = self.graph.placeholder("x")
        node.meta["val"] = value
        return node

    def constant(self, value: Any) -> Any:
        self.root.register_buffer("weight", value)
        node = self.graph.get_attr("weight")
        node.meta["val"] = value
        return node

    def call(self, target: Any, *arguments: Any) -> Any:
        node = self.graph.call_function(target, arguments)
        node.meta["val"] = target(*torch.fx.map_arg(arguments, lambda each: each.meta["val"]))
        return node

    def returning(self, *nodes: Any) -> GraphModule:
        self.graph.output(nodes)
        return GraphModule(self.root, self.graph)


def _targets(module: GraphModule) -> list[str]:
    return [node.target.__name__ for node in module.graph.nodes if node.op == "call_function"]


def test_what_follows_from_constants_alone_is_computed_once() -> None:
    built = _Built()
    x, weight = built.placeholder(torch.randn(3, 4)), built.constant(torch.randn(8, 4))
    rows = built.call(aten.index.Tensor, weight, [built.call(aten.arange.default, 3)])
    wide = built.call(aten.transpose.int, built.call(aten.neg.default, rows), 0, 1)
    module = built.returning(built.call(aten.mm.default, built.call(aten.add.Tensor, x, rows), wide))
    given = torch.randn(3, 4)
    (before,) = module(given)
    fold_constants(module)
    assert _targets(module) == ["add.Tensor", "mm.default"]
    torch.testing.assert_close(module(given)[0], before, rtol=0, atol=0)


def test_returned_constants_are_new_in_each_call() -> None:
    built = _Built()
    x, weight = built.placeholder(torch.randn(4)), built.constant(torch.randn(4))
    twice = built.call(aten.mul.Tensor, weight, 2)
    module = built.returning(built.call(aten.add.Tensor, x, twice), twice)
    fold_constants(module)
    module(torch.zeros(4))[1].zero_()
    total, again = module(torch.zeros(4))
    torch.testing.assert_close(total, again)
    assert again.abs().sum() > 0


def test_random_numbers_stay_random() -> None:
    built = _Built()
    weight = built.constant(torch.zeros(16))
    x = built.placeholder(torch.zeros(16))
    noise = built.call(aten.rand_like.default, weight)
    module = built.returning(built.call(aten.add.Tensor, x, noise))
    fold_constants(module)
    assert not torch.equal(module(torch.zeros(16))[0], module(torch.zeros(16))[0])


@pytest.mark.parametrize(
    ("count", "rows", "expected"), [(0, 4, True), (4, 4, True), (5, 4, False), (1, 2**19, False)]
)
def test_few_small_operators_beside_a_run_need_no_compiler(count: int, rows: int, expected: bool) -> None:
    built = _Built()
    x = built.placeholder(torch.randn(4, 4))
    run = built.graph.call_function(REGIONS, ([x], ""))
    wide = built.call(aten.expand.default, built.call(aten.view.default, x, [16, 1, 1]), [16, rows, 1])
    for _ in range(count):
        wide = built.call(aten.sin.default, wide)
    assert needs_no_compiler(built.returning(run, wide).graph) == expected


def test_a_graph_without_runs_needs_a_compiler() -> None:
    built = _Built()
    x = built.placeholder(torch.randn(4, 4))
    assert not needs_no_compiler(built.returning(built.call(aten.sin.default, x)).graph)

"""Graphs that are drawn give what eager torch gives: values, strides, what shares memory, changed inputs, gradients.

`search_graphs.py` beside this file does the same for any number of seeds, and reduces what differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from drawing import draw
from drawn_graphs import Declared, DrawnGraph, Step
from graph_backends import differences_of
from graph_checks import differences
from graph_reducer import reduced

from dispatch_profiler.boo.fusion.execute.calls import RunCall
from dispatch_profiler.boo.fusion.match import glue
from dispatch_profiler.boo.fusion.plan import rewriting

#: A few small graphs that together have each operator of the first 60, each memory of an input, and each mode with each
#: type and rules.
_REPRESENTATIVE = (
    *(14, 24, 28, 37, 64, 71, 105, 112, 131, 184, 185),
    *(222, 254, 256, 263, 286, 317, 353, 383, 390, 391, 401, 412),
)


def check(seeds: range, backend: str) -> None:
    for seed in seeds:
        graph = draw(seed)
        found = differences_of(graph, backend)
        assert not found, "\n".join([str(graph), *found])


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", _REPRESENTATIVE)
def test_a_representative_graph(seed: int) -> None:
    check(range(seed, seed + 1), "iree_boo")


@pytest.mark.slow  # the representative graphs are above
@pytest.mark.parametrize("begin", range(0, 60, 5))
def test_60_graphs(begin: int, launched: list[str]) -> None:
    check(range(begin, begin + 5), "iree_boo")
    assert launched


@pytest.mark.slow  # models that inductor compiles have tests in tests/boo/backends
@pytest.mark.parametrize("seed", [59, 63009, 63018, 65022, 864004, 865004, 877034, 950034, 985026, 1000066])
def test_a_graph_with_inductor(seed: int) -> None:
    check(range(seed, seed + 1), "iree_boo_inductor")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1020, 4375, 606163, 607067, 610181, 714118, 809086, 840065])
def test_strides_that_fake_tensors_get_wrong_are_as_in_eager_torch(seed: int) -> None:
    """A view of an image that a kernel stores in another order, one of a part of it, and one of stacked images.

    The others are gradients: of a layer norm, and of filters whose image the forward returned in an order of its own. In
    809086 a norm reads an image of one column, and in 840065 fake tensors have a gradient where real ones have None.
    """
    check(range(seed, seed + 1), "iree_boo")


@pytest.mark.slow
def test_memory_that_is_read_through_a_part_is_that_of_eager_torch() -> None:
    """`as_strided` of a slice reads elements that the slice does not have."""
    check(range(812068, 812069), "iree_boo")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("begin", range(60, 560, 50))
def test_500_more_graphs(begin: int) -> None:
    check(range(begin, begin + 50), "iree_boo")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("begin", range(0, 60, 10))
def test_60_graphs_with_inductor(begin: int) -> None:
    check(range(begin, begin + 10), "iree_boo_inductor")


# -- the generator ----------------------------------------------------------------------------


def test_a_seed_gives_the_same_graph_in_each_call() -> None:
    assert str(draw(3)) == str(draw(3))
    assert len({str(draw(seed)) for seed in range(5)}) == 5


def test_representative_graphs_have_all_that_graphs_have() -> None:
    def has(seed: int) -> set[object]:
        graph = draw(seed)
        operators = re.findall(r"[a-z_]\w*(?=\()", graph.source)
        return {*operators, *(each.memory for each in graph.inputs), (graph.mode, graph.type, seed % 2)}

    assert set().union(*map(has, _REPRESENTATIVE)) >= set().union(*map(has, range(60)))


def test_graphs_have_all_that_they_are_drawn_from() -> None:
    graphs = [draw(seed) for seed in range(60)]
    assert {each.mode for each in graphs} == {"grad", "no_grad", "inference_mode"}
    assert {each.type for each in graphs} == {"f32", "bf16"}
    assert {"rows", "channels", "padded", "transposed", "x0"} == {
        each.memory for graph in graphs for each in graph.inputs
    }
    sources = "".join(each.source for each in graphs)
    for code in ("conv1d", "conv2d", "conv3d", "conv_transpose", "linear", "einsum", "matmul", "layer_norm"):
        assert code in sources
    for code in (
        "batch_norm",
        "group_norm",
        "instance_norm",
        "_pool",
        "cat(",
        "chunk",
        "expand",
        "relu_()",
        "[...,",
    ):
        assert code in sources
    assert any(len(each.steps) > 6 for each in graphs)


# -- the checks -------------------------------------------------------------------------------

SMALL = DrawnGraph(
    seed=1,
    type="f32",
    mode="grad",
    tensors=(
        Declared("x0", "input", (2, 3, 4, 4), requires_grad=True),
        Declared("x1", "input", (2, 4, 4, 4)),
        Declared("p2", "parameter", (4, 3, 1, 1)),
        Declared("b3", "buffer", (4,)),
    ),
    steps=(
        Step("functional.conv2d({}, {})", ("x0", "p2"), ("v1",)),
        Step("{}[:, :2]", ("v1",), ("v2",)),
        Step("{}.mul_(0.5)", ("x1",)),
        Step("{}.add_({}.detach().sum((0, 2, 3)))", ("b3", "v1")),
        Step("{} + {}", ("v1", "x1"), ("v3",)),
    ),
    results={"first": "v1", "others": ["v2", "v3"]},
)


def altered(change: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    """A compiler that computes as eager torch and alters the results: `change(results, model, inputs)`."""

    def compile_(model: Any) -> Any:
        def call(*inputs: Any) -> Any:
            before = [each.detach().clone() for each in inputs]
            results = model(*inputs)
            changed = change(results, model, (inputs, before))
            return results if changed is None else changed

        return call

    return compile_


def restrided(tensor: Any) -> Any:
    return tensor.contiguous(memory_format=torch.channels_last)


def lose_mutation(results: Any, model: Any, inputs: Any) -> None:
    (_, changed), (_, before) = inputs
    changed.detach().copy_(before)


def lose_update(results: Any, model: Any, inputs: Any) -> None:
    with torch.no_grad():
        model.b3.zero_()


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * 1.001


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r, *_: {**r, "others": [r["others"][0].clone(), r["others"][1]]}, "share memory"),
        (lambda r, *_: {**r, "others": [r["others"][0], r["others"][1].view_as(r["first"])]}, None),
        (lambda r, *_: {**r, "others": [r["others"][0], r["first"] + 0 * r["others"][1]]}, "is off by"),
        (lambda r, *_: {**r, "others": [r["others"][0], restrided(r["others"][1])]}, "result 2 is"),
        (lambda r, *_: {**r, "others": [r["others"][0], r["others"][1] + 1e-4]}, "is off by"),
        (lambda r, *_: {**r, "others": [r["others"][0], r["others"][1].double()]}, "torch.float64"),
        (lambda r, *_: {**r, "others": [r["others"][0], r["others"][1].detach()]}, "False"),
        (lambda r, *_: {**r, "others": [r["others"][0], WrongGradient.apply(r["others"][1])]}, "gradient of"),
        (lambda r, *_: {**r, "others": [r["others"][0], r["others"][1] * float("nan")]}, "is off by nan"),
        (lose_mutation, "x1 is off by"),
        (lose_update, "b3 is off by"),
    ],
)
def test_what_is_altered_differs(change: Any, expected: str | None) -> None:
    found = differences(SMALL, altered(change), others=())
    assert any(expected in each for each in found) if expected else not found


def test_results_of_the_first_call_that_the_second_one_overwrites_differ() -> None:
    first: list[Any] = []

    def overwrite(results: Any, *_: Any) -> None:
        for each in first:
            each.detach().copy_(results["others"][1].detach())
        first.append(results["others"][1])

    found = differences(replace(SMALL, mode="no_grad"), altered(overwrite), others=())
    assert any(each.startswith("call 0: result 2 is off by") for each in found)


def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rewriting, glue):
        monkeypatch.setattr(module, "shared_memory", lambda graph: [])


def strides_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting._Strides, "_restored", lambda self, node, like: node)


def inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = RunCall.__call__
    monkeypatch.setattr(
        RunCall, "__call__", lambda self, *inputs: [each * 1.0001 for each in launch(self, *inputs)]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "seed", "expected"),
    [(copies, 9, "share memory"), (strides_of_kernels, 3, "result 1 is"), (inexact, 3, "is off by")],
)
def test_faults_of_the_backends_are_found(
    plant: Any, seed: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(expected in each for each in differences_of(draw(seed), "iree_boo"))


def test_a_graph_is_reduced_to_what_differs() -> None:
    graph = draw(8)
    graph = replace(
        graph,
        steps=(*graph.steps, *SMALL.steps),
        tensors=(*graph.tensors, *(each for each in SMALL.tensors if each.role != "input")),
        results=(graph.results, "v3"),
    )
    found = reduced(graph, lambda each: any("conv2d" in step.code for step in each.steps))
    assert [step.code.partition("(")[0] for step in found.steps] == ["functional.conv2d"]
    assert "conv2d" in found.source

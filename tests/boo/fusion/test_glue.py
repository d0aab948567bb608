"""Which nodes become programs between regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch.nn import functional

from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import Region, find_regions
from dispatch_profiler.boo.fusion.nodes import mark_constants
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.resizing import restore_resizing
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS

W = torch.randn(4, 4, 3, 3)


def conv(x: Any) -> Any:
    return functional.conv2d(x, W.to(x.dtype), padding=1)


def glue(function: Callable[..., Any], *inputs: Any) -> list[Region]:
    graph = inference_graph(function, *inputs).graph
    restore_resizing(graph)
    regions, _ = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    return find_glue(graph, regions)


def titles(function: Callable[..., Any], *inputs: Any) -> list[str]:
    found = []
    for region in glue(function, *(inputs or (torch.randn(2, 4, 8, 8),))):
        assert isinstance(region.spec.operation, OperatorProgram)
        found.append(region.spec.operation.title)
    return found


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: conv(functional.max_pool2d(conv(x), 2)), ["max_pool2d_with_indices"]),
        (lambda x: conv(functional.max_pool2d(conv(x), 3, 2, ceil_mode=True)), ["max_pool2d_with_indices"]),
        (lambda x: conv(functional.adaptive_avg_pool2d(conv(x), 3)), ["adaptive_avg_pool2d"]),
        (lambda x: conv(x).mean((2, 3)), ["mean"]),
        # A pool or a resized image is a kernel of its own, with views.
        (lambda x: conv(functional.avg_pool2d(conv(x), 2) + 1), ["avg_pool2d", "add"]),
        (lambda x: functional.max_pool2d(conv(x), 4).flatten(1), ["max_pool2d_with_indices"]),
        (lambda x: conv(functional.interpolate(conv(x), scale_factor=2)), ["upsample_nearest2d"]),
        (
            lambda x: functional.interpolate(conv(x), size=(9, 9), mode="bicubic").exp(),
            ["upsample_bicubic2d", "exp"],
        ),
        # Parts of channels, which a program copies; each node that divides is a program with what reads it.
        (lambda x: [torch.cat([conv(x), conv(x + 1)], 1).relu()], ["add", "cat_relu"]),
        (lambda x: conv(torch.cat([conv(x)[:, :2], conv(x)[:, 3:], conv(x)[:, 1:2]], 1)), ["slice_cat"]),
        (lambda x: torch.cat([each + 1 for each in conv(x).chunk(2, 1)], 1), ["split_add_cat"]),
        (lambda x: [*functional.channel_shuffle(conv(x), 2).relu().split([1, 3], 1)], []),
        # What moves channels is a program of its own.
        (
            lambda x: conv(functional.max_pool2d(torch.cat([conv(x)[:, :2]] * 2, 1), 2)),
            ["slice_cat", "max_pool2d_with_indices"],
        ),
        (lambda x: torch.cat([conv(x)] * 2, 1).flatten(1) * 2, ["cat", "mul"]),
        (lambda x: conv(torch.cat([conv(x).exp()] * 2, 2)), ["exp_cat"]),
        # Two convolutions in between: not joined, for a path would leave the program and return to it.
        (lambda x: conv(y := conv(x).exp()) * y, ["exp", "mul"]),
        # Views that move what the next region reads, which torch would copy between two runs.
        (lambda x: conv(conv(x).transpose(2, 3)), ["transpose"]),
        (lambda x: conv(conv(x).flatten(2).transpose(1, 2).reshape(2, 4, 8, 8)), ["clone"]),
        (lambda x: (y := conv(x).exp(), y.flatten(1)), ["exp"]),
        # Nothing between regions, or nothing but views.
        (lambda x: conv(conv(x)), []),
        (lambda x: conv(functional.layer_norm(conv(x).permute(0, 2, 3, 1), [4]).permute(0, 3, 1, 2)), []),
        (lambda x: functional.layer_norm(conv(x).permute(0, 2, 3, 1), [4]), []),
        # Before the first region, if torch computes nothing before it, and nothing else reads it; and without a region.
        (lambda x: conv(x.exp()), ["exp"]),
        (lambda x: conv(torch.cumsum(x, 0).exp()), []),
        (lambda x: (conv(y := x.exp()), y), []),
        (lambda x: (conv(y := x.exp()), torch.cumsum(y, 0)), []),
        (lambda x: x.exp(), []),
        # Followed by what torch computes.
        (lambda x: torch.cumsum(conv(x).exp(), 0), []),
        (lambda x: conv(torch.cumsum(conv(x), 0)), []),
        # Random numbers, indices, other types.
        (lambda x: conv(functional.dropout(conv(x), 0.5)), []),
        (lambda x: conv(conv(x)[:, torch.tensor([1, 0, 3, 2])]), []),
        (lambda x: conv(conv(x).double().float()), []),
        (lambda x: functional.max_pool2d(conv(x), 2, return_indices=True), []),
        (lambda x: functional.avg_pool2d(conv(x), 7), []),
        (lambda x: torch.roll(conv(x), 1), []),
        (lambda x: functional.pad(conv(x), (-1, 0)), []),
        (lambda x: torch.linalg.vector_norm(conv(x), 1, (2, 3)), []),
        (lambda x: conv(x).abs().pow(1.7), []),
        (lambda x: functional.interpolate(conv(x), size=(99, 99), mode="bilinear").cumsum(0), []),
        (lambda x: (conv(x) > 0).float(), []),
    ],
)
def test_what_becomes_a_program(function: Callable[[Any], Any], expected: list[str]) -> None:
    assert titles(function) == expected


@pytest.mark.slow
def test_other_types_and_dynamic_shapes_are_left_to_torch() -> None:
    assert titles(lambda x: conv(x).exp(), torch.randn(2, 4, 8, 8).double()) == []
    graph = inference_graph(lambda x: conv(conv(x).exp()), torch.randn(2, 4, 8, 8), dynamic=True).graph
    assert find_glue(graph, find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)[0]) == []


def test_a_program_returns_what_is_read_elsewhere() -> None:
    def function(x: Any) -> Any:
        y = conv(x).exp()
        z = y * 2
        return y, conv(z), z.mean((2, 3))

    (region,) = glue(function, torch.randn(2, 4, 8, 8))
    assert [each.target.__name__.partition(".")[0] for each in region.outputs if each] == [
        "exp",
        "mul",
        "mean",
    ]
    assert [reading for _, reading in region.spec.results] == ["rows", "channels", "rows"]
    assert [source.reading for source in region.spec.sources] == ["channels"]


def test_what_follows_from_frozen_parameters_alone_is_no_program_before_a_region() -> None:
    """It is computed once, not in each call."""
    inputs = W, torch.randn(2, 4, 8, 8)
    graph = inference_graph(lambda w, x: functional.conv2d(x, w.exp(), padding=1), *inputs).graph
    for count, expected in ((0, ["exp"]), (1, [])):
        mark_constants(graph, count)
        regions, _ = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
        assert [each.spec.operation.title for each in find_glue(graph, regions)] == expected


def test_programs_that_need_each_other_are_not_joined() -> None:
    """a, b: programs on two paths that cross: each joined as a whole would have to precede the other."""

    def function(x: Any) -> Any:
        a, b = conv(x).exp(), conv(x + 1).abs()
        c, d = conv(a), conv(b)
        return conv(d * a), conv(c * b)

    inputs = torch.randn(2, 4, 8, 8)
    graph = inference_graph(function, inputs).graph
    regions, _ = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    found = find_glue(graph, regions)
    assert sum(len(each.nodes) for each in found) == 5
    assert_acyclic(graph, [*regions, *found])


def assert_acyclic(graph: Any, regions: list[Region]) -> None:
    """Compute the graph region by region: each is ready once its inputs are known."""
    inside = {node: region for region in regions for node in region.nodes}
    known: set[Any] = set()
    waiting: list[Any] = [*dict.fromkeys(inside.get(node, node) for node in graph.nodes)]
    while waiting:
        ready = [
            each
            for each in waiting
            if known.issuperset(each.inputs if isinstance(each, Region) else each.all_input_nodes)
        ]
        assert ready, "regions wait for each other"
        for each in ready:
            known.update(each.nodes if isinstance(each, Region) else [each])
        waiting = [each for each in waiting if each not in ready]

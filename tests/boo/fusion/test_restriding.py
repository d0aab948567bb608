"""`as_strided` that only renames strides of axes with one element is left out of graphs of inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from compiled_models import check_equals_eager

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.strides import leave_out_restriding

aten = torch.ops.aten


def restridings(graph: Any) -> int:
    return sum(node.target is aten.as_strided.default for node in graph.nodes)


def means(x: Any) -> Any:
    return torch.nn.functional.adaptive_avg_pool2d(x, 1)


def images() -> torch.Tensor:
    return torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: means(x).flatten(1), 0),
        (lambda x: means(x) * x, 0),
        # What is returned keeps its strides.
        (means, 1),
        (lambda x: (means(x), means(x).exp()), 1),
        # So does what an operator reads that may depend on them.
        (lambda x: means(x).cumprod(1), 1),
        (lambda x: means(x).view(torch.int32), 1),
        # Other elements, or in other places.
        (lambda x: x.exp().as_strided((2, 4), (4, 1)).exp(), 1),
        (lambda x: x.exp().as_strided((2, 4, 6, 6), (144, 36, 6, 1)).exp(), 1),
        (lambda x: x.exp()[1:].as_strided((1, 4, 6, 6), (1, 1, 24, 4), 0).exp(), 1),
        (lambda x: x.exp()[1:].as_strided((1, 4, 6, 6), (1, 1, 24, 4)).exp(), 0),
        (lambda x: x.exp()[1:].as_strided((1, 4, 6, 6), (1, 1, 24, 4), 144).exp(), 0),
    ],
)
def test_what_is_left(function: Callable[..., Any], left: int) -> None:
    x = images()
    module = inference_graph(function, x)
    assert restridings(module.graph) >= 1
    leave_out_restriding(module.graph)
    module.recompile()
    module.graph.lint()
    assert restridings(module.graph) == left
    found, expected = module.forward(x), function(x)
    for one, other in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(one, other)
    check_equals_eager(function, backend(), x)

"""What is left out of inference graphs, and what stays because results would share memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch.nn import functional

from dispatch_profiler.boo.fusion.simplifying import simplify

aten: Any = torch.ops.aten


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: functional.dropout(x.exp(), 0.1, training=False).sin(), ["exp", "sin"]),
        (lambda x: x.exp().clone().sin(), ["exp", "sin"]),
        (lambda x: functional.pad(x.exp(), (0, 0, 0, 0)).sin(), ["exp", "sin"]),
        (lambda x: torch.roll(x.exp(), (0, 0), (0, 1)).sin(), ["exp", "sin"]),
        (lambda x: torch.cat([x.exp(), x.exp()[:, 6:]], 1).sin(), ["exp", "sin"]),
        (lambda x: torch.cat([x.exp()[:, :0], x.exp(), x.sin()], 1), ["exp", "sin", "cat"]),
        # They do something.
        (lambda x: functional.pad(x.exp(), (0, 1)).sin(), ["exp", "constant_pad_nd", "sin"]),
        (lambda x: torch.roll(x.exp(), (0, 1), (0, 1)).sin(), ["exp", "roll", "sin"]),
        (
            lambda x: x.exp().t().clone(memory_format=torch.contiguous_format).sin(),
            ["exp", "t", "clone", "sin"],
        ),
        # Results, or views that are results, would share memory.
        (lambda x: (y := x.exp(), y.clone()), ["exp", "clone"]),
        (lambda x: (y := x.exp(), y.clone()[0]), ["exp", "clone", "select"]),
        (lambda x: x.clone()[0], ["clone", "select"]),
        # What is filled does not wait for what it is like.
        (lambda x: x.exp() + x.exp().new_zeros(4, 6), ["exp", "full", "add"]),
        (lambda x: x.exp() + torch.full_like(x.exp().sin(), 2.0), ["exp", "full", "add"]),
        (lambda x: torch.full_like(x.t().exp(), 2.0), ["t", "exp", "full_like"]),
        # Bounds that are tensors of one number, and zero points of 0.
        (lambda x: torch.maximum(x.exp(), torch.zeros_like(x)), ["exp", "clamp_min"]),
        (lambda x: torch.minimum(torch.full_like(x, 2.0), x.exp()).sin(), ["exp", "clamp_max", "sin"]),
        (lambda x: (x.exp() + torch.full_like(x, 0).to(torch.int8)).sin(), ["exp", "sin"]),
        (lambda x: x.exp() + torch.full_like(x, 1).to(torch.int8), ["exp", "full", "_to_copy", "add"]),
        (lambda x: torch.maximum(x.exp(), torch.full((1, 6), 0.0)), ["exp", "clamp_min"]),
        (lambda x: torch.maximum(x[:1].exp(), torch.full((4, 6), 0.0)), ["slice", "exp", "full", "maximum"]),
        # Numbers that are rounded, and that a conversion cuts.
        (lambda x: torch.maximum(x.exp(), torch.full((4, 6), 0.1)), ["exp", "full", "maximum"]),
        (
            lambda x: torch.maximum(x.to(torch.int8), torch.full((4, 6), 1.5).to(torch.int8)),
            ["_to_copy", "full", "maximum"],
        ),
    ],
)
def test_what_is_left(function: Callable[[Any], Any], expected: list[str]) -> None:
    x = torch.randn(4, 6)
    module = inference_graph(function, x)
    before = module(x)
    simplify(module.graph)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    names = [
        each.target.__name__.partition(".")[0] for each in module.graph.nodes if each.op == "call_function"
    ]
    assert list(dict.fromkeys(names)) == expected
    torch.testing.assert_close(module(x), before, rtol=0, atol=0)

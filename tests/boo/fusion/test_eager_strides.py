"""Fake tensors get the strides of real ones where torch's fake operators have others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch.nn import functional

from dispatch_profiler.boo.fusion.nodes import fake_mode
from dispatch_profiler.boo.fusion.plan.eager_strides import correct_strides


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


FILTERS = torch.randn(4, 4, 3, 3)
POINT = torch.randn(4, 4, 1, 1)
ONES = torch.ones(4)
GRAPHS: dict[str, tuple[Callable[[Any], Any], torch.Tensor]] = {
    "one pixel": (lambda x: functional.conv2d(x, FILTERS, padding=1).relu(), images(2, 4, 1, 1)),
    "one pixel, added": (lambda x: functional.conv2d(x, POINT) + x, images(2, 4, 1, 1)),
    "one row": (lambda x: functional.conv2d(x, POINT).sigmoid() * x, images(2, 4, 1, 6)),
    "one channel": (lambda x: functional.gelu(functional.conv2d(x, POINT[:1])), images(2, 4, 5, 5)),
    "a view": (lambda x: functional.conv2d(x.unsqueeze(2).flatten(2, 3), POINT), images(2, 4, 1, 6)),
    "expanded": (
        lambda x: functional.conv2d(x[..., :1].expand(2, 4, 6, 3), POINT).tanh(),
        images(2, 4, 6, 6),
    ),
    "a mean": (lambda x: functional.conv2d(x.mean((2, 3), keepdim=True), POINT).relu(), images(2, 4, 6, 6)),
    "einsum": (
        lambda x: functional.conv_transpose2d(
            torch.einsum("bchw,ck->bkhw", x, POINT[..., 0, 0]), POINT, stride=2
        ),
        torch.randn(2, 4, 1, 6),
    ),
    "einsum and a group norm": (
        lambda x: functional.conv2d(
            functional.group_norm(
                functional.conv2d(
                    torch.einsum("bchw,ck->bkhw", x, POINT[..., 0, 0]), FILTERS, padding=(1, 2)
                ),
                2,
            ),
            POINT,
        ),
        torch.randn(2, 4, 5, 1),
    ),
    "a batch norm": (
        lambda x: functional.batch_norm(x.transpose(-1, -2).relu(), ONES, ONES).relu(),
        torch.randn(2, 4, 4, 6),
    ),
    "einsum and a batch norm that trains": (
        lambda x: functional.conv_transpose2d(
            functional.batch_norm(
                torch.einsum("bchw,ck->bkhw", x, POINT[..., 0, 0]), None, None, training=True
            ),
            FILTERS[:, :1],
            stride=2,
            groups=2,
        ),
        torch.randn(2, 4, 1, 6),
    ),
}


def wrong_strides(module: Any, x: torch.Tensor, *, corrects: bool) -> list[str]:
    """The nodes whose fake tensors have other strides than what torch computes."""
    if corrects:
        correct_strides(module.graph, fake_mode(module.graph))
    wrong = []

    class Compare(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            found = super().run_node(node)
            fake = node.meta.get("val")
            if isinstance(found, torch.Tensor) and found.stride() != fake.stride():
                wrong.append(f"{node} has {fake.stride()}, not {found.stride()}")
            return found

    inputs = [x if each.shape == x.shape else torch.empty(each.shape) for each in placeholders(module)]
    with torch.no_grad():
        Compare(module).run(*inputs)
    return wrong


def placeholders(module: Any) -> list[Any]:
    return [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]


@pytest.mark.parametrize("name", GRAPHS)
def test_each_node_has_the_strides_of_eager_torch(name: str) -> None:
    function, x = GRAPHS[name]
    module = inference_graph(function, x)
    assert wrong_strides(module, x, corrects=True) == []


def test_without_that_some_have_others() -> None:
    """The test above can fail."""
    assert any(wrong_strides(inference_graph(*given), given[1], corrects=False) for given in GRAPHS.values())


def test_views_still_share_the_storage_of_what_they_are_views_of() -> None:
    module = inference_graph(lambda x: (lambda y: (y, y[:, :2]))(functional.relu(x)), images(2, 4, 1, 1))
    correct_strides(module.graph, fake_mode(module.graph))
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    base, part = (node.meta["val"] for node in output.args[0])
    assert base.stride() == (4, 1, 1, 1)
    assert base.untyped_storage()._cdata == part.untyped_storage()._cdata


def test_symbolic_shapes_are_left_alone() -> None:
    module = inference_graph(
        lambda x: functional.relu(x).transpose(1, 2), torch.randn(3, 1, 5, 5), dynamic=True
    )
    fakes = [node.meta["val"] for node in module.graph.nodes if "val" in node.meta]
    environment = fake_mode(module.graph).shape_env
    guards = len(environment.guards)
    correct_strides(module.graph, fake_mode(module.graph))
    assert len(environment.guards) == guards
    after = [node.meta["val"] for node in module.graph.nodes if "val" in node.meta]
    assert all(one is other for one, other in zip(fakes, after, strict=True))

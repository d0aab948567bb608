"""`as_strided` that only changes strides of axes with one element, which torch's average pool has in channels_last memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from compiled_models import check_equals_eager
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.strides import renames_strides

aten = torch.ops.aten
W = torch.randn(8, 8, 3, 3)


pytestmark = pytest.mark.usefixtures("kernels_of_this_run")


def means(x: Any) -> Any:
    return functional.adaptive_avg_pool2d(x, 1)


def images() -> torch.Tensor:
    return torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (means, True),
        (lambda x: x.exp().as_strided((2, 4), (4, 1)), False),
        (lambda x: x.exp().as_strided((2, 8, 6, 6), (288, 36, 6, 1)), False),
        (lambda x: x.exp()[1:].as_strided((1, 8, 6, 6), (1, 1, 48, 8)), True),
        (lambda x: x.exp()[1:].as_strided((1, 8, 6, 6), (1, 1, 48, 8), 0), False),
        (lambda x: x.exp()[1:].as_strided((1, 8, 6, 6), (1, 1, 48, 8), 288), True),
        (lambda x: x.exp()[:1].as_strided((1, 8, 6, 6), (1, 1, 48, 8), 0), True),
    ],
)
def test_elements_stay_in_their_places(function: Callable[..., Any], found: bool) -> None:
    module = inference_graph(function, images())
    nodes = [node for node in module.graph.nodes if node.target is aten.as_strided.default]
    assert [renames_strides(node) for node in nodes] == [found]


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda p: p,
        lambda p: p.flatten(1),
        lambda p: p * 2,
        lambda p: (p, p.flatten(1).exp()),
        lambda p: p.cumprod(1),
        lambda p: p.view(torch.int32),
        lambda p: functional.pad(p, (1, 1, 1, 1)),
        lambda p: functional.pad(p, (1, 1, 1, 1)).as_strided((2, 9, 8), (72, 8, 1)) + 0,
        lambda p: functional.pad(p, (1, 1, 1, 1)).permute(0, 2, 3, 1).view(2, -1),
        lambda p: functional.pixel_shuffle(p, 2).as_strided((2, 4, 2), (8, 2, 1)) + 0,
        lambda p: functional.pixel_shuffle(p, 2).permute(0, 2, 3, 1).reshape(2, -1) * 1,
        lambda p: p.flip(1).permute(0, 2, 3, 1).view(2, -1),
    ],
)
@pytest.mark.parametrize(
    ("has_region", "nested"),
    [
        *((True, None), (False, "aot_eager")),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((True, "aot_eager"), (False, None))),
    ],
)
def test_what_follows_sees_the_strides_of_torch(
    function: Callable[..., Any], nested: str | None, has_region: bool
) -> None:
    def whole(x: Any) -> Any:
        return function(means(functional.conv2d(x, W) if has_region else x))

    check_equals_eager(whole, backend(nested), images())

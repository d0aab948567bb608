"""Gathers that torch traces of `interpolate` become operators that compute the same, and other gathers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch.nn import functional

from dispatch_profiler.boo.fusion.resizing import restore_resizing

resize: Any = functional.interpolate


def same(module: Any, function: Callable[[Any], Any], x: Any) -> None:
    """Fail unless a graph module returns what the function returns."""
    expected = function(x)
    results = list(expected) if isinstance(expected, tuple) else [expected]
    torch.testing.assert_close(list(module(x)), results, rtol=1e-5, atol=1e-5)


def restored(function: Callable[..., Any], *inputs: Any) -> tuple[Any, list[str]]:
    """The graph module of a function after resized images have been found, and the operators in it."""
    module = inference_graph(function, *inputs)
    restore_resizing(module.graph)
    module.graph.lint()
    module.recompile()
    names = [
        each.target.__name__.partition(".")[0] for each in module.graph.nodes if each.op == "call_function"
    ]
    return module, names


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ((2, 3, 7, 5), {"size": (12, 9), "mode": "bilinear"}, "upsample_bilinear2d"),
        ((2, 3, 7, 5), {"size": (3, 9), "mode": "bilinear", "align_corners": True}, "upsample_bilinear2d"),
        ((2, 3, 7, 5), {"scale_factor": 1.7, "mode": "bilinear"}, "upsample_bilinear2d"),
        ((2, 3, 7, 5), {"scale_factor": (0.6, 3.0), "mode": "bilinear"}, "upsample_bilinear2d"),
        ((2, 3, 7, 5), {"scale_factor": 2, "mode": "bicubic"}, "upsample_bicubic2d"),
        ((2, 3, 7, 5), {"size": (4, 11), "mode": "bicubic", "align_corners": True}, "upsample_bicubic2d"),
        ((2, 3, 7, 5), {"scale_factor": 2, "mode": "nearest"}, "upsample_nearest2d"),
        ((2, 3, 7, 5), {"size": (10, 3), "mode": "nearest"}, "upsample_nearest2d"),
        ((2, 3, 7, 5), {"size": (10, 3), "mode": "nearest-exact"}, "_upsample_nearest_exact2d"),
        ((2, 3, 7), {"size": 10, "mode": "linear"}, "upsample_linear1d"),
        ((2, 3, 7), {"scale_factor": 3, "mode": "nearest"}, "upsample_nearest1d"),
        ((2, 3, 4, 7, 5), {"scale_factor": 1.5, "mode": "trilinear"}, "upsample_trilinear3d"),
        ((2, 3, 4, 7, 5), {"scale_factor": 2, "mode": "nearest"}, "upsample_nearest3d"),
        ((2, 3, 1, 1), {"size": (4, 6), "mode": "bilinear"}, "upsample_bilinear2d"),
    ],
)
def test_resizing_is_one_operator(shape: tuple[int, ...], options: dict[str, Any], expected: str) -> None:
    def function(x: Any) -> Any:
        return resize(x.exp(), **options).sin()

    x = torch.randn(shape)
    module, names = restored(function, x)
    assert [each for each in names if each != "clone"] == ["exp", expected, "sin"]
    same(module, function, x)


def test_several_images_are_resized() -> None:
    def function(x: Any) -> Any:
        y = resize(x.exp(), size=(9, 9), mode="bilinear")
        return y + resize(x.exp(), size=(9, 9)), resize(y, scale_factor=2, mode="bilinear"), y.sin()

    x = torch.randn(2, 3, 7, 5)
    module, names = restored(function, x)
    assert sorted(each for each in names if "upsample" in each) == [
        *("upsample_bilinear2d", "upsample_bilinear2d", "upsample_nearest2d")
    ]
    same(module, function, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, :, torch.tensor([[0], [2], [1]]), torch.tensor([1, 1, 3])],
        lambda x: x[:, :, torch.arange(3).flip(0).unsqueeze(1), torch.arange(4)],
        lambda x: resize(x, size=(9, 9), mode="bilinear").double(),
        lambda x: resize(x.double(), size=(9, 9), mode="bilinear"),
        lambda x: x[:, :, (x[0, 0, 0] > 0).long().unsqueeze(1), torch.arange(5)],
        lambda x: x[[0, 1], [0, 1]],
    ],
)
def test_results_stay_the_same(function: Callable[[Any], Any]) -> None:
    x = torch.randn(2, 3, 7, 5)
    module, _ = restored(function, x)
    same(module, function, x)


def test_other_gathers_stay() -> None:
    x = torch.randn(2, 3, 7, 5)
    for function in (
        lambda x: x[:, :, torch.arange(3).flip(0).unsqueeze(1), torch.arange(4)],
        lambda x: x[:, :, (x[0, 0, 0] > 0).long().unsqueeze(1), torch.arange(5)],
    ):
        _, names = restored(function, x)
        assert "index" in names or "_unsafe_index" in names


def test_what_lies_between_may_be_read() -> None:
    """Gathers that something else reads stay, with what it reads."""

    def function(x: Any) -> Any:
        rows, columns = torch.arange(14).div(2, rounding_mode="floor").unsqueeze(1), torch.arange(5)
        near = x[:, :, rows, columns]
        far = x[:, :, rows.add(1).clamp(max=6), columns]
        return near + (far - near) * 0.5, near.sin()

    x = torch.randn(2, 3, 7, 5)
    module, _ = restored(function, x)
    same(module, function, x)

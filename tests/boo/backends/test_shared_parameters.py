"""Tensors that a compiled model uses more than once: as image and weight, or as the weight of several layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_models import check_alike, check_equals_eager
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.schema import BACKWARD_FUSIONS, DEFAULT_SUPPORTED_BOO_FUSIONS
from dispatch_profiler.boo.weights import snapshots

STRICT = backend(strict=True)
ALL_GRADIENTS = backend(fusion_schema=DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules(BACKWARD_FUSIONS), strict=True)


class Itself(nn.Module):
    """A convolution of a parameter with itself, or with a view of it."""

    def __init__(self, convolve: Callable[..., Any], axes: tuple[int, ...]) -> None:
        super().__init__()
        self.convolve, self.axes = convolve, axes
        self.parameter = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self) -> Any:
        return torch.relu(self.convolve(self.parameter, self.parameter.permute(self.axes), padding=1))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (1, 0, 3, 2)], ids=["itself", "view"])
@pytest.mark.parametrize("convolve", [functional.conv2d, functional.conv_transpose2d])
def test_an_image_that_is_its_weight(convolve: Callable[..., Any], axes: tuple[int, ...]) -> None:
    """Also after it was written to, and its gradient, which is the sum of two."""
    model = Itself(convolve, axes).eval()
    compiled = check_equals_eager(model, ALL_GRADIENTS)
    for _ in range(2):
        with torch.no_grad():
            model.parameter.mul_(-0.7)
            check_alike(compiled(), model())
        found, expected = (
            torch.autograd.grad(each().square().mean(), model.parameter) for each in (compiled, model)
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Shared(nn.Module):
    """Two layers with one weight, and one with a weight of its own. Images in channels-last format permute weights."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Conv2d(8, 8, 3, padding=1)
        self.once = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.twice(torch.relu(self.once(torch.relu(self.twice(x)))))


@pytest.mark.slow
def test_a_weight_of_several_layers_is_copied_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever derives from a weight is computed once, also for a second batch size."""
    made: list[Any] = []
    value = snapshots.WeightSnapshot.value

    def note(self: Any, name: Any, others: Any, make: Callable[[], Any]) -> Any:
        def counted() -> Any:
            made.append(name)
            return make()

        return value(self, name, others, counted)

    monkeypatch.setattr(snapshots.WeightSnapshot, "value", note)
    model = Shared().eval()
    images = [torch.randn(count, 8, 6, 6).to(memory_format=torch.channels_last) for count in (2, 3)]
    compiled = check_equals_eager(model, STRICT, images[0])
    weights = model.twice.weight, model.once.weight
    assert len(made) == 2
    for changed in (weights[:1], (), weights):
        made.clear()
        with torch.no_grad():
            for each in changed:
                each.mul_(1.5)
            for x in 2 * images:
                check_alike(compiled(x), model(x))
        assert len(made) == len(changed)

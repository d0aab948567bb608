"""Gradients of compiled models agree with eager torch, with torch's kernels and with ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_models import Block
from torch import nn

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion import calls
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

#: Of torch's own modules, when inductor is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def step(model: Callable[..., Any], parameters: Any, x: Any) -> list[Any]:
    """The output, and the gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().mean().backward()
    return [y.detach(), x.grad, *(each.grad for each in parameters)]


def check_step(model: nn.Module, made: Any, x: Any) -> None:
    """One training step, compiled and not; running statistics, too."""
    torch._dynamo.reset()
    other = copy.deepcopy(model)
    found = step(torch.compile(model, backend=made, dynamic=False), list(model.parameters()), x)
    expected = step(other, list(other.parameters()), x)
    for one, two in zip((*found, *model.buffers()), (*expected, *other.buffers()), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


MODELS = {
    "block": (Block, (2, 8, 6, 6)),
    "stride": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Tanh()), (2, 3, 8, 8)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU()), (2, 3, 8)),
    "flattened": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
        (2, 3, 6, 6),
    ),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 5, 5)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["block", pytest.param("layer norm", marks=pytest.mark.slow), "flattened"])
def test_a_training_step(name: str, training: bool) -> None:
    make, shape = MODELS[name]
    check_step(
        make().train(training), backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS), torch.randn(*shape)
    )


@pytest.mark.parametrize(
    "name",
    [
        "stride",
        "layer norm",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("block", "flattened", "depthwise")),
    ],
)
def test_gradients_by_our_kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    launched = []
    launch = calls.RunCall.__call__

    def note(self: Any, *inputs: Any) -> Any:
        launched.extend(region.operation.name for region, _ in self.spec.steps)
        return launch(self, *inputs)

    monkeypatch.setattr(calls.RunCall, "__call__", note)
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", "1")
    make, shape = MODELS[name]
    check_step(make().train(), backend(), torch.randn(*shape))
    assert any("backward" in each for each in launched)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_with_inductor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", "1")
    make, shape = MODELS[name]
    check_step(make().train(), backend(nested_backend="inductor"), torch.randn(*shape))


def test_a_tensor_that_requires_grad_without_grad_mode() -> None:
    model, x = Block().eval(), torch.randn(2, 8, 6, 6, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend(strict=True), dynamic=False)
    with torch.no_grad():
        found, expected = compiled(x), model(x)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x))
    assert compiled(x).requires_grad

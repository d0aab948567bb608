"""Small random networks of convolutions, norms, activations and residuals agree with eager torch, also their gradients."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from compiled_models import check_alike
from torch import nn

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.environment import uses_backward_kernels
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

_ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardswish,
)


class Layer(nn.Module):
    """A convolution, or a layer norm over the pixels, with what may follow it, in an order that is drawn."""

    def __init__(self, draw: random.Random, channels: int) -> None:
        super().__init__()
        kernel = draw.choice((1, 3))
        groups = draw.choice((1, 1, 2, channels))
        kind = draw.choice((nn.Conv2d, nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d))
        body: list[nn.Module] = [
            kind(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=draw.random() < 0.5)
        ]
        for _ in range(draw.randrange(3)):
            norm = nn.BatchNorm2d(channels, affine=draw.random() < 0.7)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            body.append(draw.choice((norm, nn.LayerNorm(6), draw.choice(_ACTIVATIONS)())))
        self.body = nn.Sequential(*body)
        self.ending = draw.choice(("", "residual", "scaled", "used twice", "pooled"))
        self.last = draw.choice((*_ACTIVATIONS, nn.Identity))()

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        if self.ending == "residual":
            y = y + x
        elif self.ending == "scaled":
            y = torch.add(x, y, alpha=0.5)
        elif self.ending == "used twice":
            y = y + y.tanh()
        elif self.ending == "pooled":
            y = nn.functional.avg_pool2d(y, 3, 1, 1)
        return self.last(y)


def check(seed: int) -> None:
    """Draw a network, and compare a forward without grad, and a training step."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    channels = draw.choice((2, 4))
    model = nn.Sequential(*(Layer(draw, channels) for _ in range(draw.randrange(1, 4)))).eval()
    x = torch.randn(draw.choice((1, 2)), channels, 6, 6)
    if draw.random() < 0.5:
        x = x.to(memory_format=torch.channels_last)
    torch._dynamo.reset()
    # Gradients of transposed convolutions are left to torch, which strict mode does not accept.
    made = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, strict=not uses_backward_kernels())
    compiled = torch.compile(model, backend=made, dynamic=False)
    with torch.no_grad():
        check_alike(compiled(x), model(x))
    model.train(draw.random() < 0.5)
    other = copy.deepcopy(model)
    found, expected = compiled(x), other(x)
    found.square().mean().backward()
    expected.square().mean().backward()
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    for one, two in [(found, expected), *((one.grad, two.grad) for one, two in pairs)]:
        # Elements near zero are sums of ones as large as the largest.
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5 * max(1.0, float(two.detach().abs().max())))


@pytest.mark.parametrize("seed", range(6))
def test_a_random_network(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("begin", range(0, 200, 20))
def test_200_random_networks(monkeypatch: pytest.MonkeyPatch, begin: int) -> None:
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", "1" if begin % 40 else "0")
    for seed in range(begin, begin + 20):
        check(seed)

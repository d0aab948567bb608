"""Small random networks whose batch is dynamic agree with eager torch for each batch, and are compiled once.

Convolutions and products follow each other in torch's order of axes and with channels last, with pools, norms and views
between them, and inputs in either memory format.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import parse_target, rows_microkernel

BATCHES = (3, 2, 5)
_ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Identity)
_FORMATS = (torch.contiguous_format, torch.channels_last)


class Piece(nn.Module):
    """A convolution, or a product of pixels, of channels or of whole images, with what is drawn to follow it."""

    def __init__(self, draw: random.Random, channels: int, size: int) -> None:
        super().__init__()
        self.kind = draw.choice(("conv", "conv", "depthwise", "pixels", "channels"))
        kernel, is_affine = draw.choice((1, 3)), draw.random() < 0.5
        if self.kind in ("conv", "depthwise"):
            groups = channels if self.kind == "depthwise" else draw.choice((1, 1, 2))
            self.body: nn.Module = nn.Conv2d(
                channels, channels, kernel, padding=kernel // 2, groups=groups, bias=is_affine
            )
        else:
            width = channels if self.kind == "channels" else size
            self.body = nn.Linear(width, width, bias=is_affine)
        self.norm = nn.BatchNorm2d(channels) if draw.random() < 0.4 else nn.Identity()
        if isinstance(self.norm, nn.BatchNorm2d):
            nn.init.uniform_(self.norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]
        self.activation = draw.choice(_ACTIVATIONS)()
        self.ending = draw.choice(("", "residual", "pooled", "twice"))

    def forward(self, x: Any) -> Any:
        y = self.body(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if self.kind == "channels" else self.body(x)
        y = self.norm(y)
        if self.ending == "residual":
            y = y + x
        y = self.activation(y)
        if self.ending == "pooled":
            y = nn.functional.max_pool2d(y, 3, 1, 1)
        return y + y.tanh() if self.ending == "twice" else y


class Network(nn.Module):
    """One to four pieces, and a product of what they compute: of means, or of all elements of an image."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        channels, size = draw.choice((4, 8, 24)), draw.choice((1, 5, 8))
        self.shape = channels, size, size
        self.pieces = nn.Sequential(*(Piece(draw, channels, size) for _ in range(draw.randrange(1, 5))))
        self.is_mean = draw.random() < 0.5
        self.head = nn.Linear(channels if self.is_mean else channels * size * size, 10)
        self.returns_images = draw.random() < 0.3

    def forward(self, x: Any) -> Any:
        y = self.pieces(x)
        z = self.head(y.mean((2, 3)) if self.is_mean else y.flatten(1))
        return (z, y) if self.returns_images else (z,)


def strides(tensor: Any) -> list[int]:
    """Those of axes with several elements, which decide where elements are."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", range(120))
def test_a_random_network_computes_what_torch_computes(seed: int):
    if rows_microkernel(Matmul(64, 80, 24, rhs_layout="n"), parse_target("llvm-cpu")) is None:
        pytest.skip("no kernel for this CPU is for any number of rows")
    torch.manual_seed(seed)
    draw = random.Random(seed)
    model = Network(draw).eval().to(memory_format=draw.choice(_FORMATS))
    memory, exact = draw.choice(_FORMATS), copy.deepcopy(model).double()
    made = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, autotune=False, freeze=draw.random() < 0.7)
    torch._dynamo.reset()
    counters.clear()
    fast = torch.compile(model, backend=made)
    with torch.no_grad():
        for batch in BATCHES:
            x = torch.randn(batch, *model.shape).to(memory_format=memory)
            torch._dynamo.mark_dynamic(x, 0)
            for found, eager, expected in zip(fast(x), model(x), exact(x.double()), strict=True):
                own = float((eager.double() - expected).abs().max())
                torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 + 2 * own)
                assert (found.shape, strides(found)) == (eager.shape, strides(eager))
    assert counters["stats"]["unique_graphs"] == 1

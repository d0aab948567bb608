"""Models compiled with a backend, and eager torch beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """A residual block with what most networks of convolutions have."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 1)
        self.norm2 = nn.BatchNorm2d(channels)
        for norm in (self.norm1, self.norm2):
            nn.init.uniform_(norm.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + x)


def check_equals_eager(model: Callable[..., Any], backend: Any, *inputs: Any, **options: Any) -> Any:
    """Compile `model`, and compare values, strides and types of its outputs with eager torch, without grad."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, **{"dynamic": False, **options})
    with torch.no_grad():
        expected, found = model(*inputs), compiled(*inputs)
    check_alike(found, expected)
    return compiled


def check_alike(found: Any, expected: Any) -> None:
    for one, other in zip(_each(found), _each(expected), strict=True):
        torch.testing.assert_close(one, other, check_stride=True)


def _each(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)

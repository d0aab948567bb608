"""The model of docs/pytorch.md: `dispatch-profiler capture docs/small_net.py:make_model`."""

import torch
from torch import nn


class SmallNet(nn.Module):
    """Two convolutions with batch norms, the second one with a residual, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32))
        self.body = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """N x 3 x H x W to N x 10."""
        x = torch.relu(self.stem(x))
        x = torch.relu(self.body(x) + x)
        return self.head(x.mean((2, 3)))


def make_model(batch: int = 1) -> tuple[nn.Module, torch.Tensor]:
    """The model and an example input."""
    return SmallNet(), torch.randn(batch, 3, 64, 64)

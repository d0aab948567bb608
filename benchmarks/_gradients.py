"""Gradients of a model, how far they are from those in float64, and a training step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

#: A model -> its loss, a scalar.
Loss = Callable[[Any], Any]
#: Of the gradients' distances: those of eager torch may be exceeded so many times, and at least this is allowed.
TIMES_EAGER, LEAST_ALLOWED = 3, 1e-3


def training_step(model: Any, loss: Loss) -> Callable[[], None]:
    """Forward, backward, and an update of the parameters."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def gradients(model: Any, loss: Loss) -> dict[str, Any]:
    """Of each parameter that has one, after one forward and backward; statistics of batch norms are as before."""
    saved = copy.deepcopy(dict(model.named_buffers()))
    loss(model).backward()
    found = {
        name.removeprefix("_orig_mod."): each.grad
        for name, each in model.named_parameters()
        if each.grad is not None
    }
    model.zero_grad()
    for name, buffer in model.named_buffers():
        buffer.copy_(saved[name])
    return found


def distances(found: Mapping[str, Any], exact: Mapping[str, Any]) -> dict[str, float]:
    """How far each gradient is from the one in float64.

    The distance is the norm of the difference over that of the gradient, or over a thousandth of the largest one: some
    gradients are 0 but for roundings, such as those of a bias in front of a batch norm, and must not decide what is
    allowed. (The smallest of ResNet-18 is 0.0022 of its largest.)
    """
    least = 1e-3 * max(float(each.norm()) for each in exact.values())
    return {
        name: float((found[name].double() - expected).norm() / expected.norm().clamp_min(least))
        for name, expected in exact.items()
    }


def allowed_distance(eager: Mapping[str, float]) -> float:
    """The largest distance that is allowed beside those of eager torch.

    A rounding that takes a relu to its other side changes the gradients of all layers before it by some tenths of a
    percent; which layer that is differs from side to side (inductor alone is off by 0.4 % in the layers where eager torch
    is not). So what is allowed is three times the largest distance of eager torch among all gradients.
    """
    return max(LEAST_ALLOWED, TIMES_EAGER * max(eager.values()))

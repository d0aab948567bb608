"""Training steps of the models of benchmarks/zoo.py: torch, inductor, and our backend without and with backward kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._gradients import Loss
from benchmarks._model_timing import BACKEND

#: Models of the comparison by name.
TRAINED = ("torchvision:resnet18", "torchvision:mobilenet_v3_large", "transformers:bert:4")
EAGER, INDUCTOR = "eager step", "inductor step"
OURS, BACKWARD = "our step", "our step with backward kernels"
#: Compiles a model.
Compile = Callable[[nn.Module], Any]


def training_sides() -> Mapping[str, tuple[Compile, Mapping[str, str]]]:
    """Each side by its name, with the environment in which its first step compiles the forward and the backward."""
    return {
        EAGER: (lambda model: model, {}),
        INDUCTOR: (lambda model: torch.compile(model, dynamic=False), {}),
        OURS: (_compiled, {"BOO_USE_BACKWARD_KERNELS": "0"}),
        BACKWARD: (_compiled, {"BOO_USE_BACKWARD_KERNELS": "1"}),
    }


def _compiled(model: nn.Module) -> Any:
    """The model, compiled by a new backend: Dynamo would reuse the graph of another copy if their backends were equal."""
    from torch._dynamo.backends.registry import lookup_backend

    ours: Any = lookup_backend(BACKEND)

    def backend(module: Any, inputs: Sequence[Any], **options: Any) -> Any:
        return ours(module, inputs, **options)

    return torch.compile(model, dynamic=False, backend=backend)


def trainable(model: nn.Module) -> nn.Module:
    """The model in training mode, without dropout: each side would draw other elements."""
    model = model.train()
    for module in model.modules():
        is_dropout = "drop" in type(module).__name__.lower() or type(module).__name__ == "StochasticDepth"
        for owner in filter(None, (module, getattr(module, "config", None))):
            for name, value in list(vars(owner).items()):
                if isinstance(value, float) and ("drop" in name or (is_dropout and name == "p")):
                    setattr(owner, name, 0.0)
    return model


def squared_error(model: nn.Module, x: Tensor) -> Loss:
    """The mean squared error of a model's output for `x`, to fixed random numbers; for models of any type."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        target = torch.randn_like(copy.deepcopy(model).eval()(x))

    def loss(model: Any) -> Tensor:
        type_ = next(model.parameters()).dtype
        result = model(x.to(type_) if x.is_floating_point() else x)
        return (result - target.to(type_)).square().mean()

    return loss

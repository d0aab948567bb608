"""Models as graphs for packages: arguments and results of any structure, and what cannot be exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from exported_models import sample
from torch import nn

from dispatch_profiler import UsageError
from dispatch_profiler.boo.model_export.traced_model import ReplacedModel, traced


def model_of(function: Callable[..., Any], **buffers: torch.Tensor) -> nn.Module:
    """A model that computes `function(model, ...)`."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in buffers.items():
                self.register_buffer(name, tensor)

        def forward(self, *inputs: Any) -> Any:
            return function(self, *inputs)

    return Made().eval()


def test_the_graph_takes_weights_and_tensors_and_the_model_its_own_arguments():
    model, inputs = sample()
    of = traced(model, inputs)
    assert len(of.weights) == len(list(model.parameters())) + len(list(model.buffers()))
    assert [each.shape for each in of.tensors] == [each.shape for each in inputs.values()]

    replaced = ReplacedModel(lambda *tensors: of.module(*of.weights, *tensors), of)
    with torch.no_grad():
        found, expected = replaced(**inputs), model(**inputs)

    assert list(found) == list(expected)
    assert (found["count"], found["nothing"]) == (3, None)
    assert torch.equal(found["x"], inputs["x"])
    torch.testing.assert_close(found["classes"], expected["classes"])


def test_weights_may_be_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens))

    model, tokens = Tied().eval(), torch.tensor([[1, 4]])
    of = traced(model, tokens)

    with torch.no_grad():
        (found,) = of.module(*of.weights, tokens)
        torch.testing.assert_close(found, model(tokens))


def test_arguments_that_are_no_tensors_are_constants():
    x, y, z = (torch.rand(3) for _ in range(3))
    of = traced(model_of(lambda self, pair, factor: (pair[0] * factor, [pair[1] + 1])), ((x, y), 2.0))

    twice, (more,) = ReplacedModel(of.module, of)((z, y), 2.0)

    torch.testing.assert_close(twice, 2 * z)
    torch.testing.assert_close(more, y + 1)


def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls.add_(1)
    return x + self.calls


def in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


def branching(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            model_of(counting, calls=torch.zeros(1)),
            "the model writes to calls: only models that change nothing",
        ),
        (model_of(in_place), "the model writes to .*: only models that change nothing"),
        (model_of(branching), "torch.export cannot export the model: "),
        (nn.BatchNorm1d(3), "the model is in training mode"),
        (torch.relu, "expected a model, a torch.nn.Module, but got"),
        (nn.Linear(3, 3, device="meta").eval(), "are on meta: the kernels of a package are for CPUs"),
    ],
)
def test_what_cannot_be_exported_is_a_usage_error(model: Any, message: str):
    with pytest.raises(UsageError, match=message):
        traced(model, torch.rand(2, 3))

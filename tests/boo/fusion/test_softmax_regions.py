"""Regions of a softmax: which nodes they take in, and what a compiled model computes with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.backends.explaining import explain
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS, FusionRule, FusionSchema
from dispatch_profiler.operations import Softmax

SOFTMAX = FusionSchema((FusionRule("softmax"),))
X = torch.randn(2, 3, 5)


@pytest.mark.parametrize(
    ("function", "scales"),
    [
        (lambda x: x.softmax(-1), [1.0]),
        (lambda x: x.softmax(2), [1.0]),
        (lambda x: (x * 0.25).softmax(-1), [0.25]),
        (lambda x: (x / 8).softmax(-1), [0.125]),
        # A softmax is the same for every distance from the maximum only if the factor is positive.
        (lambda x: (x * -1.0).softmax(-1), [1.0]),
        (lambda x: (x * x).softmax(-1), [1.0]),
        (lambda x: (x[0, :, :1] * x).softmax(-1), [1.0]),
        # The product is read elsewhere, too.
        (lambda x: (lambda y: y.softmax(-1) + y)(x * 0.25), [1.0]),
        (lambda x: x.softmax(1), []),
        (lambda x: x.softmax(-1, dtype=torch.float64), [1.0]),
        (lambda x: x.log_softmax(-1), []),
    ],
)
def test_a_softmax_takes_in_the_factor_before_it(function: Callable[..., Any], scales: list[float]) -> None:
    graph = inference_graph(function, X).graph
    regions, _ = find_regions(graph, SOFTMAX)
    operations = [region.spec.operation for region in regions]
    types = [region.spec.operation.element_type.name for region in regions]
    assert operations == [Softmax(6, 5, type_, scale) for type_, scale in zip(types, scales, strict=True)]


def test_it_is_no_rule_of_the_default() -> None:
    """inductor fuses it with what surrounds it, and attention is computed whole."""
    regions, _ = find_regions(
        inference_graph(lambda x: x.softmax(-1), X).graph, DEFAULT_SUPPORTED_BOO_FUSIONS
    )
    assert regions == []


class Attention(torch.nn.Module):
    """Spelled out, as in older models."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_and_its_gradient(dtype: torch.dtype) -> None:
    """Against the same in float64."""
    exact = [torch.randn(2, 3, 8, 16).to(dtype).double().requires_grad_() for _ in range(3)]
    own = [each.detach().to(dtype).requires_grad_() for each in exact]
    model = Attention()
    schema = DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules([FusionRule("softmax")])
    compiled = torch.compile(model, backend=backend(fusion_schema=schema, strict=True))
    tolerance = 1e-5 if dtype is torch.float32 else 5e-2

    results = compiled(*own), model(*exact)
    gradients = [torch.autograd.grad(y.sum(), of) for y, of in zip(results, (own, exact), strict=True)]

    assert results[0].dtype is dtype
    for ours, theirs in zip((results[0], *gradients[0]), (results[1], *gradients[1]), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    with torch.no_grad():  # without gradients, the whole of it is one operator
        report = explain(torch.nn.Softmax(-1), own[:1], backend=backend(fusion_schema=schema), measure=None)
    assert [each.root for each in report.regions] == ["softmax"]

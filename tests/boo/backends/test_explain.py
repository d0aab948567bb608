"""`explain` lists what is fused, what is not and why, and how fast it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_models import Block
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import explain
from dispatch_profiler.boo.backends.measuring import in_turns, region_seconds
from dispatch_profiler.boo.fusion.matching import find_regions
from dispatch_profiler.boo.fusion.schema import BACKWARD_FUSIONS, DEFAULT_SUPPORTED_BOO_FUSIONS


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.weight = Block(), nn.Parameter(torch.ones(6))

    def forward(self, x: Any) -> Any:
        y = self.block(x)
        return functional.layer_norm(y * y.exp(), [6], self.weight)


def times(*seconds: float) -> Any:
    """A measurement that takes these times, and calls both sides once."""

    def measure(ours: Any, theirs: Any) -> tuple[float, float]:
        ours(), theirs()
        return seconds[0] * 8, seconds[1] * 8

    return measure


def test_regions_in_the_order_of_the_model() -> None:
    with torch.no_grad():
        found = explain(Model().eval(), [torch.randn(2, 8, 6, 6)], measure=times(1e-3, 3e-3))
    first, second, third = found.regions
    assert [each.is_fused for each in found.regions] == [True, True, False]
    assert first.graph == "inference"
    assert second.operation is not None
    assert str(second.operation.as_contraction().epilogue) == "bias+scale_shift+residual+relu"
    assert second.speedup == pytest.approx(3)
    assert "2 nodes" in second.reason
    assert "without a bias" in third.reason
    assert first.configuration.startswith("tile_config")
    assert sum(found.operations.values()) == 2
    text = str(found)
    assert text.startswith("2 of 3 regions are fused")
    assert "3.00x" in text
    assert "without a bias" in text
    with pytest.raises(AttributeError):
        found.regions = ()  # type: ignore[misc]


def test_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", "1")
    model = nn.Conv2d(3, 4, 3)
    found = explain(model, [torch.randn(1, 3, 6, 6, requires_grad=True)], measure=None)
    assert [each.graph for each in found.regions] == ["forward", "backward", "backward"]
    assert all(each.is_fused and each.speedup is None for each in found.regions)
    assert model.weight.grad is None


def test_both_sides_of_a_measurement_compute_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    from aot_graphs import inference_graph

    weight = torch.randn(4, 3, 3, 3)
    graph = inference_graph(lambda x: functional.conv2d(x, weight).relu(), torch.randn(1, 3, 6, 6)).graph
    ((region,), _) = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules(BACKWARD_FUSIONS))
    results = []

    def measure(ours: Any, theirs: Any) -> tuple[float, float]:
        results.append(ours()[0])
        theirs()
        return 8.0, 16.0

    nested: list[Any] = []

    def compile_nested(module: Any, inputs: Any) -> Any:
        nested.append(module(*inputs)[0])
        return module.forward

    assert region_seconds(region, measure, compile_nested) == (1.0, 2.0)
    torch.testing.assert_close(results[0], nested[0])


def test_measurements_are_medians_of_calls_in_turns() -> None:
    calls: list[str] = []
    ours, theirs = in_turns(lambda: calls.append("ours"), lambda: calls.append("theirs"))
    assert ours > 0 < theirs
    assert calls[:2] == ["ours", "theirs"]
    assert calls[2:6] == ["ours", "ours", "theirs", "theirs"]

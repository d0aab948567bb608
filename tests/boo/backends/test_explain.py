"""`explain` lists what is fused, what is not and why, and how fast it is."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import torch
from compiled_models import Block, check_equals_eager
from test_autotune import Mixed, tuned
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import Backend, backend, explain, graph_choice, iree_boo, measuring
from dispatch_profiler.boo.backends.measuring import in_turns, region_seconds
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.schema import (
    BACKWARD_FUSIONS,
    BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
    DEFAULT_SUPPORTED_BOO_FUSIONS,
)
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.errors import UsageError

#: The setting's name, which was another one in torch 2.6.
RECOMPILE_LIMIT = (
    "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.weight = Block(), nn.Parameter(torch.ones(6))

    def forward(self, x: Any) -> Any:
        y = self.block(x)
        return functional.layer_norm((y * y.exp()).bfloat16(), [6], self.weight)


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
    assert "types differ" in third.reason
    assert first.configuration.startswith("tile_config")
    assert sum(found.operations.values()) == 2
    text = str(found)
    assert text.startswith("2 of 3 regions are fused")
    assert "3.00x" in text
    assert "types differ" in text
    with pytest.raises(AttributeError):
        found.regions = ()  # type: ignore[misc]


@pytest.mark.parametrize("named", ["iree_boo", iree_boo, "dispatch_profiler_boo", backend()])
def test_a_backend_may_be_named_as_for_torch_compile(named: Any) -> None:
    """Before, a name was an AttributeError."""
    with torch.no_grad():
        found = explain(Model().eval(), [torch.randn(2, 8, 6, 6)], backend=named, measure=None)
    assert [each.is_fused for each in found.regions] == [True, True, False]


@pytest.mark.parametrize("named", ["iree_bo", "inductor", 3, None])
def test_another_backend_is_an_error_that_names_ours(named: Any) -> None:
    with pytest.raises(UsageError, match="unknown backend") as caught:
        explain(Model().eval(), [torch.randn(2, 8, 6, 6)], backend=named, measure=None)
    assert caught.value.hint and "iree_boo" in caught.value.hint


@pytest.mark.slow
@pytest.mark.usefixtures("backward_kernels")
def test_forward_and_backward() -> None:
    model = nn.Conv2d(3, 4, 3)
    found = explain(model, [torch.randn(1, 3, 6, 6, requires_grad=True)], measure=None)
    assert [each.graph for each in found.regions] == ["forward", "backward", "backward"]
    assert all(each.is_fused and each.speedup is None for each in found.regions)
    assert model.weight.grad is None


@pytest.mark.usefixtures("backward_kernels")
def test_gradients_that_are_slower_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOO_CACHE_ON", "0")
    slower = Backend(None, DEFAULT_SUPPORTED_BOO_FUSIONS, measure_region=lambda ours, theirs: (2.0, 1.0))
    inputs = [torch.randn(1, 3, 6, 6, requires_grad=True)]
    found = explain(nn.Conv2d(3, 4, 3), inputs, backend=slower, measure=times(1e-3, 3e-3))
    assert [each.is_fused for each in found.regions] == [True, False, False]
    assert all(each.reason.startswith("torch is faster: ") for each in found.regions[1:])


@pytest.mark.slow
@torch._dynamo.config.patch(**{RECOMPILE_LIMIT: 2})
def test_the_model_and_the_process_are_as_before() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    before, state = [each.clone() for each in model.buffers()], torch.get_rng_state()
    torch._dynamo.reset()
    # More often than torch compiles a function again.
    for batch in range(2, 2 + 2 + 1):
        assert explain(model, [torch.ones(batch, 3, 6, 6)], measure=None).regions
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(model.buffers(), before, strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_expanded_inputs() -> None:
    convolution, shift = nn.Conv2d(3, 8, 1), nn.Parameter(torch.randn(8, 1, 1))
    with torch.no_grad():
        found = explain(
            lambda x: (convolution(x) + shift.expand(2, 8, 6, 6)).relu(), [torch.randn(2, 3, 6, 6)]
        )
    assert found.regions[0].speedup


@pytest.mark.slow
def test_frozen_weights_are_packed_once_for_each_copy_in_inference_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packs, pack = [], PackedLaunch.pack
    monkeypatch.setattr(PackedLaunch, "pack", lambda self, weight: (packs.append(1), pack(self, weight))[1])
    model = nn.Linear(64, 64).eval()
    with torch.inference_mode():
        found = explain(model, [torch.randn(64, 64)], backend=backend(None, BOO_FUSIONS_WITH_MATRIX_PRODUCTS))
    assert found.regions[0].speedup
    assert found.regions[0].frozen_seconds
    assert len(packs) == measuring.COPIES


@pytest.mark.parametrize(
    ("best", "chosen", "roots"),
    [
        pytest.param(0, "alone", [], marks=pytest.mark.slow),
        (3, "fused", ["conv2d", "conv2d", "layer"]),
    ],
)
def test_what_autotune_chose(
    monkeypatch: pytest.MonkeyPatch, best: int, chosen: str, roots: list[str]
) -> None:
    monkeypatch.setattr(graph_choice, "NOTE", uuid.uuid4().hex)
    model, x = Mixed().eval(), torch.randn(2, 8, 6, 6)
    made, measure = tuned(best)
    with torch.no_grad():
        found = explain(model, [x], backend=made, measure=None)
    (choice,) = found.choices
    assert (choice.graph, choice.chosen) == ("inference", chosen)
    assert choice.relative["alone"] == 1
    assert choice.relative["fused"] == pytest.approx(0.5 if best else 2)
    fused = [each.operation.name.partition("_")[0] for each in found.regions if each.operation]
    assert [each for each in fused if each != "glue"] == roots
    assert f"{chosen} is the fastest; times relative to the nested backend: {chosen} " in str(found)
    # The decision is that of torch.compile, which does not measure again, and neither does this.
    check_equals_eager(model, made, x)
    with torch.no_grad():
        assert explain(model, [x], backend=made, measure=None) == found
    assert measure.counts == [5]


def test_what_autotune_chose_for_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_choice, "NOTE", uuid.uuid4().hex)
    found = explain(nn.Conv2d(3, 4, 3), [torch.randn(1, 3, 6, 6)], backend=tuned(1)[0], measure=None)
    assert [each.graph for each in found.choices] == ["forward"]
    assert [each.graph for each in found.regions] == ["forward"]


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

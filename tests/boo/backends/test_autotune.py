"""With `autotune`, the fastest of several ways to compute a graph is used, which is measured once."""

from __future__ import annotations

import gc
import logging
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from compiled_models import Block, check_alike, check_equals_eager
from torch import nn

from dispatch_profiler.boo.backends import backend, graph_choice
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS


class Times:
    """A measurement that finds the given candidate the fastest, and counts."""

    def __init__(self, best: int) -> None:
        self.best = best
        self.counts: list[int] = []
        self.results: list[Any] = []

    def __call__(self, functions: Sequence[Callable[[], Any]]) -> list[list[float]]:
        self.results.append([function() for function in functions])
        self.counts.append(len(functions))
        return [[1.0] if at == self.best else [2.0] for at in range(len(functions))]


class Mixed(nn.Module):
    """Convolutions, a layer norm and a linear layer: each candidate has other regions."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.linear = Block(), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(self.norm(self.block(x).permute(0, 2, 3, 1)))


@pytest.fixture(autouse=True)
def _own_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions of other tests are not seen, whose kernels are used, also by other processes at the same time."""
    monkeypatch.setattr(graph_choice, "NOTE", uuid.uuid4().hex)


def tuned(best: int, nested: Any = None, **options: Any) -> tuple[Any, Times]:
    measure = Times(best)
    return replace(backend(nested, autotune=True, **options), measure=measure), measure


def roots_of(launched: list[str], model: nn.Module, made: Any, x: torch.Tensor) -> list[str]:
    """The roots of the regions that one call launches."""
    compiled = check_equals_eager(model, made, x)
    launched.clear()
    with torch.no_grad():
        compiled(x)
    return [name.partition("_")[0] for name in launched]


@pytest.mark.some(2)
@pytest.mark.parametrize("nested", [None, pytest.param("aot_eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("best", "regions"),
    [
        (0, []),
        (1, ["conv2d", "conv2d"]),
        (2, ["conv2d", "conv2d", "matmul"]),
        (3, ["conv2d", "conv2d", "layer"]),
        (4, ["conv2d", "conv2d", "layer", "matmul"]),
    ],
)
def test_the_fastest_candidate_is_used_and_measured_once(
    launched: list[str], nested: str | None, best: int, regions: list[str]
) -> None:
    model, x = Mixed().eval(), torch.randn(2, 8, 6, 6)
    made, measure = tuned(best, nested)
    assert roots_of(launched, model, made, x) == regions
    assert measure.counts == [5]
    # Another backend, as in another process, finds the decision in the cache.
    other, again = tuned((best + 1) % 5, nested)
    assert roots_of(launched, model, other, x) == regions
    assert again.counts == []


def test_all_candidates_compute_the_same_on_the_inputs_of_the_model() -> None:
    model, x = Mixed().eval(), torch.randn(2, 8, 6, 6)
    made, measure = tuned(0)
    check_equals_eager(model, made, x)
    with torch.no_grad():
        expected = model(x)
    for (found,) in measure.results[0]:
        torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_another_shape_thread_count_or_schema_is_another_decision() -> None:
    model = Mixed().eval()
    made, measure = tuned(0)
    check_equals_eager(model, made, torch.randn(2, 8, 6, 6))
    check_equals_eager(model, made, torch.randn(3, 8, 6, 6))
    assert measure.counts == [5, 5]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        check_equals_eager(model, made, torch.randn(2, 8, 6, 6))
    finally:
        torch.set_num_threads(threads)
    narrow = replace(made, schema=replace(made.schema, rules=made.schema.rules[:1]))
    check_equals_eager(model, narrow, torch.randn(2, 8, 6, 6))
    assert measure.counts == [5, 5, 5, 3]
    check_equals_eager(model, made, torch.randn(2, 8, 6, 6))
    assert len(measure.counts) == 4


@pytest.mark.slow
def test_decisions_last_as_long_as_the_backend_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOO_CACHE_ON", "0")
    model, x = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU()).eval(), torch.randn(2, 3, 4, 4)
    made, measure = tuned(1)
    check_equals_eager(model, made, x)
    check_equals_eager(model, made, x)
    assert measure.counts == [2]


@pytest.mark.parametrize(
    "note", ["", "fused", "[]", '{"fused": 1}', '{"chosen": "fused", "alone": "x"}', "3"]
)
def test_a_damaged_note_is_no_decision(note: str) -> None:
    assert graph_choice.Decision.of(note) is None
    decision = graph_choice.Decision("fused", {"alone": 1.0, "fused": 0.5})
    assert graph_choice.Decision.of(decision.note) == decision


@pytest.mark.slow
def test_options_of_torch_compile_turn_it_on() -> None:
    model, x = Mixed().eval(), torch.randn(2, 8, 6, 6)
    measure = Times(0)
    check_equals_eager(model, replace(backend(), measure=measure), x, options={"autotune": True})
    assert measure.counts == [5]
    check_equals_eager(
        model, replace(backend(autotune=True), measure=measure), x, options={"autotune": False}
    )
    assert measure.counts == [5]

    seen: list[Any] = []

    def nested(module: Any, example_inputs: Any, **options: Any) -> Any:
        seen.append(options)
        return module.forward

    check_equals_eager(model, replace(backend(nested), measure=measure), x, mode="max-autotune")
    assert measure.counts == [5, 5] and seen == [{"mode": "max-autotune"}] * 5
    torch._dynamo.reset()
    with pytest.raises(Exception, match="the option autotune must be 'quick', True or False, but got 3"):
        torch.compile(model, backend=backend(), options={"autotune": 3})(x)


@pytest.mark.slow
@pytest.mark.parametrize("best", [0, 3])
def test_a_training_step(best: int) -> None:
    """The graphs of forward and backward are decided each for itself."""
    from test_training import check_step

    made, measure = tuned(best)
    check_step(Mixed().train(), made, torch.randn(2, 8, 6, 6))
    assert len(measure.counts) >= 1


@pytest.mark.slow
def test_nothing_is_left_of_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random states, threads, modes, and the tensors that were measured."""
    seen: list[Any] = []
    sampled = graph_choice.samples

    def note(*arguments: Any) -> Any:
        found = sampled(*arguments)
        seen.extend(map(weakref.ref, found))
        return found

    monkeypatch.setattr(graph_choice, "samples", note)
    model, x = nn.Sequential(Mixed(), nn.Dropout(0.5)).eval(), torch.randn(2, 8, 6, 6)
    made = backend(autotune=True)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    compiled = torch.compile(model, backend=made, dynamic=False)
    with torch.inference_mode():
        check_alike(compiled(x), model(x))
        assert torch.is_inference_mode_enabled()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert torch._guards.TracingContext.try_get() is None
    assert isinstance(torch.ones(1), torch.Tensor) and type(torch.ones(1)) is torch.Tensor
    gc.collect()
    assert seen and all(each() is None for each in seen)


def test_dropout_in_a_measurement_draws_no_numbers_of_the_program() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Dropout(0.5)).train()
    x = torch.ones(2, 3, 4, 4)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=tuned(0)[0], dynamic=False)
    found = []
    with torch.no_grad():
        for function in (compiled, model):
            torch.manual_seed(5)
            found.append(function(x))
    check_alike(found[0], found[1])
    assert (found[0] == 0).any()


# -- what fails ------------------------------------------------------------------------------------


def test_an_error_of_the_nested_backend_is_that_of_torch() -> None:
    def broken(module: Any, example_inputs: Any) -> Any:
        raise ZeroDivisionError("planted")

    made, measure = tuned(0, broken)
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="planted"):
        torch.compile(Mixed().eval(), backend=made)(torch.randn(2, 8, 6, 6))
    assert measure.counts == []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["compiled", "called"])
def test_a_candidate_that_fails_is_passed_over(caplog: pytest.LogCaptureFixture, when: str) -> None:
    def fail(*inputs: Any) -> Any:
        raise ZeroDivisionError("planted")

    def nested(module: Any, example_inputs: Any) -> Any:
        if any("regions" in str(node.target) for node in module.graph.nodes):
            return fail() if when == "compiled" else fail
        return module.forward

    made, measure = tuned(0, nested)
    check_equals_eager(Mixed().eval(), made, torch.randn(2, 8, 6, 6))
    # Where no candidate compiles, nothing is to be measured.
    assert measure.counts == ([] if when == "compiled" else [1])
    assert "planted" in caplog.text
    torch._dynamo.reset()
    strict, _ = tuned(0, nested, strict=True)
    with torch.no_grad(), pytest.raises(Exception, match="planted"):
        torch.compile(Mixed().eval(), backend=strict, dynamic=False)(torch.randn(2, 8, 6, 6))


def test_a_measurement_that_fails_leaves_the_graph_to_torch(
    caplog: pytest.LogCaptureFixture, launched: list[str]
) -> None:
    def fail(functions: Any) -> Any:
        raise ZeroDivisionError("planted")

    made = replace(backend(autotune=True), measure=fail)
    assert roots_of(launched, Mixed().eval(), made, torch.randn(2, 8, 6, 6)) == []
    assert "planted" in caplog.text


def test_a_library_that_cannot_be_read_leaves_the_graph_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "no/such/library")
    made, measure = tuned(1)
    check_equals_eager(Mixed().eval(), made, torch.randn(2, 8, 6, 6))
    assert measure.counts == [] and "no/such/library" in caplog.text
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match="no/such/library"):
        torch.compile(Mixed().eval(), backend=tuned(1, strict=True)[0])(torch.randn(2, 8, 6, 6))


def test_dynamic_shapes_are_not_measured() -> None:
    model = Mixed().eval()
    made, measure = tuned(4)
    compiled = torch.compile(model, backend=made, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3):
            x = torch.randn(batch, 8, 6, 6)
            check_alike(compiled(x), model(x))
    assert measure.counts == []


def test_decisions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dispatch_profiler.boo"):
        check_equals_eager(Mixed().eval(), tuned(3)[0], torch.randn(2, 8, 6, 6))
    assert "fused is the fastest with eager" in caplog.text


def test_the_given_schema_is_among_the_candidates() -> None:
    every = list(graph_choice.candidates(DEFAULT_SUPPORTED_BOO_FUSIONS))
    assert every[0].schema.rules == ()
    assert DEFAULT_SUPPORTED_BOO_FUSIONS in [each.schema for each in every]

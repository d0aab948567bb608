"""The measured guard: regions that torch computes faster are left to torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from compiled_models import check_alike
from torch import nn

from dispatch_profiler.boo.backends import backend, explain, graph_kernels
from dispatch_profiler.boo.backends.graph_kernels import RegionTimes
from dispatch_profiler.boo.backends.measuring import borders_of
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _guarded(_nothing_is_measured: None, cache_of_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it, with a cache of the test: notes are kept in it."""
    monkeypatch.delenv("BOO_AUTOTUNE")


def fused_wins(functions: Sequence[Callable[[], Any]]) -> list[list[float]]:
    """A measurement of graphs: the last way to compute one is the fastest."""
    for each in functions:
        each()
    return [[float(len(functions) - at)] for at in range(len(functions))]


def torch_wins(functions: Sequence[Callable[[], Any]]) -> list[list[float]]:
    """As `fused_wins`, but the first way is the fastest: the nested backend alone."""
    return [[1.0 + at] for at in range(len(functions))]


def guarded(measure: Timed, nested: Any = None, graphs: Any = fused_wins, **options: Any) -> Any:
    """The backend, with these measurements."""
    return replace(backend(nested, **options), measure_region=measure, measure_graph=graphs)


class Timed:
    """A measure that says these seconds, and counts how often it is asked."""

    def __init__(self, ours: float, torchs: float) -> None:
        self.seconds, self.count = (ours, torchs), 0

    def __call__(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
        self.count += 1
        for each in (ours, theirs):
            each()
        return self.seconds


def convolutions(count: int = 1) -> Any:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU()]
    for _ in range(count - 1):
        layers += [nn.Flatten(2), nn.Unflatten(2, (6, 6)), nn.Conv2d(8, 8, 1), nn.Sigmoid()]
    return nn.Sequential(*layers).eval()


def launches(model: Any, made: Any, launched: list[str], x: Any = X, **options: Any) -> int:
    """How many operations of the model are ours. Compiles it anew, and compares it with torch."""
    torch._dynamo.reset()
    fast = torch.compile(model, backend=made, dynamic=False, options=options or None)
    with torch.no_grad():
        check_alike(fast(x), model(x))
        launched.clear()
        check_alike(fast(x), model(x))
    return len(launched)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("seconds", "is_ours"),
    [((1.0, 2.0), True), ((1.09, 1.0), True), ((1.11, 1.0), False), ((50.0, 1.0), False)],
)
def test_a_region_is_left_to_torch_if_our_kernel_is_slower(
    seconds: tuple[float, float], is_ours: bool, launched: list[str]
) -> None:
    measure = Timed(*seconds)
    assert launches(convolutions(), guarded(measure), launched) == is_ours
    assert measure.count == 1


@pytest.mark.slow
def test_a_region_among_others_may_take_as_much_longer_as_a_change_of_threads(launched: list[str]) -> None:
    for difference, ours in ((0.9e-4, 2), (1.1e-4, 0)):
        measure = Timed(1e-5 + difference, 1e-5)
        made = guarded(measure)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BOO_CACHE_ON", "0")
            assert launches(convolutions(2), made, launched) == ours


@pytest.mark.slow
def test_times_are_kept_for_the_machine(launched: list[str]) -> None:
    measure = Timed(1.0, 3.0)
    for _ in range(2):
        assert launches(convolutions(), guarded(measure), launched) == 1
    assert measure.count == 1
    slower = Timed(3.0, 1.0)
    assert launches(convolutions(), guarded(slower), launched) == 1
    assert slower.count == 0


@pytest.mark.some(2)
@pytest.mark.parametrize("how", ["option", "argument", "environment", "strict"])
def test_what_turns_the_guard_off(how: str, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Timed(9.0, 1.0)
    arguments = {"argument": {"autotune": False}, "strict": {"strict": True}}.get(how, {})
    if how == "environment":
        monkeypatch.setenv("BOO_AUTOTUNE", "0")
    options = {"autotune": False} if how == "option" else {}
    made = guarded(measure, **arguments)
    assert launches(convolutions(), made, launched, **options) == 1
    assert measure.count == 0


def test_a_hopeless_region_is_called_twice_and_not_measured(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_kernels, "once", lambda ours, theirs: (5.0, 1.0))
    measure = Timed(1.0, 1.0)
    assert launches(convolutions(), guarded(measure), launched) == 0
    assert measure.count == 0


@pytest.mark.slow
def test_training_is_guarded_too(launched: list[str]) -> None:
    model = convolutions()
    for seconds, ours in (((1.0, 2.0), 1), ((2.0, 1.0), 0)):
        torch._dynamo.reset()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BOO_CACHE_ON", "0")
            fast = torch.compile(model, backend=guarded(Timed(*seconds)), dynamic=False)
            check_alike(fast(X).detach(), model(X).detach())
            launched.clear()
            fast(X).sum().backward()
        assert len(launched) == ours


def test_explain_gives_both_times() -> None:
    made = guarded(Timed(8e-3, 4e-3))
    with torch.no_grad():
        found = explain(convolutions(), [X], backend=made, measure=Timed(8e-3, 4e-3))
    (region,) = found.regions
    assert not region.is_fused
    assert region.reason == "torch is faster: 4000 us, our kernel 8000 us"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own, in inductor
@pytest.mark.parametrize("nested", [None, pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_graph_is_left_to_torch_if_our_regions_make_it_slower(nested: Any, launched: list[str]) -> None:
    """Where each of them alone is fast enough: what is copied between regions takes time, too."""
    for graphs, ours in ((fused_wins, 2), (torch_wins, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BOO_CACHE_ON", "0")
            assert launches(convolutions(2), guarded(Timed(1.0, 2.0), nested, graphs), launched) == ours


@pytest.mark.slow
def test_what_was_measured_of_a_graph_is_kept_for_the_machine(launched: list[str]) -> None:
    assert launches(convolutions(2), guarded(Timed(1.0, 2.0), graphs=torch_wins), launched) == 0
    assert launches(convolutions(2), guarded(Timed(1.0, 2.0), graphs=None), launched) == 0  # cannot be called
    found = explain(
        convolutions(2), [X], backend=guarded(Timed(1.0, 2.0), graphs=None), measure=Timed(1.0, 2.0)
    )
    assert [each.chosen for each in found.choices] == []  # gradients: another graph
    with torch.no_grad():
        found = explain(
            convolutions(2), [X], backend=guarded(Timed(1.0, 2.0), graphs=None), measure=Timed(1.0, 2.0)
        )
    assert [each.chosen for each in found.choices] == ["alone"]
    assert {each.reason for each in found.regions} == {"torch computes the whole graph faster"}


def test_what_is_left_to_torch_is_called_without_a_wrapper() -> None:
    calls: list[Any] = []

    def note(module: Any, inputs: Sequence[Any], **options: Any) -> Any:
        calls.append((module, guarded(Timed(1.0, 2.0), graphs=torch_wins)(module, inputs, **options)))
        return calls[-1][1]

    with torch.no_grad():
        check_alike(torch.compile(convolutions(), backend=note)(X), convolutions()(X))
    ((module, function),) = calls
    assert function.__self__ is module


def test_graphs_with_operators_of_others_are_not_computed_twice(launched: list[str]) -> None:
    count: list[int] = []

    @torch.library.custom_op("dispatch_profiler_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        count.append(1)
        return x.clone()

    counted.register_fake(torch.empty_like)
    model = convolutions()
    fast = torch.compile(
        lambda x: counted(model(x)), backend=guarded(Timed(1.0, 2.0), graphs=None), dynamic=False
    )
    with torch.no_grad():
        check_alike(fast(X), model(X))
        assert len(count) == 1
        launched.clear()
        fast(X)
    assert len(launched) == 1


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("layers", "inputs", "results"),
    [
        ([nn.Conv2d(3, 8, 3)], {0}, {0}),
        ([nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.Conv2d(8, 8, 1)], {0}, set()),
        ([nn.Conv2d(3, 8, 3), nn.Flatten(2), nn.Unflatten(2, (6, 6)), nn.Conv2d(8, 8, 1)], {0}, set()),
        ([nn.Conv2d(3, 8, 3), nn.AvgPool2d(2), nn.Conv2d(8, 8, 1)], {0}, set()),
        ([nn.Conv2d(3, 8, 3), nn.GELU(), nn.Unfold(2)], {0}, {0}),
    ],
)
def test_images_are_copied_where_torch_has_other_strides(
    layers: Sequence[Any], inputs: set[int], results: set[int]
) -> None:
    graph = inference_graph(nn.Sequential(*layers), X).graph
    regions = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)[0]
    found = borders_of(regions)
    assert (found[0].inputs, found[0].results) == (inputs, results)
    assert not any(each.inputs for each in found[1:])
    last = graph_of_channels_last(layers)
    assert not any(borders_of(find_regions(last, DEFAULT_SUPPORTED_BOO_FUSIONS)[0]))


def graph_of_channels_last(layers: Sequence[Any]) -> Any:
    model = nn.Sequential(
        *[each for each in layers if not isinstance(each, (nn.Unfold, nn.Flatten, nn.Unflatten))]
    )
    return inference_graph(model, X.to(memory_format=torch.channels_last)).graph


@pytest.mark.parametrize("note", [None, "", "1", "1 2 3", "a b", "nan 1", "-1 2", "inf 1"])
def test_a_damaged_note_is_measured_again(note: str | None) -> None:
    assert RegionTimes.of(note) is None
    assert RegionTimes.of(RegionTimes(1.5e-3, 2e-6).note) == RegionTimes(1.5e-3, 2e-6)

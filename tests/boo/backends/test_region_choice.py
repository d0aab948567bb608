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
from torch.utils._python_dispatch import TorchDispatchMode

from dispatch_profiler.boo.backends import backend, candidate_times, explain, region_kernels
from dispatch_profiler.boo.backends.graph_compiler import GraphCompiler
from dispatch_profiler.boo.backends.measuring import RegionTrial, borders_of
from dispatch_profiler.boo.backends.region_kernels import RegionTimes
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS, FusionRule, FusionSchema
from dispatch_profiler.boo.kernels import variants
from dispatch_profiler.boo.kernels.variants import LaunchTuning, Variant
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.configurations import Default, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime import RunError
from dispatch_profiler.targets import Target

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LAST = X.to(memory_format=torch.channels_last)


@pytest.fixture(autouse=True)
def _guarded(_nothing_is_measured: None, cache_of_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it, with a cache of the test: notes are kept in it. Operations have one kernel, which compiles faster."""
    monkeypatch.delenv("BOO_AUTOTUNE")
    monkeypatch.setattr(variants, "MOST_CANDIDATES", 1)


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
    """How many operations of the model are ours, besides what connects them. Compiles it anew, and compares it with torch."""
    torch._dynamo.reset()
    fast = torch.compile(model, backend=made, dynamic=False, options=options or None)
    with torch.no_grad():
        check_alike(fast(x), model(x))
        launched.clear()
        check_alike(fast(x), model(x))
    return sum(not each.startswith("program_") for each in launched)


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


@pytest.mark.parametrize(("second", "is_ours"), [((0.9e-3, 1e-3), True), ((1.3e-3, 1.1e-3), False)])
def test_a_region_is_measured_again_before_it_is_left_to_torch(
    second: tuple[float, float], is_ours: bool, launched: list[str]
) -> None:
    """The shorter times of both sides count."""
    taken = iter([(2e-3, 1.0e-3), second])

    def measure(*functions: Callable[[], Any]) -> tuple[float, float]:
        return next(taken)

    made = replace(backend(), measure_region=measure, measure_graph=fused_wins)
    assert launches(convolutions(), made, launched) == is_ours
    assert next(taken, None) is None


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


@pytest.mark.parametrize(("seconds", "ours"), [((5.0, 1.0), 0), ((1.0, 5.0), 1)])
def test_if_one_side_is_hopeless_both_are_called_twice_and_not_measured(
    seconds: tuple[float, float], ours: int, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_kernels, "once", lambda *_: list(seconds))
    measure = Timed(1.0, 1.0)
    assert launches(convolutions(), guarded(measure), launched) == ours
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


# -- several kernels -------------------------------------------------------------------------------


class Times:
    """A measure that says these seconds for kernels and torch, of any number of kernels, and counts its calls."""

    def __init__(self, *kernels: float, torchs: float = 9.0) -> None:
        self.kernels, self.torchs = kernels, torchs
        #: The number of kernels of each measurement.
        self.counts: list[int] = []

    def __call__(self, *functions: Callable[[], Any]) -> list[float]:
        for each in functions:
            each()
        self.counts.append(len(functions) - 1)
        return [*self.kernels[: len(functions) - 1], self.torchs]


@pytest.fixture
def three_kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernel that is used without a measurement, the compiler's default, and a form. Returns their names."""
    names: list[str] = []

    def candidates(
        self: LaunchTuning, operation: Operation, target: Target, *, packs_weight: bool
    ) -> tuple[Variant, ...]:
        others = (Variant(Dispatch(operation, each)) for each in (Default(), Formed("im2col")))
        every = next(self.variants(operation, target, packs_weight=packs_weight)), *others
        names[:] = [each.label for each in every]
        return every

    monkeypatch.setattr(LaunchTuning, "candidates", candidates)
    return names


def configurations(model: Any = None, **options: Any) -> list[str]:
    """The configurations of the model's kernels in a new process, which measures nothing."""
    SESSION.clear()
    with torch.no_grad():
        found = explain(
            model or convolutions(), [X], backend=backend(autotune=False, **options), measure=None
        )
    return [each.configuration for each in found.regions]


@pytest.mark.parametrize(
    "fastest", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_the_fastest_kernel_is_used_and_measured_once(
    three_kernels: list[str], launched: list[str], fastest: int
) -> None:
    measure = Times(*(1.0 if at == fastest else 2.0 for at in range(3)))
    assert launches(convolutions(), guarded(measure), launched) == 1
    assert measure.counts == [3]
    assert configurations() == [three_kernels[fastest]]
    again = Times()
    for _ in range(2):
        SESSION.clear()
        assert launches(convolutions(), guarded(again), launched) == 1
    assert again.counts == []
    with torch.no_grad():
        found = explain(convolutions(), [X], backend=guarded(again), measure=Timed(1.0, 9.0))
    assert dict(found.regions[0].chosen_from) == pytest.approx(
        {name: 1.0 if at == fastest else 2.0 for at, name in enumerate(three_kernels)}
    )
    assert f"chosen from: {three_kernels[fastest]} 1000000 us, " in str(found)


def test_the_first_kernel_stays_unless_another_is_clearly_faster(
    three_kernels: list[str], launched: list[str]
) -> None:
    assert launches(convolutions(), guarded(Times(1.0, 0.99, 0.995)), launched) == 1
    assert configurations() == [three_kernels[0]]


@pytest.mark.parametrize("fault", ["wrong", "failing"])
def test_a_kernel_that_differs_from_torch_or_fails_never_wins(
    three_kernels: list[str],
    launched: list[str],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even by 1 of 1000 of the largest element. The others are measured."""
    usual = RegionTrial.by_kernel

    made: list[Any] = []

    def spoiled(self: RegionTrial, launch: Any = None) -> Callable[[], Any]:
        if launch not in made:
            made.append(launch)
        call = usual(self, launch)
        if made.index(launch) != 1:
            return call
        if fault == "failing":
            raise RunError("planted")

        def wrong() -> Any:
            results = call()
            results[0].view(-1)[7] += 1e-3 * results[0].abs().max()
            return results

        return wrong

    monkeypatch.setattr(RegionTrial, "by_kernel", spoiled)
    measure = Times(3.0, 2.0)
    assert launches(convolutions(), guarded(measure), launched) == 1
    assert measure.counts == [2]
    assert configurations() == [three_kernels[2]]
    reason = "planted" if fault == "failing" else "its results differ from torch's"
    assert f"tile_config_default: {reason}; this kernel is not used" in caplog.text


def test_a_region_whose_kernels_are_all_wrong_is_left_to_torch(
    three_kernels: list[str], launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = RegionTrial.by_kernel
    monkeypatch.setattr(
        RegionTrial, "by_kernel", lambda self, launch=None: lambda: [-each for each in usual(self, launch)()]
    )
    measure = Times()
    assert launches(convolutions(), guarded(measure), launched) == 0
    assert measure.counts == []


def test_a_region_is_left_to_torch_if_its_fastest_kernel_is_slower(
    three_kernels: list[str], launched: list[str]
) -> None:
    assert launches(convolutions(), guarded(Times(3.0, 2.5, 4.0, torchs=2.0)), launched) == 0


def test_hopeless_kernels_are_called_few_times_and_not_measured(
    three_kernels: list[str], launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter(([1.0, 2.1, 2.2, 1.0], [2.1], [1.9]))  # the third one was interrupted in its first call
    monkeypatch.setattr(candidate_times, "once", lambda *functions: next(taken))
    measure = Times(2.0, 1.0)
    assert launches(convolutions(), guarded(measure), launched) == 1
    assert measure.counts == [2]
    assert configurations() == [three_kernels[2]]


def test_only_kernels_are_measured_if_torch_is_hopeless(
    three_kernels: list[str], launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate_times, "once", lambda *_: [1.0, 1.1, 1.2, 9.0])
    measure = Times(2.0, 1.0, 3.0)
    assert launches(convolutions(), guarded(measure), launched) == 1
    assert measure.counts == [2]  # besides the last function, which usually is torch's
    assert configurations() == [three_kernels[1]]


@pytest.mark.parametrize("options", [{"strict": True}, {"autotune": False}])
def test_without_measurements_the_first_kernel_is_used(
    three_kernels: list[str], launched: list[str], options: Any
) -> None:
    measure = Times(2.0, 1.0, 3.0)
    assert launches(convolutions(), guarded(measure, **options), launched) == 1
    assert measure.counts == []
    assert three_kernels == []


# -- matrix products -------------------------------------------------------------------------------


def linear() -> Any:
    """A linear layer alone, which is not the head of convolutions."""
    torch.manual_seed(0)
    return nn.Linear(16, 8).eval()


ROWS = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("torchs", "ours"), [(2.0, 1), (0.5, 0)])
def test_products_are_ours_if_they_are_faster_than_torch(
    launched: list[str], torchs: float, ours: int
) -> None:
    measure = Timed(1.0, torchs)
    assert launches(linear(), guarded(measure), launched, ROWS) == ours
    assert measure.count == 1


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "options",
    [
        {"autotune": False},
        {"strict": True},
        {"fusion_schema": FusionSchema((FusionRule("convolution"),))},
    ],
    ids=str,
)
def test_products_are_left_to_torch_unless_they_are_measured_with_the_default_schema(
    launched: list[str], options: Any
) -> None:
    measure = Timed(1.0, 2.0)
    assert launches(linear(), guarded(measure, **options), launched, ROWS) == 0
    assert measure.count == 0


@pytest.mark.parametrize(("torchs", "count"), [(1.31, 1), (1.29, 0)])
def test_products_of_a_forward_have_to_save_a_change_of_threads(
    monkeypatch: pytest.MonkeyPatch, launched: list[str], torchs: float, count: int
) -> None:
    """More than others. Times are in milliseconds."""
    monkeypatch.setattr(region_kernels, "is_promising", lambda *_: True)
    model = linear()
    fast = torch.compile(model, backend=guarded(Timed(1e-3, torchs * 1e-3)), dynamic=False)
    check_alike(fast(ROWS).detach(), model(ROWS).detach())
    launched.clear()
    fast(ROWS)
    assert len(launched) == count


@pytest.mark.parametrize(("kernels", "count"), [("0", 0), ("1", 1)], indirect=["kernels"])
def test_products_of_a_backward_are_ours_with_backward_kernels(
    monkeypatch: pytest.MonkeyPatch, launched: list[str], kernels: str, count: int
) -> None:
    """If one is promising: here, the gradient of the input, but not that of the weight."""
    monkeypatch.setattr(
        region_kernels, "is_promising", lambda operation, _: operation.product.lhs_layout == "t"
    )
    fast = torch.compile(linear(), backend=guarded(Timed(1e-3, 2e-3)), dynamic=False)
    for _ in range(2):
        result = fast(ROWS.clone().requires_grad_())
        launched.clear()
        result.sum().backward()
    assert [each.partition("_f32")[0] for each in launched] == ["matmul_4x16x8"] * count


@pytest.mark.parametrize(("ours", "count"), [(1.0, 1), (1.0999, 0)])
def test_regions_between_operators_of_torch_have_to_save_a_change_of_threads(
    launched: list[str], ours: float, count: int
) -> None:
    """Of graphs with gradients: times are in milliseconds."""
    model, measure = nn.Conv2d(3, 8, 3), Timed(ours * 1e-3, 1.15e-3)
    fast = torch.compile(model, backend=guarded(measure), dynamic=False)
    x = torch.randn(1, 3, 8, 8)
    check_alike(fast(x).detach(), model(x).detach())
    launched.clear()
    fast(x)
    assert len(launched) == count


@pytest.mark.parametrize("is_promising", [False, True])
def test_gradients_are_compiled_if_a_kernel_is_promising(
    monkeypatch: pytest.MonkeyPatch, launched: list[str], is_promising: bool
) -> None:
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", "1")
    monkeypatch.setattr(region_kernels, "is_promising", lambda *_: is_promising)
    model, x = nn.Conv2d(3, 8, 3), X.clone().requires_grad_()
    fast = torch.compile(model, backend=guarded(Timed(1e-3, 2e-3)), dynamic=False)
    for _ in range(2):
        launched.clear()
        fast(x).sum().backward()
    assert sum("backward" in each for each in launched) == 2 * is_promising


def test_products_that_no_kernel_computes_are_not_reported(
    launched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """They were not asked for."""
    model = nn.Linear(16, 8).eval().half()
    launches(
        lambda x: torch.addmm(model.bias, x, model.weight.mT, alpha=2),
        guarded(Timed(1.0, 2.0)),
        launched,
        ROWS.half(),
    )
    assert caplog.text.count("torch computes it") == 0


# -- graphs that inductor cannot compute faster ----------------------------------------------------


def ratio_of(ratio: float) -> Any:
    """A measurement of graphs: the last function takes `ratio` times as long as the first one."""

    def measure(functions: Sequence[Callable[[], Any]]) -> list[list[float]]:
        for each in functions:
            each()
        return [[1.0], [ratio]]

    return measure


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that inductor compiles, which eager torch computes here."""
    graphs: list[Any] = []

    def compile_nested(self: Any, module: Any, example_inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    monkeypatch.setattr(GraphCompiler, "compile_nested", compile_nested)
    return graphs


@pytest.mark.parametrize("freeze", [pytest.param(False, marks=pytest.mark.slow), True])
def test_inductor_is_not_compiled_if_it_cannot_win(
    compiled: list[Any], launched: list[str], freeze: bool
) -> None:
    """The decision is kept, and `explain` says why."""
    made = guarded(Timed(1.0, 2.0), "inductor", ratio_of(0.95), freeze=freeze)
    assert launches(convolutions(), made, launched, LAST) == 1
    again = guarded(Timed(1.0, 2.0), "inductor", None, freeze=freeze)  # cannot be called
    assert launches(convolutions(), again, launched, LAST) == 1
    with torch.no_grad():
        found = explain(convolutions(), [LAST], backend=again, measure=Timed(1.0, 2.0))
    assert compiled == []
    assert "fused takes 0.95 times as long as torch's kernels for convolutions and products" in str(found)
    assert all(each.is_fused for each in found.regions)


@pytest.mark.parametrize(("ratio", "ours"), [(0.96, 1), pytest.param(1.5, 0, marks=pytest.mark.slow)])
def test_otherwise_inductor_is_compiled_and_compared(
    compiled: list[Any], launched: list[str], ratio: float, ours: int
) -> None:
    made = guarded(Timed(1.0, 2.0), "inductor", ratio_of(ratio))
    assert launches(convolutions(), made, launched, LAST) == ours
    assert len(compiled) == 1


def test_what_is_left_to_inductor_is_compiled_with_and_without_regions(
    compiled: list[Any], launched: list[str]
) -> None:
    model = nn.Sequential(*convolutions(), nn.FractionalMaxPool2d(2, output_size=3)).eval()
    made = guarded(Timed(1.0, 2.0), "inductor", ratio_of(0.5))
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=made, dynamic=False)(X)
    assert len(compiled) == 2


class Called(TorchDispatchMode):
    """Notes the operators of torch and the kernels that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_region_that_is_apart_is_timed_between_operators_of_torch(is_apart: bool) -> None:
    with torch.no_grad():
        graph = inference_graph(nn.Conv2d(3, 8, 3), LAST).graph
    ((region,), _) = find_regions(graph, FusionSchema((FusionRule("convolution"),)))
    with torch.no_grad():
        trial = RegionTrial(region, is_apart=is_apart)
        by_torch, by_kernel = trial.by_torch(), trial.by_kernel()
        with Called() as called:
            expected = by_torch()
        check_alike(by_kernel()[0], expected[0])
    assert called.names == (["neg_", "convolution", "neg_"] if is_apart else ["convolution"])


def test_a_product_that_is_apart_is_timed_between_products_of_torch() -> None:
    with torch.no_grad():
        graph = inference_graph(linear(), ROWS).graph
        ((region,), _) = find_regions(graph, FusionSchema((FusionRule("matrix_product"),)))
        call = RegionTrial(region, is_apart=True).by_torch()
        with Called() as called:
            call()
    assert [each for each in called.names if each.endswith("mm")] == ["mm", "addmm", "mm"]


@pytest.mark.parametrize("is_inference", [False, True])
def test_regions_of_training_graphs_are_apart(is_inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[bool] = []
    made = RegionTrial.__init__

    def note(self: RegionTrial, *arguments: Any, **options: Any) -> None:
        trials.append(bool(options.get("is_apart")))
        made(self, *arguments, **options)

    monkeypatch.setattr(RegionTrial, "__init__", note)
    torch._dynamo.reset()
    with torch.set_grad_enabled(not is_inference):
        torch.compile(convolutions(), backend=guarded(Timed(1.0, 2.0)), dynamic=False)(X)
    assert any(trials) != is_inference

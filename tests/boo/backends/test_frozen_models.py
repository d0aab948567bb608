"""Compiled models with frozen weights: snapshots until `refreeze`, in regions and in what inductor computes."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from compiled_models import check_alike
from torch import nn

from dispatch_profiler.boo import refreeze
from dispatch_profiler.boo.backends import backend, explain
from dispatch_profiler.boo.backends.inductor import FrozenGraph
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS
from dispatch_profiler.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor
X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Convolutions with a batch norm, and a linear layer, a buffer and an embedding that no region computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.head, self.table = nn.Linear(8, 4), nn.Embedding(5, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x))).cumsum(2).mean((2, 3))
        return self.head(x) + self.offset + self.table(torch.tensor([1, 3])).sum(0)


def change(model: nn.Module) -> None:
    """Change an element of each parameter and buffer, without a new version."""
    for each in (*model.parameters(), *model.buffers()):
        each.data.view(-1)[each.numel() // 2] += 1


def compiled(model: nn.Module, name: str, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend=name, dynamic=False, options=options or None)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["freeze", "freezing"])
def test_a_model_for_inductor_is_a_snapshot_until_refreeze(option: str) -> None:
    model = Net().eval()
    fast = compiled(model, "iree_boo_inductor", **{option: True})
    with torch.no_grad():
        before = model(X)
        check_alike(fast(X), before)
        change(model)
        check_alike(fast(X), before)
        refreeze(model)
        for _ in range(2):
            check_alike(fast(X), model(X))


def test_regions_are_snapshots_and_eager_operators_are_not() -> None:
    model = Net().eval()
    fast = compiled(model, "iree_boo", freeze=True)
    with torch.no_grad():
        check_alike(fast(X), model(X))
        before = fast(X)
        model.first.weight.data[2] += 1
        check_alike(fast(X), before)
        model.table.weight += 1  # two rows of it are added
        check_alike(fast(X), before + 2)
        refreeze()
        check_alike(fast(X), model(X))


def test_refreeze_drops_what_a_parameter_held_before() -> None:
    """An average of weights is evaluated, exchanged for the weights, and changed while these are in place."""
    model = Net().eval()
    fast = compiled(model, "iree_boo", freeze=True)
    trained, average = model.first.weight.data, model.first.weight.data.clone()
    with torch.no_grad():
        model.first.weight.data = average
        fast(X)
        model.first.weight.data = trained
        average.mul_(2)
        refreeze(model)
        model.first.weight.data = average
        check_alike(fast(X), model(X))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iree_boo", "iree_boo_inductor"])
def test_the_environment_freezes_and_an_option_overrides_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOO_FREEZE", "1")
    with torch.no_grad():
        for options, is_frozen in (({}, True), ({"freeze": False}, False)):
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
            fast, before = compiled(model, name, **options), model(X)
            check_alike(fast(X), before)
            change(model)
            check_alike(fast(X), before if is_frozen else model(X))


@pytest.mark.slow
def test_gradients_are_those_of_the_present_weights() -> None:
    model = Net().eval()
    fast = compiled(model, "iree_boo_inductor", freeze=True)
    for _ in range(2):
        change(model)
        found, expected = (
            torch.autograd.grad(each(X).square().sum(), model.first.weight) for each in (fast, model)
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # gradients and `refreeze`, each of which has a test of its own
def test_a_training_step_between_frozen_calls_needs_refreeze_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    fast = compiled(model, "iree_boo_inductor", freeze=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        fast(X).square().sum().backward()
        optimizer.step()
        refreeze(model)
        with torch.no_grad():
            check_alike(fast(X), model(X))


@pytest.mark.slow
def test_equal_layers_that_share_compiled_code_have_snapshots_of_their_own() -> None:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)).eval()
    fast = [
        torch.compile(each, backend="iree_boo_inductor", dynamic=False, options={"freeze": True})
        for each in layers
    ]
    x = torch.randn(2, 8)
    with torch.no_grad():
        for _ in range(2):
            for one, layer in zip(fast, layers, strict=True):
                check_alike(one(x), layer(x))


@pytest.mark.slow
def test_a_buffer_that_the_model_writes_to_is_not_frozen() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 1)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.convolution(x) * self.calls

    for name in ("iree_boo", "iree_boo_inductor"):
        model = Counting().eval()
        other = copy.deepcopy(model)
        fast = compiled(model, name, freeze=True)
        with torch.no_grad():
            for _ in range(3):
                check_alike(fast(X), other(X))
        assert model.calls == 3


@pytest.mark.slow
def test_parameters_that_are_results_are_the_parameters() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.linear(x), self.linear.weight, self.linear.bias + 1

    model = Returning().eval()
    fast = compiled(model, "iree_boo_inductor", freeze=True)
    with torch.no_grad():
        _, weight, _ = fast(torch.randn(2, 4))
    assert weight.data_ptr() == model.linear.weight.data_ptr()


@pytest.mark.slow
def test_arguments_are_not_frozen() -> None:
    w = torch.randn(8, 3, 3, 3)
    for name in ("iree_boo", "iree_boo_inductor"):
        torch._dynamo.reset()
        fast = torch.compile(
            lambda x, w: torch.conv2d(x, w).relu(), backend=name, dynamic=False, options={"freeze": True}
        )
        with torch.no_grad():
            for _ in range(3):
                check_alike(fast(X, w), torch.conv2d(X, w).relu())
                w.numpy()[2] += 1


def test_snapshots_are_freed_with_the_model() -> None:
    SNAPSHOTS.clear()
    model = Net().eval()
    fast = compiled(model, "iree_boo_inductor", freeze=True)
    with torch.no_grad():
        fast(X)
    assert SNAPSHOTS.frozen.weights >= 5
    kept = weakref.ref(model.first.weight.untyped_storage())
    del model, fast
    torch._dynamo.reset()
    gc.collect()
    assert kept() is None
    assert SNAPSHOTS.frozen == (0, 0)


@pytest.mark.slow
def test_inductor_folds_frozen_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that inductor gets has the parameters as constants, and other inputs alone."""
    seen: list[tuple[int, list[str]]] = []
    make = FrozenGraph.with_constants

    def note(self: Any, values: Any) -> Any:
        module = make(self, values)
        nodes = list(module.graph.nodes)
        seen.append(
            (sum(each.op == "placeholder" for each in nodes), [n.target for n in nodes if n.op == "get_attr"])
        )
        return module

    monkeypatch.setattr(FrozenGraph, "with_constants", note)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    fast, x = compiled(model, "iree_boo_inductor", freeze=True), torch.randn(3, 4)
    with torch.no_grad():
        check_alike(fast(x), model(x))
    ((inputs, constants),) = seen
    assert inputs == 1
    assert len(constants) == 4


class LowRank(nn.Module):
    """A linear layer whose weight is a parameter and a product of two, as LoRA has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.up, self.down = (
            nn.Parameter(torch.randn(shape)) for shape in ((8, 6), (8, 2), (2, 6))
        )

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.weight + self.up @ self.down)


@pytest.mark.parametrize("name", ["iree_boo", pytest.param("iree_boo_inductor", marks=pytest.mark.slow)])
def test_what_follows_from_frozen_parameters_is_left_to_the_compiler(name: str) -> None:
    model, x = LowRank().eval(), torch.randn(3, 6)
    nested = "inductor" if name.endswith("inductor") else None
    made = backend(nested, BOO_FUSIONS_WITH_MATRIX_PRODUCTS, freeze=True, autotune=False)
    torch._dynamo.reset()
    fast = torch.compile(model, backend=made, dynamic=False)
    with torch.no_grad():
        (count,) = explain(model, [x], backend=made, measure=None).operations.values()
        assert count == 1
        check_alike(fast(x), model(x))
        change(model)
        refreeze(model)
        check_alike(fast(x), model(x))


def test_explain_says_what_is_frozen_and_what_freezing_would_bring() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)).eval()

    def measure(*sides: Any) -> tuple[float, float]:
        return 2e-3, 4e-3

    with torch.no_grad():
        plain = explain(model, [X], measure=measure)
        frozen = explain(model, [X], backend=backend(freeze=True), measure=None)
    fused = [each for each in plain.regions if each.is_fused]
    assert [each.frozen for each in fused] == [False, False]
    assert all(each.frozen_seconds == each.seconds == 2e-3 for each in fused)
    assert "not frozen: freezing would take 2000 us (1.00x" in str(plain)
    assert [each.frozen for each in frozen.regions if each.is_fused] == [True, True]
    assert str(frozen).count("; frozen") == 2


@pytest.mark.parametrize("given", [1, "yes", None])
def test_invalid_options(given: Any) -> None:
    with pytest.raises(Exception, match="the option freeze must be True or False"):
        compiled(nn.Linear(2, 2), "iree_boo", freeze=given)(torch.randn(1, 2))
    if given is not None:
        with pytest.raises(UsageError, match="freeze must be True or False"):
            backend(freeze=given)

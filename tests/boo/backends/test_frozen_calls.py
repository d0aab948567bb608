"""Frozen models are called without their weights, and notice every change that freezing does not rule out."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("iree.runtime")

from dispatch_profiler.boo import refreeze  # noqa: E402
from dispatch_profiler.boo.backends import backend  # noqa: E402
from dispatch_profiler.boo.backends.frozen_calls import Frame, FrozenCall  # noqa: E402
from dispatch_profiler.errors import UsageError  # noqa: E402


class Net(torch.nn.Module):
    """Two convolutions with batch norms, and a setting that is the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
        self.second = torch.nn.Conv2d(16, 8, 1)
        self.drop = torch.nn.Dropout(0.5)
        self.times = 1
        self.shifts = [0.5]
        self.scales = {"last": 2.0}
        torch.nn.init.uniform_(self.first[1].running_var, 0.5, 2.0)

    def forward(self, x: Any) -> Any:
        result = self.drop(self.second(self.first(x))) * self.times
        for shift in self.shifts:
            result = result + shift
        return result * self.scales["last"] if hasattr(self, "is_scaled") else result


@pytest.fixture(autouse=True)
def _reset():
    yield
    torch.compiler.reset()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of inputs of each call without weights."""
    counts: list[int] = []
    call = FrozenCall.__call__
    monkeypatch.setattr(FrozenCall, "__call__", lambda own, *a: (counts.append(len(a)), call(own, *a))[1])
    return counts


def frozen(model: Any, nested: str | None = None) -> Any:
    chosen = backend(nested_backend=nested, freeze=True, autotune=False)
    return torch.compile(model, backend=chosen, dynamic=False)


def images() -> Any:
    return torch.randn(2, 8, 10, 10)


@torch.inference_mode()
def check(fast: Any, model: Any) -> None:
    x = images()
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nested", [None, "inductor"])
def test_calls_take_no_weights(nested: str | None, given: list[int]):
    model = Net().eval()
    fast = frozen(model, nested)
    for _ in range(3):
        check(fast, model)
    assert given == [1, 1, 1]


def test_a_model_of_torch_alone_takes_no_weights(given: list[int]):
    models = [Net().eval().first, torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3)).eval()]
    fast = [frozen(model) for model in models]
    for one, model in zip(fast * 2, models * 2, strict=True):
        check(one, model)
    assert given == [1] * 4


def test_what_a_program_may_change_is_noticed(given: list[int]):
    model = Net().eval()
    fast = frozen(model)
    check(fast, model)
    model.times = 3
    check(fast, model)
    model.shifts.append(1.5)
    check(fast, model)
    model.is_scaled = True
    check(fast, model)
    model.scales["last"] = 3.0
    check(fast, model)
    model.drop.train()
    with torch.inference_mode():
        x = images()
        assert not torch.allclose(fast(x), model.eval()(x), atol=1e-2)
    check(fast, model)
    assert given and set(given) == {1}


def test_what_a_program_may_change_in_an_inner_module_is_noticed():
    model = Net().eval()
    norm = model.first[1]
    norm.momentum = 0.0  # training changes no weight
    fast = frozen(model)
    check(fast, model)
    norm.train()
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    norm.eval()
    check(fast, model)
    model.times = 2.5
    check(fast, model)
    model.times = True
    check(fast, model)
    del model.times
    with pytest.raises(AttributeError, match="times"), torch.inference_mode():
        fast(x)


class Deep(torch.nn.Module):
    """Nine layers with a batch norm and a setting each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), torch.nn.BatchNorm2d(8)) for _ in range(9)
        )
        for each in self.layers:
            each.register_module("scaled", Scaled())

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Scaled(torch.nn.Module):
    """A module with a setting."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: Any) -> Any:
        return x * self.scale


def test_there_is_one_check_of_the_attributes_of_all_modules(monkeypatch: pytest.MonkeyPatch):
    left: list[list[str]] = []
    remove = Frame.remove_guards

    def counted(own: Any, weights: Any) -> None:
        remove(own, weights)
        guards: Any = torch._guards.TracingContext.get().guards_context.dynamo_guards
        left.append([each.name for each in guards.inner if "self" in each.name])

    monkeypatch.setattr(Frame, "remove_guards", counted)
    model = Deep().eval()
    fast = frozen(model)
    check(fast, model)
    assert left == [["L['self']"] * 2]
    model.layers[5].scaled.scale = 0.5
    check(fast, model)
    assert len(left) == 2


def test_new_weights_have_an_effect_after_a_refreeze():
    model = Net().eval()
    fast = frozen(model)
    check(fast, model)
    with torch.no_grad():
        model.second.weight.mul_(2)
    refreeze(model)
    check(fast, model)
    kept = model.second.weight
    model.second.weight = torch.nn.Parameter(torch.randn_like(kept))
    refreeze(model)
    check(fast, model)
    model.first[1].running_mean = torch.randn(16)
    refreeze()
    check(fast, model)


def test_the_memory_of_a_freed_weight_is_not_read():
    """A replaced weight whose memory is free counts as refrozen: there is nothing else to take."""
    model = Net().eval()
    fast = frozen(model)
    check(fast, model)
    model.second.weight = torch.nn.Parameter(torch.randn(8, 16, 1, 1))
    gc.collect()
    check(fast, model)


def test_a_weight_of_another_shape_is_an_error_that_says_so():
    model = Net().eval()
    fast = frozen(model)
    check(fast, model)
    model.second = torch.nn.Conv2d(16, 4, 1)
    refreeze()
    with pytest.raises(UsageError, match=r"second\.weight of a frozen model was replaced .*\(4, 16, 1, 1\)"):
        check(fast, model)
    torch.compiler.reset()
    check(fast, model)


def test_weights_in_another_memory_format_are_an_error_that_says_so():
    model = Net().eval()
    fast = frozen(model)
    check(fast, model)
    model.to(memory_format=torch.channels_last)
    with pytest.raises(UsageError, match=r"first\.0\.weight .* with strides \(72, 1, 24, 8\)"):
        check(fast, model)
    torch.compiler.reset()
    check(fast, model)


def test_a_model_in_another_type_and_under_autocast_is_compiled_for_it(given: list[int]):
    model, x = Net().eval().first, images()
    fast = frozen(model)
    check(fast, model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x), rtol=0.05, atol=0.05)
    check(fast, model)
    model.to(torch.bfloat16)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x.bfloat16()), model(x.bfloat16()), rtol=0.05, atol=0.05)
    assert set(given) == {1}


def test_a_copy_of_a_model_has_its_own_weights():
    model = Net().eval()
    fast = frozen(model)
    check(fast, model)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    copies = copy.deepcopy(fast), frozen(torch.load(stored, weights_only=False))
    for each in copies:
        own = each._orig_mod
        with torch.no_grad():
            own.second.weight.mul_(2)
        refreeze(own)
        check(each, own)
        check(each, own)
    check(fast, model)


def test_weights_are_freed_with_their_model():
    model = Net().eval()
    fast = frozen(model)
    check(fast, model)
    weight = weakref.ref(model.second.weight)
    del fast, model
    gc.collect()
    assert weight() is None


def test_another_model_of_the_same_class_has_its_own_weights():
    models = [Net().eval() for _ in range(3)]
    fast = [frozen(model) for model in models]
    for one, model in zip(fast * 2, models * 2, strict=True):
        check(one, model)


def test_equal_layers_that_are_compiled_one_by_one_share_a_compiled_form():
    layers = torch.nn.Sequential(*(Net().eval() for _ in range(12)))
    compiled: list[Any] = []
    chosen = backend(freeze=True, autotune=False)

    def counted(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        return chosen(module, inputs)

    x = images()
    with torch.inference_mode():
        for layer in layers:
            fast = torch.compile(layer, backend=counted, dynamic=False)
            torch.testing.assert_close(fast(x), layer(x), rtol=1e-4, atol=1e-5)
    assert len(compiled) == 2


class Counting(torch.nn.Module):
    """A model that replaces a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(8, 8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls = self.calls + 1
        return self.layer(x) * self.calls


def test_buffers_that_a_model_replaces_are_read_in_each_call():
    model, same = Counting().eval(), Counting().eval()
    same.load_state_dict(model.state_dict())
    fast = frozen(model)
    for _ in range(3):
        check(fast, same)


def test_with_gradients_weights_are_not_frozen():
    model = Net().eval()
    fast = frozen(model)
    x = images().requires_grad_()
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            model.second.weight.mul_(2)


def test_a_torch_that_is_organized_differently_passes_the_weights(monkeypatch: pytest.MonkeyPatch):
    def current(module: Any) -> Any:
        raise AttributeError("current_tx")

    monkeypatch.setattr(Frame, "current", current)
    model = Net().eval()
    fast = frozen(model)
    check(fast, model)
    with torch.no_grad():
        model.second.weight.mul_(2)
    refreeze(model)
    check(fast, model)

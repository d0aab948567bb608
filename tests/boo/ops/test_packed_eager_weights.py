"""Eager convolutions without gradients pack the weights of modules: at most once for each version."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from conv_samples import close, conv  # noqa: E402

from dispatch_profiler.boo.launching.packing import PackedLaunch  # noqa: E402
from dispatch_profiler.boo.modeling import BooConv2d  # noqa: E402
from dispatch_profiler.boo.ops import boo_conv, derived, kernel_plans  # noqa: E402
from dispatch_profiler.errors import ToolError  # noqa: E402

PATIENCE = kernel_plans._PATIENCE
X = torch.randn(1, 64, 4, 4, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.usefixtures("plans_of_this_test")


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """References to what was packed."""
    found: list[Any] = []
    pack = PackedLaunch.pack

    def note(self: PackedLaunch, weight: Any) -> Any:
        packed = pack(self, weight)
        found.append(weakref.ref(packed[0]))
        return packed

    monkeypatch.setattr(PackedLaunch, "pack", note)
    return found


def module(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return BooConv2d(64, 64, 1)


def check(*modules: Any, x: Any = X) -> None:
    """The modules compute what torch does."""
    for each in modules:
        assert close(each(x), conv(x, each.weight, each.bias))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_each_version_is_packed_once(mode: Any, packs: list[Any]):
    ours, other = module(), module(1)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    ours.weight.grad = torch.ones_like(ours.weight)
    changes = [lambda: None, optimizer.step, lambda: ours.load_state_dict(other.state_dict())]
    for number, change in enumerate(changes):
        change()
        with mode():
            for call in range(PATIENCE + 2):
                check(ours)
                assert len(packs) == number + (number == 0 or call >= PATIENCE - 1)


def test_a_weight_that_changes_all_the_time_is_packed_once(packs: list[Any]):
    ours = module()
    with torch.no_grad():
        for _ in range(5):
            for _ in range(PATIENCE - 1):
                check(ours)
            ours.weight.mul_(-1.5)
    assert len(packs) == 1


def test_layers_and_copies_have_packed_weights_of_their_own(packs: list[Any]):
    layers = module(), module(1)
    layers = *layers, copy.deepcopy(layers[0])
    with torch.no_grad():
        layers[2].weight.neg_()
        for _ in range(PATIENCE + 1):
            check(*layers)
    assert len(packs) == 3


def test_nothing_is_packed_with_gradients_nor_for_other_tensors(packs: list[Any]):
    ours = module()
    for _ in range(PATIENCE + 1):
        check(ours)
        boo_conv(X, ours.weight.detach(), ours.bias)
    assert not packs
    check(ours.requires_grad_(False))
    assert len(packs) == 1


def test_weights_made_in_inference_mode_are_packed_only_if_pinned(packs: list[Any]):
    with torch.inference_mode():
        ours = module()
        for _ in range(PATIENCE + 1):
            check(ours)
        assert not packs
        derived.pin(ours.weight)
        for _ in range(PATIENCE + 1):
            check(ours)
        assert len(packs) == 1


def test_layouts_and_bytes_that_a_kernel_cannot_read_in_place(packs: list[Any]):
    ours = module()
    weight = torch.nn.Parameter(ours.weight.detach().permute(0, 2, 3, 1).contiguous())
    unaligned = torch.empty(X.numel() + 1)[1:].view(X.shape).copy_(X)
    with torch.no_grad():
        for _ in range(2):
            check(ours, x=torch._neg_view(X))
            check(ours, x=unaligned)
            found = boo_conv(X, weight, ours.bias, kernel_layout="NHWC")
            assert close(found, conv(X, ours.weight, ours.bias))
    assert 1 <= len(packs) <= 2


def test_packed_weights_are_freed_with_the_weight(packs: list[Any]):
    ours = module()
    with torch.no_grad():
        check(ours)
    assert packs[0]() is not None
    del ours
    gc.collect()
    assert packs[0]() is None


def test_what_is_written_behind_the_version_is_noticed(packs: list[Any]):
    ours = module()
    with torch.no_grad():
        check(ours)
        ours.weight.data.mul_(2)
        check(ours)
        ours.weight.data = torch.randn_like(ours.weight)
        check(ours)
        for _ in range(PATIENCE):
            check(ours)
        derived.forget(ours.weight)
        check(ours)


def test_images_larger_than_the_weight_leave_it_as_it_is(packs: list[Any]):
    ours = module()
    with torch.no_grad():
        check(ours, x=torch.randn(1, 64, 24, 25))
    assert not packs


def test_a_kernel_that_cannot_be_packed_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, packs: list[Any]):
    def fail(_: Any) -> Any:
        raise ToolError("the compiler crashed")

    monkeypatch.setattr(kernel_plans, "get_packed_launch", fail)
    with torch.no_grad():
        for _ in range(2):
            check(module())
    assert not packs


def test_threads_pack_once(packs: list[Any]):
    ours, wrong = module(), list[BaseException]()

    def run() -> None:
        try:
            with torch.no_grad():
                for _ in range(5):
                    check(ours)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert len(packs) == 1

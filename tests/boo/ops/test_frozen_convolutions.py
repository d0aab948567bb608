"""Eager convolutions with frozen weights: snapshots, packed where a kernel packs them."""

from __future__ import annotations

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from conv_samples import close, conv  # noqa: E402

from dispatch_profiler.boo import refreeze  # noqa: E402
from dispatch_profiler.boo.launching.packing import PackedLaunch  # noqa: E402
from dispatch_profiler.boo.modeling import BooConv2d, replace_convs_with_boo  # noqa: E402
from dispatch_profiler.boo.ops import boo_conv, kernel_plans  # noqa: E402
from dispatch_profiler.errors import ToolError  # noqa: E402

X = torch.randn(1, 64, 4, 28, generator=torch.Generator().manual_seed(0))

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


def module(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return BooConv2d(64, 64, 1, **{"freeze": True, **options})


def check(*modules: Any, x: Any = X) -> None:
    """The modules compute what torch does."""
    for each in modules:
        assert close(each(x), conv(x, each.weight, each.bias))


def change(each: Any) -> None:
    """Change one filter and one element of the bias, without a new version."""
    each.weight.data[3] += 1
    each.bias.data[5] += 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_snapshot_is_packed_once(mode: Any, packs: list[Any]):
    ours = module()
    with mode():
        for _ in range(3):
            check(ours)
        assert len(packs) == 1
        before = ours(X).clone()
        change(ours)
        assert torch.equal(ours(X), before)
        refreeze(ours)
        check(ours)
        assert len(packs) == 2


@pytest.mark.slow
def test_without_freeze_nothing_is_packed_and_changes_are_seen(packs: list[Any]):
    ours = module(freeze=False)
    images = X, X.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(3):
            for x in images:
                check(ours, x=x)
            change(ours)
    assert not packs


def test_the_environment_freezes_what_says_nothing_itself(packs: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOO_FREEZE", "1")
    with torch.no_grad():
        check(module(freeze=False))
        assert not packs
        check(module(freeze=None))
        assert len(packs) == 1
        replaced = replace_convs_with_boo(torch.nn.Conv2d(64, 64, 1))
        check(replaced)
        assert len(packs) == 2
        check(replace_convs_with_boo(torch.nn.Conv2d(64, 64, 1), freeze=False))
    assert len(packs) == 2


@pytest.mark.parametrize("layouts", [{}, {"shared_layout": "NHWC"}, {"kernel_layout": "NHWC"}])
def test_every_layout_takes_snapshots(layouts: dict[str, str]):
    ours = module()
    last = layouts.get("shared_layout", "") == "NHWC"
    x = X.permute(0, 2, 3, 1) if last else X
    weight = ours.weight.detach().permute(0, 2, 3, 1) if layouts else ours.weight.detach()
    with torch.no_grad():
        first = boo_conv(x, weight, ours.bias, freeze=True, **layouts)
        before = first.clone()
        assert close(first.permute(0, 3, 1, 2) if last else first, conv(X, ours.weight, ours.bias))
        change(ours)
        assert torch.equal(boo_conv(x, weight, ours.bias, freeze=True, **layouts), before)


def test_layers_and_copies_have_packed_weights_of_their_own(packs: list[Any]):
    layers = module(), module(1)
    layers = *layers, copy.deepcopy(layers[0])
    with torch.no_grad():
        layers[2].weight.neg_()
        for _ in range(3):
            check(*layers)
    assert len(packs) == 3


def test_what_autograd_records_is_not_frozen(packs: list[Any]):
    ours = module()
    for _ in range(3):
        check(ours)
        change(ours)
    assert not packs
    assert torch.autograd.gradcheck(
        lambda x, w: boo_conv(x, w, freeze=True),
        [
            torch.randn(*shape, dtype=torch.float64, requires_grad=True)
            for shape in ((1, 2, 3, 3), (2, 2, 2, 2))
        ],
    )


def test_autocast_casts_a_frozen_weight_once(monkeypatch: pytest.MonkeyPatch):
    ours = module()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = conv(X.bfloat16(), ours.weight.bfloat16(), ours.bias.bfloat16())
        for _ in range(2):
            assert close(ours(X), expected)
        before = ours(X).clone()
        change(ours)
        assert torch.equal(ours(X), before)
        refreeze(ours)
        assert not torch.equal(ours(X), before)


def test_layouts_and_bytes_that_a_kernel_cannot_read_in_place(packs: list[Any]):
    ours = module()
    unaligned = torch.empty(X.numel() + 1)[1:].view(X.shape).copy_(X)
    with torch.no_grad():
        for _ in range(2):
            check(ours, x=torch._neg_view(X))
            check(ours, x=unaligned)
            negative = boo_conv(X, torch._neg_view(ours.weight.detach()), freeze=True)
            assert close(negative, conv(X, -ours.weight))
    assert 1 <= len(packs) <= 2


def test_packed_weights_are_freed_with_the_weight(packs: list[Any]):
    ours = module()
    with torch.no_grad():
        check(ours)
    assert packs[0]() is not None
    del ours
    gc.collect()
    assert packs[0]() is None


def test_a_kernel_that_cannot_be_packed_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, packs: list[Any]):
    def fail(_: Any) -> Any:
        raise ToolError("the compiler crashed")

    monkeypatch.setattr(kernel_plans, "get_packed_launch", fail)
    ours = module()
    with torch.no_grad():
        for _ in range(2):
            check(ours)
        before = ours(X).clone()
        change(ours)
        assert torch.equal(ours(X), before)
    assert not packs


def test_threads_pack_once(packs: list[Any]):
    ours = module()

    def run(_: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                check(ours)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))
    assert len(packs) == 1

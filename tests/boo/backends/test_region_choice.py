"""The measured guard: regions that torch computes faster are left to torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_models import check_alike
from torch import nn

from dispatch_profiler.boo.backends import backend, explain, region_choice
from dispatch_profiler.boo.backends.region_choice import RegionTimes

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _guarded(_nothing_is_measured: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As users have it, with a cache of the test: notes are kept in it."""
    monkeypatch.delenv("BOO_AUTOTUNE")
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path))


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


#: `region_seconds` computes so many copies of a region.
COPIES = 8


@pytest.mark.parametrize(
    ("seconds", "is_ours"),
    [((1.0, 2.0), True), ((1.09, 1.0), True), ((1.11, 1.0), False), ((50.0, 1.0), False)],
)
def test_a_region_is_left_to_torch_if_our_kernel_is_slower(
    seconds: tuple[float, float], is_ours: bool, launched: list[str]
) -> None:
    measure = Timed(*seconds)
    assert launches(convolutions(), replace(backend(), measure_region=measure), launched) == is_ours
    assert measure.count == 1


def test_a_region_among_others_may_take_as_much_longer_as_a_change_of_threads(launched: list[str]) -> None:
    for difference, ours in ((0.9e-4, 2), (1.1e-4, 0)):
        measure = Timed((1e-5 + difference) * COPIES, 1e-5 * COPIES)
        made = replace(backend(), measure_region=measure)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BOO_CACHE_ON", "0")
            assert launches(convolutions(2), made, launched) == ours


def test_times_are_kept_for_the_machine(launched: list[str]) -> None:
    measure = Timed(1.0, 3.0)
    for _ in range(2):
        assert launches(convolutions(), replace(backend(), measure_region=measure), launched) == 1
    assert measure.count == 1
    slower = Timed(3.0, 1.0)
    assert launches(convolutions(), replace(backend(), measure_region=slower), launched) == 1
    assert slower.count == 0


@pytest.mark.parametrize("how", ["option", "argument", "environment", "strict"])
def test_what_turns_the_guard_off(how: str, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Timed(9.0, 1.0)
    arguments = {"argument": {"autotune": False}, "strict": {"strict": True}}.get(how, {})
    if how == "environment":
        monkeypatch.setenv("BOO_AUTOTUNE", "0")
    options = {"autotune": False} if how == "option" else {}
    made = replace(backend(**arguments), measure_region=measure)  # type: ignore[arg-type]
    assert launches(convolutions(), made, launched, **options) == 1
    assert measure.count == 0


def test_a_hopeless_region_is_called_twice_and_not_measured(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_choice, "once", lambda ours, theirs: (5.0, 1.0))
    measure = Timed(1.0, 1.0)
    assert launches(convolutions(), replace(backend(), measure_region=measure), launched) == 0
    assert measure.count == 0


def test_training_is_guarded_too(launched: list[str]) -> None:
    model = convolutions()
    for seconds, ours in (((1.0, 2.0), 1), ((2.0, 1.0), 0)):
        torch._dynamo.reset()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BOO_CACHE_ON", "0")
            fast = torch.compile(
                model, backend=replace(backend(), measure_region=Timed(*seconds)), dynamic=False
            )
            check_alike(fast(X).detach(), model(X).detach())
            launched.clear()
            fast(X).sum().backward()
        assert len(launched) == ours


def test_explain_gives_both_times() -> None:
    made = replace(backend(), measure_region=Timed(8e-3, 4e-3))
    with torch.no_grad():
        found = explain(convolutions(), [X], backend=made, measure=Timed(8e-3, 4e-3))
    (region,) = found.regions
    assert not region.is_fused
    assert region.reason == "torch is faster: 500 us, our kernel 1000 us"


@pytest.mark.parametrize("note", [None, "", "1", "1 2 3", "a b", "nan 1", "-1 2", "inf 1"])
def test_a_damaged_note_is_measured_again(note: str | None) -> None:
    assert RegionTimes.of(note) is None
    assert RegionTimes.of(RegionTimes(1.5e-3, 2e-6).note) == RegionTimes(1.5e-3, 2e-6)

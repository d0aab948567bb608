"""With `autotune`, a region is fused only if its kernel is the faster one, which is measured once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_models import Block, check_equals_eager

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion import calls


class Times:
    """A measurement that takes the times given, and counts."""

    def __init__(self, ours: float, theirs: float) -> None:
        self.seconds = ours, theirs
        self.count = 0

    def __call__(self, ours: Any, theirs: Any) -> tuple[float, float]:
        ours()
        theirs()
        self.count += 1
        return self.seconds


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Decisions of other tests are not seen."""
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("nested", [None, "aot_eager"])
def test_the_faster_side_computes_a_region(monkeypatch: pytest.MonkeyPatch, nested: str | None) -> None:
    launched: list[int] = []
    launch = calls.RunCall.__call__
    monkeypatch.setattr(
        calls.RunCall,
        "__call__",
        lambda self, *inputs: launched.append(len(self.spec.steps)) or launch(self, *inputs),
    )
    model, x = Block().eval(), torch.randn(2, 8, 6, 6)
    slower = Times(2.0, 1.0)
    check_equals_eager(model, replace(backend(nested, autotune=True, strict=True), measure=slower), x)
    assert slower.count == 2
    assert set(launched) == {8}  # those of the measurement
    # The decision is kept: a second compilation measures nothing.
    again = Times(1.0, 2.0)
    check_equals_eager(model, replace(backend(nested, autotune=True, strict=True), measure=again), x)
    assert again.count == 0


@pytest.mark.usefixtures("own_cache")
def test_a_faster_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[int] = []
    launch = calls.RunCall.__call__
    monkeypatch.setattr(
        calls.RunCall,
        "__call__",
        lambda self, *inputs: launched.append(len(self.spec.steps)) or launch(self, *inputs),
    )
    made = replace(backend(autotune=True, strict=True), measure=Times(1.0, 2.0))
    check_equals_eager(Block().eval(), made, torch.randn(2, 8, 6, 6))
    assert launched[-1] == 2


def test_a_measurement_that_fails_leaves_the_region_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    def fail(ours: Any, theirs: Any) -> tuple[float, float]:
        raise ZeroDivisionError("planted")

    x = torch.randn(3, 8, 5, 5)
    check_equals_eager(Block().eval(), replace(backend(autotune=True), measure=fail), x)
    assert "planted" in caplog.text

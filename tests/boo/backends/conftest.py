"""Kernels of these tests are compiled into a folder of this run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _caches(shared_builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch").manual_seed(0)  # parameters and inputs are the same in each run
    monkeypatch.setenv("BOO_CACHE_DIR", str(shared_builds))


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are ours whatever takes longer, unless a test measures, and none is given up after its first calls."""
    pytest.importorskip("torch")
    from dispatch_profiler.boo.backends import graph_kernels
    from dispatch_profiler.boo.backends.measuring import in_turns

    measured = graph_kernels.RegionChoice._times

    def times(self: Any, region: Any, borders: Any) -> Any:
        if self.measure is in_turns:
            return graph_kernels.RegionTimes(1.0, 1.0)
        return measured(self, region, borders)

    monkeypatch.setenv("BOO_AUTOTUNE", "0")
    monkeypatch.setattr(graph_kernels.RegionChoice, "_times", times)
    monkeypatch.setattr(graph_kernels, "once", lambda ours, theirs: (1.0, 1.0))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the operations that compiled models launch."""
    from dispatch_profiler.boo.fusion.execute.calls import RunCall  # it needs torch

    names: list[str] = []
    launch = RunCall.__call__

    def note(self: Any, *inputs: Any) -> Any:
        names.extend(step.operation.name for step, _ in self.spec.steps)
        return launch(self, *inputs)

    monkeypatch.setattr(RunCall, "__call__", note)
    return names

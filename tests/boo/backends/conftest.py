"""Kernels of these tests are compiled into a folder of this run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _caches(shared_builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch").manual_seed(0)  # parameters and inputs are the same in each run
    monkeypatch.setenv("BOO_CACHE_DIR", str(shared_builds))

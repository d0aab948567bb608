"""Kernels of these tests are compiled into a folder of this run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _caches(shared_builds: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("BOO_CACHE_DIR", str(shared_builds))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # graphs are small
    # Our kernels keep several threads: mistakes about what must wait for what show on several only.
    for module in ("boo.launching.loading", "runtime.iree"):
        monkeypatch.setattr(f"dispatch_profiler.{module}.usable_threads", lambda: 2)
    yield
    torch.set_num_threads(threads)

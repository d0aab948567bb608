"""Kernels of these tests are compiled into a folder of this run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_of_pytest import folder_of_session

from dispatch_profiler.compiler import Cache
from dispatch_profiler.files.regular import locked


@pytest.fixture(autouse=True)
def _caches(shared_builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch").manual_seed(0)  # parameters and inputs are the same in each run
    monkeypatch.setenv("BOO_CACHE_DIR", str(shared_builds))


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test has no measure of its own, regions are ours whatever takes longer, with the first kernel. None is given
    up after its first calls. Graphs are measured at once: the compiler of the tests is a process that is started already,
    and `test_quiet` has the wait for such processes.
    """
    pytest.importorskip("torch")
    from dispatch_profiler.boo.backends import candidate_times, graph_choice, region_kernels
    from dispatch_profiler.boo.backends.measuring import in_turns

    measured = region_kernels.RegionChoice.measured_times

    def times(self: Any, region: Any, borders: Any) -> Any:
        if self.measure is in_turns:
            return region_kernels.RegionTimes(1.0, 1.0)
        return measured(self, region, borders)

    fastest_kernel = candidate_times.fastest_kernel

    def fastest(region: Any, borders: Any, candidates: Any, measure: Any, **options: Any) -> Any:
        if measure is in_turns:
            return 0, [1.0] * len(candidates.every), 1.0
        return fastest_kernel(region, borders, candidates, measure, **options)

    monkeypatch.setattr(graph_choice, "wait_for_children", lambda: None)
    monkeypatch.setattr(region_kernels, "fastest_kernel", fastest)
    monkeypatch.setattr(candidate_times, "once", lambda *functions: [1.0] * len(functions))
    monkeypatch.setattr(region_kernels.RegionChoice, "measured_times", times)
    monkeypatch.setattr(region_kernels, "once", lambda *functions: [1.0] * len(functions))


@pytest.fixture(scope="session")
def known_kernels(request: pytest.FixtureRequest) -> Path:
    """The kernels that tests with `cache_of_kernels` compiled, in any worker of this run."""
    folder = folder_of_session(request.config) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def cache_of_kernels(
    _caches: None, tmp_path: Path, known_kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A cache of this test alone: it has the kernels of such tests before, and neither graphs nor notes."""
    folder = tmp_path / "kernels"
    # No worker reads what another one is writing.
    turn = known_kernels.with_name("kernels.lock")
    with locked(turn):
        shutil.copytree(known_kernels, folder)
    monkeypatch.setenv("BOO_CACHE_DIR", str(folder))
    yield folder
    cache = Cache(folder)
    cache.remove([each for each in cache.entries() if each.name.startswith("graph_of_")])
    others = shutil.ignore_patterns("*.notes")
    with locked(turn):
        shutil.copytree(folder, known_kernels, ignore=others, copy_function=_copy_new, dirs_exist_ok=True)


def _copy_new(source: str, target: str) -> None:
    """An entry is found by what it is made from, so that one with the same name is the same."""
    if not Path(target).exists():
        shutil.copy2(source, target)

"""How large the last-level caches are, from folders as Linux describes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatch_profiler.runtime.caches import last_level_cache_bytes


@pytest.fixture
def cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`cores({0: [(level, size, shared)]})`: a folder that describes these cores, all of them ours."""

    def make(described: dict[int, list[tuple[int, str, str]]]) -> Path:
        for core, caches in described.items():
            for number, (level, size, shared) in enumerate(caches):
                index = tmp_path / f"cpu{core}" / "cache" / f"index{number}"
                index.mkdir(parents=True)
                (index / "level").write_text(f"{level}\n")
                (index / "size").write_text(f"{size}\n")
                (index / "shared_cpu_list").write_text(f"{shared}\n")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(described), raising=False)
        return tmp_path

    return make


def test_a_cache_that_cores_share_counts_once(cores):
    core = [(1, "32K", "0"), (2, "1024K", "0"), (3, "32M", "0-1")]
    assert last_level_cache_bytes(cores({0: core, 1: core})) == 32 * 2**20


def test_caches_of_several_groups_of_cores_add_up(cores):
    """As on machines with a last-level cache for every eight cores."""
    described = {core: [(2, "1M", str(core)), (3, "16384K", f"{core // 2}")] for core in range(4)}
    assert last_level_cache_bytes(cores(described)) == 2 * 16 * 2**20


@pytest.mark.parametrize("size", ["", "32", "many"])
def test_what_cannot_be_read_is_not_known(cores, size):
    assert last_level_cache_bytes(cores({0: [(3, size, "0")]})) == 0


def test_a_machine_that_describes_nothing_is_not_known(tmp_path: Path):
    assert last_level_cache_bytes(tmp_path) == 0

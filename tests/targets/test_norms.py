"""Untuned layer norms have tiles for the threads at hand, whose vectors divide their rows."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import CpuTiles
from dispatch_profiler.operations import LayerNorm, Matmul
from dispatch_profiler.targets import parse_target
from dispatch_profiler.targets.untuned import norms

CPU = parse_target("llvm-cpu")


@pytest.mark.parametrize(
    ("rows", "size", "threads", "tiles"),
    [
        (784, 144, 2, CpuTiles((392,), (4, 16))),
        (784, 144, 16, CpuTiles((49,), (1, 16))),
        (196, 192, 2, CpuTiles((98,), (2, 16))),
        (197, 768, 2, CpuTiles((99,), (1, 16))),
        (1000, 40, 4, CpuTiles((250,), (2, 8))),
        (197, 100, 4, CpuTiles((50,), (1, 4))),
    ],
)
def test_each_thread_has_as_many_rows(
    rows: int, size: int, threads: int, tiles: CpuTiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "usable_threads", lambda: threads)
    assert norms.norm_tiles(LayerNorm(rows, size), CPU) == tiles


def test_others_have_none() -> None:
    assert norms.norm_tiles(LayerNorm(64, 1023), CPU) is None
    assert norms.norm_tiles(LayerNorm(1, 768), CPU) is None
    assert norms.norm_tiles(LayerNorm(64, 64, "f16"), CPU) is None
    assert norms.norm_tiles(Matmul(8, 8, 8), CPU) is None
    assert norms.norm_tiles(LayerNorm(64, 64), parse_target("cuda")) is None

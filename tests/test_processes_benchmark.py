"""What benchmarks/processes.py makes of the rates of processes."""

from __future__ import annotations

import os

import pytest
from script_helpers import load_script

processes = load_script("benchmarks/processes.py")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None), [(2, 4), (2, 8)]),
        ((4, None), [(4, 2)]),
        ((16, None), [(16, 1)]),
        ((None, 3), [(2, 3)]),
        ((4, 4), [(4, 4)]),
    ],
)
def test_threads_of_processes(
    given: tuple[int | None, int | None], expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [(each.processes, each.threads) for each in processes.shared(*given)] == expected


def test_ours_has_to_keep_as_much_as_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {("ONNX Runtime", 1): [100.0], ("ONNX Runtime", 2): [70.0, 50.0]}
    speeds |= {("ours frozen", 1): [200.0], ("ours frozen", 2): [110.0, 110.0]}
    monkeypatch.setattr(processes, "rates", lambda side, _, sharing, __: speeds[side, sharing.processes])
    peer, ours = processes.rows("net", processes.Sharing(2, 8), 1.0)
    assert (peer.value, peer.holds) == (0.6, True)
    assert ours.value == pytest.approx(0.55) and ours.must == ">= 0.58" and not ours.holds

"""Processors are kept awake by threads that give way to everybody, in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatch_profiler.isolation import Worker
from dispatch_profiler.profiler.measurement.cpu_idle import prevent_cpu_idle

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle class"),
    pytest.mark.alone,  # threads of the idle class start when nothing else runs
]


def kept(first: int) -> tuple[tuple[int, ...], set[int], int, list[tuple[int, frozenset[int]]]]:
    """What `prevent_cpu_idle` says; then where this thread may run and how, and the same of the threads made."""
    import time

    tasks = Path("/proc/self/task")
    before = {each.name for each in tasks.iterdir()}  # numpy has some
    found = prevent_cpu_idle(first)
    others: list[tuple[int, frozenset[int]]] = []
    for _ in range(200):  # they say of themselves what they are, soon after their start
        threads = [int(each.name) for each in tasks.iterdir() if each.name not in before]
        others = [(os.sched_getscheduler(t), frozenset(os.sched_getaffinity(t))) for t in threads]
        if all(policy == os.SCHED_IDLE for policy, _ in others):
            break
        time.sleep(0.01)
    return found, os.sched_getaffinity(0), os.sched_getscheduler(0), others


@pytest.mark.parametrize("first", [0, 1])
def test_the_caller_shares_its_processors_with_threads_that_give_way(
    first: int, monkeypatch: pytest.MonkeyPatch
):
    """One for each processor and no more; four processors, or all that there are."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # there the process finds `kept`
    with Worker() as worker:
        chosen, affinity, policy, others = worker.call(kept, first)

    assert set(chosen) == affinity <= os.sched_getaffinity(0)
    assert len(chosen) == min(4, len(os.sched_getaffinity(0)))
    assert policy != os.SCHED_IDLE
    assert sorted(others) == sorted((os.SCHED_IDLE, frozenset({each})) for each in chosen)

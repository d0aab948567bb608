"""Processors are kept awake, and waits for a core are counted."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from dispatch_profiler.isolation import Worker
from dispatch_profiler.profiler.measurement.cpu_idle import prevent_cpu_idle
from dispatch_profiler.profiler.measurement.run_delay import run_delay


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


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle class")
@pytest.mark.alone
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


def thread(tasks: Path, number: int, name: str, waited_ns: int, state: str = "S") -> Path:
    """What Linux says of a thread."""
    folder = tasks / str(number)
    folder.mkdir(exist_ok=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "schedstat").write_text(f"123456 {waited_ns} 7\n")
    (folder / "stat").write_text(f"{number} ({name}) odd) {state} 1 2 3\n")
    return folder


def test_only_this_thread_and_those_of_the_name_count(tmp_path: Path):
    thread(tmp_path, os.getpid(), "python", 1_000_000)
    thread(tmp_path, 7_000_001, "worker-0", 2_000_000)
    thread(tmp_path, 7_000_002, "other", 4_000_000)
    clock = run_delay("worker", tmp_path)
    assert clock is not None
    assert clock() == pytest.approx(0.003)
    (tmp_path / "7000001" / "schedstat").write_text("123456 5000000 8\n")
    assert clock() == pytest.approx(0.006)


@pytest.mark.alone
def test_a_thread_that_is_still_to_get_its_core_is_waited_for(tmp_path: Path):
    """Its wait is counted when it gets it."""
    thread(tmp_path, os.getpid(), "python", 0)
    waiting = thread(tmp_path, 7_000_001, "worker-0", 0)
    clock = run_delay("worker", tmp_path)
    assert clock is not None
    with (waiting / "stat").open("r+") as file:
        file.write("7000001 (worker-0) odd) R 1 2 3\n")

    def get_the_core() -> None:
        for name, text in (
            ("schedstat", "123456 8000000 8\n"),
            ("stat", "7000001 (worker-0) odd) S 1 2 3\n"),
        ):
            with (waiting / name).open("r+") as file:
                file.write(text)

    timer = threading.Timer(0.005, get_the_core)
    timer.start()
    assert clock() == pytest.approx(0.008)
    timer.join()


def test_one_that_never_gets_its_core_is_not_waited_for_for_ever(tmp_path: Path):
    thread(tmp_path, os.getpid(), "python", 0)
    thread(tmp_path, 7_000_001, "worker-0", 3_000_000, "R")
    clock = run_delay("worker", tmp_path)
    assert clock is not None and clock() == pytest.approx(0.003)


def test_where_nobody_counts_there_is_no_such_clock(tmp_path: Path):
    assert run_delay("worker", tmp_path) is None
    thread(tmp_path, os.getpid(), "python", 0)
    (tmp_path / str(os.getpid()) / "schedstat").write_text("0\n")
    assert run_delay("worker", tmp_path) is None


@pytest.mark.alone
@pytest.mark.skipif(
    sys.platform != "linux" or not Path("/proc/self/schedstat").exists(), reason="needs schedstat"
)
def test_two_threads_on_one_core_wait_for_each_other():
    """The kernel's own count: of two that both work, each waits about half of the time."""
    core = {min(os.sched_getaffinity(0))}
    before, clock = os.sched_getaffinity(0), run_delay("no other")
    assert clock is not None
    stop = os.fork()
    if stop == 0:  # another process, on our core
        os.sched_setaffinity(0, core)
        end = time.monotonic() + 10.0
        while time.monotonic() < end:
            pass
        os._exit(0)
    try:
        os.sched_setaffinity(0, core)
        start, deadline = clock(), time.monotonic() + 5.0
        while clock() - start < 0.02 and time.monotonic() < deadline:
            pass
        assert clock() - start >= 0.02
    finally:
        os.kill(stop, 9)
        os.waitpid(stop, 0)
        os.sched_setaffinity(0, before)

"""Before a measurement, processes that this one started become idle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from test_rounds import still

from dispatch_profiler.boo.backends.graph_choice import used_by_children, wait_for_children


def busy_until(end: float, machine: object, started: float = 0.0) -> Callable[[], dict[int, float]]:
    """A process that computes until `end` and has another one beside it that is idle; it starts at `started`."""

    def used() -> dict[int, float]:
        now = machine.seconds  # type: ignore[attr-defined]
        return {1: 5.0} | ({2: min(now, end)} if now >= started else {})

    return used


def test_it_waits_as_long_as_a_process_computes() -> None:
    machine = still()
    wait_for_children(machine.clock, busy_until(3.1, machine))
    assert 3.1 < machine.seconds < 3.6


def test_it_waits_no_longer_than_ten_seconds() -> None:
    machine = still()
    wait_for_children(machine.clock, busy_until(1e9, machine))
    assert machine.seconds == pytest.approx(10, abs=0.3)


def test_without_busy_processes_it_does_not_wait() -> None:
    machine = still()
    wait_for_children(machine.clock, dict)
    assert machine.seconds == 0
    wait_for_children(machine.clock, busy_until(0, machine))
    assert machine.seconds == pytest.approx(0.2)


def test_a_process_that_ends_does_not_hide_another_one() -> None:
    machine = still()

    def used() -> dict[int, float]:
        return ({1: 100.0} if machine.seconds < 0.1 else {}) | {2: min(machine.seconds, 2.0)}

    wait_for_children(machine.clock, used)
    assert machine.seconds > 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_time_of_descendants_is_read() -> None:
    grandchild = "import sys; sum(range(10**7)); print(1, flush=True); sys.stdin.read()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        found = used_by_children()
        process.communicate()
    assert process.pid in found
    others = {each: seconds for each, seconds in found.items() if each != process.pid}
    assert max(others.values()) > 0.01
    assert process.pid not in used_by_children()

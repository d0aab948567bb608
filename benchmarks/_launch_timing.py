"""How benchmarks/launch.py takes times: how much, in turns, and on cores that do not idle."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks._table import Row

#: A convolution whose kernel takes 1 us: N, C, H, W of the image, and filters.
IMAGE, FILTERS = (1, 4, 8, 8), (4, 4, 3, 3)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int = 400
    long_rounds: int = 7
    processes: int = 11
    lines: int | None = None
    preloads: int = 3


QUICK = Scale(rounds=100, long_rounds=3, processes=5, lines=20, preloads=1)


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, count: int = 100) -> dict[str, float]:
    """Microseconds of each call: the median over rounds of `count` calls in a row.

    Threads of torch spin after a call, which makes what follows slower, so that each round begins after a pause.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(2e-3)
            for _ in range(count // 10):
                call()
            start = time.perf_counter()
            for _ in range(count):
                call()
            taken[name].append((time.perf_counter() - start) / count * 1e6)
    return {name: statistics.median(each) for name, each in taken.items()}


# -- cores that idle -------------------------------------------------------------------------------

SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    for _ in range(100_000): pass
"""
ECHO = "import os, sys\nwhile os.read(0, 1): os.write(1, b'.')"


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keeps every core busy with a process that yields to any other."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(core), str(os.getpid())])
        for core in sorted(os.sched_getaffinity(0))
    ]
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def wake_up_row(scale: Scale) -> Row:
    """How long it takes to wake up another process, which waits on an idle core."""
    cores = os.sched_getaffinity(0)
    with subprocess.Popen(
        [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        there, back = other.stdin.fileno(), other.stdout.fileno()
        os.sched_setaffinity(other.pid, {max(cores)})
        os.sched_setaffinity(0, {min(cores)})  # otherwise both share a core, which does not idle

        def round_trip() -> None:
            os.write(there, b".")
            os.read(back, 1)

        us = in_turns({"round trip": round_trip}, scale.rounds // 4)["round trip"] / 2
        os.sched_setaffinity(0, cores)
    return Row("to wake up a process on another core", us, "us", "any", True)

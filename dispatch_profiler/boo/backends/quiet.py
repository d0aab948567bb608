"""Waits until processes that this one started leave the cores alone, before something is measured.

Inductor starts workers when it compiles for the first time, which import torch for some seconds. On two cores, they double
the time of our kernels, whose threads stay on their cores, and change the time of torch's operators less.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from dispatch_profiler.boo.backends.rounds import Clock

#: Seconds after which a measurement begins all the same, and between looks.
_MOST, _STEP = 10.0, 0.2
#: Processes are busy that use more than this part of a core.
_BUSY = 0.1
_PROCESSES = Path("/proc")
#: The seconds that processes computed so far, by their ids.
Used = Callable[[], Mapping[int, float]]


def used_by_children() -> dict[int, float]:
    """The seconds that each process computed so far that descends from this one; nothing where /proc does not say it."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in _PROCESSES.glob("[0-9]*/stat"):
        try:
            # Behind the name, which may have blanks: state, parent, ..., and ticks of user and system.
            fields = path.read_text().rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process] = int(fields[1])
            seconds[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            continue  # it has ended
    return {process: each for process, each in seconds.items() if _descends(process, parents)}


def _descends(process: int, parents: Mapping[int, int]) -> bool:
    while process in parents:
        process = parents[process]
        if process == os.getpid():
            return True
    return False


def wait_for_children(clock: Clock = Clock(), used: Used = used_by_children) -> None:
    """Wait until the processes that this one started are idle, for at most ten seconds."""
    end = clock.now() + _MOST
    before, since = used(), clock.now()
    while before and since < end:
        clock.sleep(_STEP)
        after, now = used(), clock.now()
        spent = sum(max(0.0, seconds - before.get(process, 0.0)) for process, seconds in after.items())
        if spent <= _BUSY * (now - since):
            return
        before, since = after, now

"""The run delay: how long threads of this process waited for a core.

Linux counts it for each thread (`schedstat`, second number), but only once the thread gets its core. A
sample in which threads waited measures the machine's other work, whatever the kernel does.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

_TASKS = Path("/proc/self/task")
#: How long to wait for a thread to get its core: two ticks of the scheduler and its slice.
_SECONDS = 0.03
_PAUSE = 2e-4


def run_delay(named: str, tasks: Path = _TASKS) -> Callable[[], float] | None:
    """A clock in seconds that advances only while this thread or one named `named...` waits for a core.

    A reading first yields, so that waiting threads get their cores. None if the system does not count it.
    `tasks` is where Linux describes the threads.
    """
    try:
        own = str(os.getpid())
        others = [thread for thread in tasks.iterdir() if thread.name != own and _is_called(thread, named)]
        clock = _RunDelay([tasks / own, *others])
        clock()
    except (OSError, ValueError, IndexError):
        return None
    return clock


def _is_called(thread: Path, named: str) -> bool:
    try:
        return (thread / "comm").read_text().startswith(named)
    except OSError:  # it has ended
        return False


class _RunDelay:
    """Reads files that it keeps open, so that a reading takes only some microseconds."""

    def __init__(self, threads: Sequence[Path]) -> None:
        with contextlib.ExitStack() as opened:
            self._counts = [_kept_open(thread / "schedstat", opened) for thread in threads]
            self._states = [_kept_open(thread / "stat", opened) for thread in threads[1:]]
            weakref.finalize(self, opened.pop_all().close)

    def __call__(self) -> float:
        end = time.monotonic() + _SECONDS
        # The wait of a thread without a core is counted only once it gets one.
        while any(map(_is_runnable, self._states)) and time.monotonic() < end:
            time.sleep(_PAUSE)
        return 1e-9 * sum(int(os.pread(count, 100, 0).split()[1]) for count in self._counts)


def _kept_open(path: Path, opened: contextlib.ExitStack) -> int:
    file = os.open(path, os.O_RDONLY)
    opened.callback(os.close, file)
    return file


def _is_runnable(state: int) -> bool:
    """Parses `12 (a name) R 1 ...`; the name may contain parentheses."""
    return os.pread(state, 200, 0).rpartition(b") ")[2].startswith(b"R")

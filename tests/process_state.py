"""The state of this process that a library must leave alone."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path


def state_of_this_process() -> dict[str, object]:
    """Everything that a library must leave alone."""
    own = threading.get_native_id()
    return {
        "policy": os.sched_getscheduler(0),
        "affinity": os.sched_getaffinity(0),
        "nice": os.getpriority(os.PRIO_PROCESS, own),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }


def policies() -> set[int]:
    """Scheduling policies of all threads of this process."""
    return {os.sched_getscheduler(int(task.name)) for task in Path("/proc/self/task").iterdir()}

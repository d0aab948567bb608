"""The processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> list[int]:
    """The numbers of the cores in this process's affinity mask, in order; all cores if the system has no such masks."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

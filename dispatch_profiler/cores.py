"""The processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> list[int]:
    """Their numbers, in order: those of its affinity where the system has one, else all."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

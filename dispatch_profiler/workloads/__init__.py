"""Where operations come from: sweeps of shapes today, logs and driver commands beside them later."""

from dispatch_profiler.workloads._base import Entry, Workload, merged
from dispatch_profiler.workloads.sweep import Sweep, SweepResult, sweep_workload

__all__ = [
    "Entry",
    "Sweep",
    "SweepResult",
    "Workload",
    "merged",
    "sweep_workload",
]

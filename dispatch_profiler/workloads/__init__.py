"""Workloads: sources of operations, such as sweeps of shapes."""

from dispatch_profiler.workloads._base import Workload, WorkloadEntry, merged
from dispatch_profiler.workloads.sweep import Sweep, SweepResult, sweep_workload

__all__ = [
    "Sweep",
    "SweepResult",
    "Workload",
    "WorkloadEntry",
    "merged",
    "sweep_workload",
]

"""Workloads: operations from sweeps of shapes, logs and workload.yaml."""

from dispatch_profiler.workloads.reading import SkippedLine, WorkloadReading, read_workload
from dispatch_profiler.workloads.sweep import Sweep, SweepResult, sweep_workload
from dispatch_profiler.workloads.workload_file import (
    Workload,
    WorkloadEntry,
    append_workload,
    merged,
    write_workload,
)

__all__ = [
    "SkippedLine",
    "Sweep",
    "SweepResult",
    "Workload",
    "WorkloadEntry",
    "WorkloadReading",
    "append_workload",
    "merged",
    "read_workload",
    "sweep_workload",
    "write_workload",
]

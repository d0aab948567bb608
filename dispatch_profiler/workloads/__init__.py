"""Where operations come from: sweeps of shapes today, logs and driver commands beside them later."""

from dispatch_profiler.workloads._base import Entry, Workload, merged
from dispatch_profiler.workloads.ranges import parse_pairs, parse_range
from dispatch_profiler.workloads.sweep import (
    SPLIT_K_PROBLEMS,
    ConvSweep,
    MatmulSweep,
    Sweep,
    SweepResult,
    sweep_workload,
)

__all__ = [
    "SPLIT_K_PROBLEMS",
    "ConvSweep",
    "Entry",
    "MatmulSweep",
    "Sweep",
    "SweepResult",
    "Workload",
    "merged",
    "parse_pairs",
    "parse_range",
    "sweep_workload",
]

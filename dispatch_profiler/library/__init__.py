"""Libraries of tuned kernels: for each operation the configuration to use, with its speed and provenance."""

from dispatch_profiler.library.entry import NO_SPEED, Choice, Entry, Estimate, KeepRule, choose
from dispatch_profiler.library.family_files import DamagedEntry
from dispatch_profiler.library.library import (
    LIBRARY_FILE,
    Change,
    Library,
    Merged,
    MergeOutcome,
    find_library,
    library_file,
    merge,
    merge_outcome,
    shipped_libraries,
)

__all__ = [
    "LIBRARY_FILE",
    "NO_SPEED",
    "Change",
    "Choice",
    "DamagedEntry",
    "Entry",
    "Estimate",
    "KeepRule",
    "Library",
    "MergeOutcome",
    "Merged",
    "choose",
    "find_library",
    "library_file",
    "merge",
    "merge_outcome",
    "shipped_libraries",
]

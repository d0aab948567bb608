"""Kernels for launches: one vmfb per operation and device, compiled once and cached by content."""

from dispatch_profiler.boo.kernels.any_batch import BatchKernels, any_batch_keys, prepare_batch_kernels
from dispatch_profiler.boo.kernels.build import KernelOrError, KernelSearch, Toolchain, find_kernels
from dispatch_profiler.boo.kernels.candidates import (
    KernelCandidates,
    NeededKernel,
    is_promising,
    prepare_candidates,
)
from dispatch_profiler.boo.kernels.lru_memory import Memory
from dispatch_profiler.boo.kernels.provider import DriverChoices, OperationKernels, prepare_kernels
from dispatch_profiler.boo.kernels.targets import launch_devices, target_of

__all__ = [
    "BatchKernels",
    "DriverChoices",
    "KernelCandidates",
    "KernelOrError",
    "KernelSearch",
    "Memory",
    "NeededKernel",
    "OperationKernels",
    "Toolchain",
    "any_batch_keys",
    "find_kernels",
    "is_promising",
    "launch_devices",
    "prepare_batch_kernels",
    "prepare_candidates",
    "prepare_kernels",
    "target_of",
]

"""Targets: compiler flags and the device that runs the code. A new target needs a file and a line in `FAMILIES`."""

from __future__ import annotations

from dispatch_profiler.errors import TargetError, did_you_mean
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.cpu import (
    CPU_NAMES,
    LEVELS,
    CpuTarget,
    HostCpu,
    host_cpu,
    missing_features,
    parse_cpuinfo,
)
from dispatch_profiler.targets.cuda import CudaTarget
from dispatch_profiler.targets.null import NullTarget
from dispatch_profiler.targets.rocm import RocmTarget
from dispatch_profiler.targets.spirv import MetalTarget, VulkanTarget
from dispatch_profiler.targets.untuned.amx_microkernels import amx_microkernel, ranked_amx
from dispatch_profiler.targets.untuned.any_batch import (
    LARGEST_BATCH,
    BatchSpace,
    RowsSpace,
    any_batch_kernel,
    batch_space,
    images_microkernel,
    of_any_batch,
    rows_microkernel,
)
from dispatch_profiler.targets.untuned.depthwise_gradients import ranked_depthwise_gradients
from dispatch_profiler.targets.untuned.dot_microkernels import ranked_dot_microkernels
from dispatch_profiler.targets.untuned.fastest_forms import fastest_form
from dispatch_profiler.targets.untuned.launch_kernels import untuned_kernels
from dispatch_profiler.targets.untuned.packed_kernels import (
    expected_cycles,
    likely_kernels,
    packed_kernels,
    unpacked_kernels,
)
from dispatch_profiler.targets.untuned.packed_microkernels import packed_microkernel, ranked_microkernels
from dispatch_profiler.targets.untuned.winograd_microkernels import ranked_winograd
from dispatch_profiler.targets.vmvx import VmvxTarget

FAMILIES: dict[str, type[Target]] = {
    target.family: target
    for target in (
        CpuTarget,
        CudaTarget,
        RocmTarget,
        VulkanTarget,
        MetalTarget,
        VmvxTarget,
        NullTarget,
    )
}

DEFAULT_TARGET = CpuTarget.family


def parse_target(text: str) -> Target:
    """Parse `family` or `family:detail`. Raises TargetError, which lists the available families."""
    family, colon, detail = text.partition(":")
    if family not in FAMILIES:
        raise TargetError(f"unknown target {text!r}", hint=did_you_mean(family, FAMILIES))
    return FAMILIES[family].parse(detail if colon else None)


__all__ = [
    "CPU_NAMES",
    "DEFAULT_TARGET",
    "FAMILIES",
    "LARGEST_BATCH",
    "LEVELS",
    "BatchSpace",
    "CpuTarget",
    "CudaTarget",
    "HostCpu",
    "MetalTarget",
    "NullTarget",
    "RocmTarget",
    "RowsSpace",
    "Target",
    "VmvxTarget",
    "VulkanTarget",
    "amx_microkernel",
    "any_batch_kernel",
    "batch_space",
    "expected_cycles",
    "fastest_form",
    "host_cpu",
    "images_microkernel",
    "likely_kernels",
    "missing_features",
    "of_any_batch",
    "packed_kernels",
    "packed_microkernel",
    "parse_cpuinfo",
    "parse_target",
    "ranked_amx",
    "ranked_depthwise_gradients",
    "ranked_dot_microkernels",
    "ranked_microkernels",
    "ranked_winograd",
    "rows_microkernel",
    "unpacked_kernels",
    "untuned_kernels",
]

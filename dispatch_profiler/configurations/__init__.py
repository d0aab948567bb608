"""How the compiler may do an operation. A new kind is one file here and one line in `KINDS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch_profiler.configurations._base import (
    Configuration,
    Default,
    Evidence,
    GpuLimits,
    Groups,
    Limits,
    Lowering,
    fold_levels,
    lowering_config_text,
)
from dispatch_profiler.configurations.cpu_tiles import CpuTiles
from dispatch_profiler.configurations.extern import Extern
from dispatch_profiler.configurations.external_kernels import KernelObject, KernelSource, Launch
from dispatch_profiler.configurations.files import (
    Entry,
    load_configurations,
    shipped_configurations,
    shipped_lists,
)
from dispatch_profiler.configurations.flows import FLOWS, Flow
from dispatch_profiler.configurations.gpu_tiles import GpuTiles
from dispatch_profiler.configurations.intrinsics import INTRINSICS, Intrinsic
from dispatch_profiler.configurations.mma_tiles import MmaTiles
from dispatch_profiler.configurations.simt_tiles import SimtTiles
from dispatch_profiler.configurations.spaces import (
    Space,
    draw_valid,
    gpu_spaces,
    rejection_reason,
    triton_spaces,
    with_narrow_sums,
)
from dispatch_profiler.configurations.triton_tiles import TritonTiles
from dispatch_profiler.errors import ConfigurationError, did_you_mean

KINDS: dict[str, type[Configuration]] = {
    kind.kind: kind for kind in (Default, CpuTiles, Flow, MmaTiles, SimtTiles, TritonTiles, Extern)
}


def configuration_from_dict(data: Mapping[str, Any]) -> Configuration:
    """Inverse of `Configuration.to_dict`."""
    values = dict(data)
    kind = values.pop("kind")
    if kind not in KINDS:
        raise ConfigurationError(f"unknown kind of configuration {kind!r}", hint=did_you_mean(kind, KINDS))
    return KINDS[kind](**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


__all__ = [
    "FLOWS",
    "INTRINSICS",
    "KINDS",
    "Configuration",
    "CpuTiles",
    "Default",
    "Entry",
    "Evidence",
    "Extern",
    "Flow",
    "GpuLimits",
    "GpuTiles",
    "Groups",
    "Intrinsic",
    "KernelObject",
    "KernelSource",
    "Launch",
    "Limits",
    "Lowering",
    "MmaTiles",
    "SimtTiles",
    "Space",
    "TritonTiles",
    "configuration_from_dict",
    "draw_valid",
    "fold_levels",
    "gpu_spaces",
    "load_configurations",
    "lowering_config_text",
    "rejection_reason",
    "shipped_configurations",
    "shipped_lists",
    "triton_spaces",
    "with_narrow_sums",
]

"""GPUs through SPIR-V: of every vendor, which the Vulkan driver compiles, and Apple's, as Metal source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.targets.by_architecture import ByArchitecture

_NAMES = """
    sm_60 sm_75 sm_80 sm_86 sm_89 pascal volta turing ampere ada a100 rtx3090 rtx4090 gfx90a gfx942
    gfx1030 gfx1100 gfx1102 gfx1150 gfx1201 cdna1 cdna2 cdna3 cdna4 rdna1 rdna2 rdna3 rdna4
    rx7900xtx rx9070xt valhall valhall1 valhall2 valhall3 valhall4 mali-g57 mali-g77 mali-g78
    mali-g710 mali-g715 adreno adreno-750 vp_android_baseline_2022
"""


@dataclass(frozen=True)
class VulkanTarget(ByArchitecture):
    """Without `arch` it uses features of every Vulkan GPU and supports fewer types (see docs/targets.md)."""

    family: ClassVar[str] = "vulkan-spirv"
    shipped_list: ClassVar[str] = "vulkan-spirv"
    architectures: ClassVar[tuple[str, ...]] = tuple(_NAMES.split())
    family_flags: ClassVar[tuple[str, ...]] = ("--iree-hal-target-device=vulkan",)
    arch_flag: ClassVar[str] = "--iree-vulkan-target"
    device: ClassVar[str] = "vulkan"


@dataclass(frozen=True)
class MetalTarget(ByArchitecture):
    """One target for all Apple GPUs, which compile Metal source."""

    family: ClassVar[str] = "metal-spirv"
    shipped_list: ClassVar[str] = "vulkan-spirv"
    family_flags: ClassVar[tuple[str, ...]] = ("--iree-hal-target-device=metal",)
    device: ClassVar[str] = "metal"

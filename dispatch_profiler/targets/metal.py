"""Apple GPUs: Metal source, which the device compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.targets.by_architecture import ByArchitecture


@dataclass(frozen=True)
class MetalTarget(ByArchitecture):
    """One target for all Apple GPUs."""

    family: ClassVar[str] = "metal-spirv"
    shipped_list: ClassVar[str] = "vulkan-spirv"
    family_flags: ClassVar[tuple[str, ...]] = ("--iree-hal-target-device=metal",)
    device: ClassVar[str] = "metal"

"""Code for NVIDIA GPUs: PTX, of which the driver makes machine code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.errors import TargetError
from dispatch_profiler.targets._by_architecture import ByArchitecture

_NAMES = """
    sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_89 sm_120 sm_121 pascal volta turing
    ampere ada a100 rtx3070 rtx3070ti rtx3080 rtx3080ti rtx3090 rtx3090ti rtx4060 rtx4070 rtx4080
    rtx4090
"""


@dataclass(frozen=True)
class CudaTarget(ByArchitecture):
    """`cuda` is `cuda:sm_80`, which the driver of every GPU since Ampere takes."""

    family: ClassVar[str] = "cuda"
    shipped_list: ClassVar[str] = "cuda"
    architectures: ClassVar[tuple[str, ...]] = tuple(_NAMES.split())
    family_flags: ClassVar[tuple[str, ...]] = ("--iree-hal-target-device=cuda",)
    arch_flag: ClassVar[str] = "--iree-cuda-target"
    device: ClassVar[str] = "cuda"

    arch: str = "sm_80"

    @classmethod
    def _refused(cls, arch: str) -> TargetError:
        if arch.lower().startswith(_NEWER):
            return TargetError(
                f"IREE 3.13 makes no CUDA code for {arch}",
                hint="use cuda:sm_80 or cuda:sm_89: the driver's JIT makes Hopper's code of theirs",
            )
        return super()._refused(arch)


#: Hopper and the data center's Blackwell, by all their names.
_NEWER = ("sm_90", "sm_10", "hopper", "blackwell", "h100", "h200", "gh200", "b100", "b200", "gb200")

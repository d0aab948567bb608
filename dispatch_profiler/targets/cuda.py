"""Code for NVIDIA GPUs: PTX, of which the driver makes machine code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from dispatch_profiler.errors import TargetError
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets._by_architecture import ByArchitecture

_NAMES = """
    sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_89 sm_120 sm_121 pascal volta turing
    ampere ada a100 rtx3070 rtx3070ti rtx3080 rtx3080ti rtx3090 rtx3090ti rtx4060 rtx4070 rtx4080
    rtx4090
"""


#: Hopper and the data center's Blackwell, by all their names.
_NEWER = ("sm_90", "sm_10", "hopper", "blackwell", "h100", "h200", "gh200", "b100", "b200", "gb200")
#: The newest that these run: the driver's JIT makes their code of its PTX.
_NEWEST = "sm_89"


@dataclass(frozen=True)
class CudaTarget(ByArchitecture):
    """`cuda` is `cuda:sm_80`, which the driver of every GPU since Ampere takes.

    Reading `cuda:h200`, of which IREE has no code, gives the newest that runs there, and `note` says so.
    """

    family: ClassVar[str] = "cuda"
    shipped_list: ClassVar[str] = "cuda"
    architectures: ClassVar[tuple[str, ...]] = tuple(_NAMES.split())
    family_flags: ClassVar[tuple[str, ...]] = ("--iree-hal-target-device=cuda",)
    arch_flag: ClassVar[str] = "--iree-cuda-target"
    needs_architecture: ClassVar[bool] = True
    device: ClassVar[str] = "cuda"
    # CUDA C++ Programming Guide, "Technical specifications per compute capability".
    registers: ClassVar[int] = 255
    register_file: ClassVar[int] = 65536

    arch: str = "sm_80"
    #: What was asked for, where IREE has no code for it.
    asked: str = field(default="", compare=False)

    @classmethod
    def parse(cls, detail: str | None) -> Target:
        if detail and _is_newer(detail):
            return cls(_NEWEST, asked=detail)
        return super().parse(detail)

    @property
    def note(self) -> str:
        if not self.asked:
            return ""
        shared = self.limits.gpu.shared_bytes if self.limits.gpu else 0
        return (
            f"IREE 3.13 makes no CUDA code for {self.asked}: compiling for {self.name}, the newest that "
            f"runs there; it takes {shared} B of shared memory a workgroup, cuda:sm_80 takes more"
        )

    def _makes_code_with(self, intrinsic: str) -> bool:
        # mma.sync of 16x8x16 came with sm_80 (PTX ISA); with wmma IREE 3.13 fails or crashes.
        before_ampere = self.arch in ("volta", "turing") or self.arch.startswith("sm_7")
        return intrinsic.startswith("NV_MMA_SYNC") and not before_ampere

    @classmethod
    def _refused(cls, arch: str) -> TargetError:
        if _is_newer(arch):
            return TargetError(
                f"IREE 3.13 makes no CUDA code for {arch}",
                hint=f"use cuda:{_NEWEST}: the driver's JIT makes machine code of its PTX",
            )
        return super()._refused(arch)


def _is_newer(arch: str) -> bool:
    return arch.lower().startswith(_NEWER)

"""NVIDIA GPUs: PTX, which the driver compiles to machine code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from dispatch_profiler.configurations import GpuLimits
from dispatch_profiler.errors import TargetError
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target, mixed_f8_inputs, mixed_narrow_inputs
from dispatch_profiler.targets.by_architecture import ByArchitecture

_NAMES = """
    sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_89 sm_120 sm_121 pascal volta turing
    ampere ada a100 rtx3070 rtx3070ti rtx3080 rtx3080ti rtx3090 rtx3090ti rtx4060 rtx4070 rtx4080
    rtx4090
"""


#: Names of Hopper and data-center Blackwell GPUs -> their architecture.
_NEWER = {
    "sm_90": "sm_90", "hopper": "sm_90", "h100": "sm_90", "h200": "sm_90", "gh200": "sm_90",
    "sm_10": "sm_100", "blackwell": "sm_100", "b100": "sm_100", "b200": "sm_100", "gb200": "sm_100",
}  # fmt: skip
#: The newest architecture that IREE supports and whose PTX their drivers compile.
_NEWEST = "sm_89"
#: KiB of shared memory that one workgroup may have (CUDA C++ Programming Guide, "Technical
#: specifications per compute capability").
_SHARED = {
    "sm_60": 48, "sm_61": 48, "sm_62": 48, "sm_70": 96, "sm_72": 96, "sm_75": 64, "sm_80": 163, "sm_86": 99,
    "sm_87": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99, "sm_121": 99,
}  # fmt: skip


@dataclass(frozen=True)
class CudaTarget(ByArchitecture):
    """`cuda` is `cuda:sm_80`, which runs on every GPU since Ampere.

    `cuda:h200`, which IREE does not support, becomes `cuda:sm_90`: IREE generates code for the newest
    architecture that the GPU runs (see `note`), and external kernels are compiled for the device itself.
    """

    family: ClassVar[str] = "cuda"
    architectures: ClassVar[tuple[str, ...]] = tuple(_NAMES.split())
    family_flags: ClassVar[tuple[str, ...]] = ("--iree-hal-target-device=cuda",)
    arch_flag: ClassVar[str] = "--iree-cuda-target"
    needs_architecture: ClassVar[bool] = True
    device: ClassVar[str] = "cuda"
    # CUDA C++ Programming Guide, "Technical specifications per compute capability".
    registers: ClassVar[int] = 255
    register_file: ClassVar[int] = 65536

    arch: str = "sm_80"
    #: The GPU's own architecture, if IREE does not support it.
    device_arch: str = ""
    #: The requested name, if IREE does not support it.
    requested: str = field(default="", compare=False)

    @classmethod
    def parse(cls, detail: str | None) -> Target:
        newer = _newer(detail or "")
        if newer:
            return cls(_NEWEST, newer, requested=detail or "")
        return super().parse(detail)

    @property
    def shipped_list(self) -> str:  # type: ignore[override]
        return "cuda-sm_90" if self.device_arch else "cuda"

    @property
    def name(self) -> str:
        return f"{self.family}:{self.device_arch}" if self.device_arch else super().name

    def unsupported_reason(self, operation: Operation) -> str | None:
        """See `Target.unsupported_reason`."""
        return mixed_f8_inputs(operation, self.family) or mixed_narrow_inputs(operation, self.family)

    @property
    def _facts_name(self) -> str:
        return super().name

    @property
    def fingerprint(self) -> str:
        return " ".join(filter(None, (super().fingerprint, self.device_arch)))

    def _gpu_limits(self) -> GpuLimits:
        limits = super()._gpu_limits()
        device = self.device_arch or limits.arch
        return replace(limits, device_arch=device, device_shared_bytes=_SHARED[device] * 1024)

    @property
    def note(self) -> str:
        if not self.requested:
            return ""
        shared = self.limits.gpu.shared_bytes if self.limits.gpu else 0
        return (
            f"IREE 3.13 does not support {self.requested}: compiling for {super().name}, the newest architecture "
            f"that runs there; it has {shared} B of shared memory per workgroup, cuda:sm_80 has more"
        )

    def _supports(self, intrinsic: str) -> bool:
        # mma.sync of 16x8x16 came with sm_80 (PTX ISA); with wmma IREE 3.13 fails or crashes.
        before_ampere = self.arch in ("volta", "turing") or self.arch.startswith("sm_7")
        return intrinsic.startswith("NV_MMA_SYNC") and not before_ampere

    @classmethod
    def _invalid_architecture(cls, arch: str) -> TargetError:
        if _newer(arch):
            return TargetError(
                f"IREE 3.13 does not support {arch}",
                hint=f"use cuda:{_NEWEST}: the driver compiles its PTX for the device",
            )
        return super()._invalid_architecture(arch)


def _newer(arch: str) -> str:
    """The architecture of a GPU that IREE does not support, by its name; empty for all others."""
    lowered = arch.lower()
    return next((newer for name, newer in _NEWER.items() if lowered.startswith(name)), "")

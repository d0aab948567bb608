"""AMD GPUs: machine code of one architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.errors import TargetError
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import mixed_narrow_inputs
from dispatch_profiler.targets.by_architecture import ByArchitecture

_NAMES = """
    gfx908 gfx90a gfx942 gfx950 gfx1100 gfx1101 gfx1103 gfx1150 gfx1151 gfx1200 gfx1201 gfx1250
    cdna1 cdna2 mi100 mi210 mi250 mi250x mi300a mi300x mi308x mi325x mi350x mi355x rx7700xt rx7800xt
    rx7900xt rx7900xtx rx9060xt rx9070 rx9070xt r9700 v710 w7700 w7800 w7900 phoenix strix-point
    strix-halo
"""


@dataclass(frozen=True)
class RocmTarget(ByArchitecture):
    """`arch` is an architecture or a GPU's name. `arch` has no default, because no code runs on all GPUs."""

    family: ClassVar[str] = "rocm"
    shipped_list: ClassVar[str] = "rocm"
    architectures: ClassVar[tuple[str, ...]] = tuple(_NAMES.split())
    family_flags: ClassVar[tuple[str, ...]] = ("--iree-hal-target-device=hip",)
    arch_flag: ClassVar[str] = "--iree-rocm-target"
    needs_architecture: ClassVar[bool] = True
    device: ClassVar[str] = "hip"
    stages: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def __post_init__(self) -> None:
        if not self.arch:
            raise self._invalid_architecture(self.arch)
        super().__post_init__()

    def unsupported_reason(self, operation: Operation) -> str | None:
        """See `Target.unsupported_reason`."""
        return mixed_narrow_inputs(operation, self.family)

    @classmethod
    def _invalid_architecture(cls, arch: str) -> TargetError:
        if not arch:
            hint = f"write rocm:gfx942; available: {', '.join(cls.architectures)}"
            return TargetError("rocm needs an architecture", hint=hint)
        return super()._invalid_architecture(arch)

"""The base of targets that are selected by an architecture from a list."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from dispatch_profiler.configurations import GpuLimits, Limits
from dispatch_profiler.errors import TargetError, did_you_mean
from dispatch_profiler.targets._base import KEEP_F64, Target

#: The compiler's facts about each GPU, by the target's name (see `compiler.target_info`).
FACTS = Path(__file__).with_name("gpu_facts.json")


@cache
def _facts() -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return facts


@dataclass(frozen=True)
class ByArchitecture(Target):
    """`arch` is one of `architectures`, or empty if the compiler needs no architecture.

    Raises TargetError for any other; its hint names the most similar one.
    """

    #: Names that IREE 3.13 supports; empty if the family has no architectures.
    architectures: ClassVar[tuple[str, ...]] = ()
    #: Flags of the family, and the flag that takes the architecture.
    family_flags: ClassVar[tuple[str, ...]]
    arch_flag: ClassVar[str] = ""
    needs_architecture: ClassVar[bool] = False
    #: URI of the runtime's device.
    device: ClassVar[str]
    #: Whether its targets are GPUs, which the compiler describes.
    describes_gpus: ClassVar[bool] = True
    #: Values of `prefetch_num_stages` that generate different code, as shown in
    #: tests/compiler/test_gpu_configurations.py.
    stages: ClassVar[tuple[int, ...]] = (1,)
    #: 32-bit registers where the compiler does not report them: per thread, per workgroup.
    registers: ClassVar[int] = 0
    register_file: ClassVar[int] = 0

    arch: str = ""

    def __post_init__(self) -> None:
        if self.arch and self.arch not in self.architectures:
            raise self._invalid_architecture(self.arch)

    @classmethod
    def _invalid_architecture(cls, arch: str) -> TargetError:
        if not cls.architectures:
            return TargetError(
                f"{cls.family} has no architectures, but got {arch!r}", hint=f"write {cls.family}"
            )
        return TargetError(
            f"IREE 3.13 has no {cls.family} architecture {arch!r}", hint=did_you_mean(arch, cls.architectures)
        )

    @classmethod
    def parse(cls, detail: str | None) -> Target:
        if detail == "":
            raise cls._invalid_architecture(detail)
        return cls() if detail is None else cls(detail)

    @property
    def name(self) -> str:
        return f"{self.family}:{self.arch}" if self.arch else self.family

    @property
    def _facts_name(self) -> str:
        """The key of the compiler's facts."""
        return self.name

    @property
    def compile_flags(self) -> tuple[str, ...]:
        arch = (f"{self.arch_flag}={self.arch}",) if self.arch else ()
        return (*self.family_flags, *arch, KEEP_F64)

    @property
    def device_uri(self) -> str:
        return self.device

    @property
    def limits(self) -> Limits:
        return Limits(backend=self.family, gpu=self._gpu_limits() if self.describes_gpus else None)

    def _gpu_limits(self) -> GpuLimits:
        facts = _facts()[self._facts_name]
        return GpuLimits(
            arch=facts["arch"],
            threads=facts["threads"],
            shared_bytes=facts["shared_bytes"],
            subgroup_sizes=tuple(facts["subgroup_sizes"]),
            registers=facts["registers"] or self.registers,
            register_file=self.register_file,
            stages=self.stages,
            intrinsics=tuple(filter(self._supports, facts["intrinsics"])),
        )

    def _supports(self, intrinsic: str) -> bool:
        """Whether the compiler generates code for an instruction that it lists for this target."""
        return True

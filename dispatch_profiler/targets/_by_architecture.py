"""What targets have in common whose code is for an architecture out of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations import Limits
from dispatch_profiler.errors import TargetError, did_you_mean
from dispatch_profiler.targets._base import KEEP_F64, Target


@dataclass(frozen=True)
class ByArchitecture(Target):
    """`arch` is one of `architectures`, or empty where the compiler needs none.

    Raises TargetError for any other, with the nearest that there is.
    """

    #: Names that IREE 3.13 knows and makes code for; none if the family has no architectures.
    architectures: ClassVar[tuple[str, ...]] = ()
    #: Flags of the family, and the one that takes the architecture.
    family_flags: ClassVar[tuple[str, ...]]
    arch_flag: ClassVar[str] = ""
    #: URI of the runtime's device.
    device: ClassVar[str]

    arch: str = ""

    def __post_init__(self) -> None:
        if self.arch and self.arch not in self.architectures:
            raise self._refused(self.arch)

    @classmethod
    def _refused(cls, arch: str) -> TargetError:
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
            raise cls._refused(detail)
        return cls() if detail is None else cls(detail)

    @property
    def name(self) -> str:
        return f"{self.family}:{self.arch}" if self.arch else self.family

    @property
    def compile_flags(self) -> tuple[str, ...]:
        arch = (f"{self.arch_flag}={self.arch}",) if self.arch else ()
        return (*self.family_flags, *arch, KEEP_F64)

    @property
    def device_uri(self) -> str:
        return self.device

    @property
    def limits(self) -> Limits:
        return Limits(backend=self.family)

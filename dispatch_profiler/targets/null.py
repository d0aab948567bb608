"""The null target: no compiler and no device, for trying commands and for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations import Limits
from dispatch_profiler.targets._base import Target


@dataclass(frozen=True)
class NullTarget(Target):
    """`null`, or `null:FILE` with a YAML file of faults and times (see `compiler.backends.null`)."""

    family: ClassVar[str] = "null"
    shipped_list: ClassVar[str] = "llvm-cpu"

    faults: str = ""

    @classmethod
    def parse(cls, detail: str | None) -> NullTarget:
        return cls(detail or "")

    @property
    def name(self) -> str:
        return f"{self.family}:{self.faults}" if self.faults else self.family

    @property
    def named_file(self) -> str:
        return self.faults

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return ()

    @property
    def device_uri(self) -> str:
        return "null"

    @property
    def limits(self) -> Limits:
        return Limits()

"""A target: what is compiled for and runs it."""

from __future__ import annotations

import abc
from typing import ClassVar

from dispatch_profiler.configurations import Limits
from dispatch_profiler.operations import Operation

#: Without this the compiler turns every f64 into f32.
KEEP_F64 = "--iree-input-demote-f64-to-f32=false"


class Target(abc.ABC):
    """Compiler flags, device and hardware limits. Subclasses are frozen dataclasses.

    A tree that was generated for one member of a `family` can be compiled for another.
    """

    family: ClassVar[str]
    #: Which shipped list of configurations goes with it; there need not be one.
    shipped_list: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def parse(cls, detail: str | None) -> Target:
        """Read what stands behind `family:`, None where nothing does. TargetError if it names no target."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """As it is written on the command line: `llvm-cpu`, `llvm-cpu:znver4`."""

    @property
    @abc.abstractmethod
    def compile_flags(self) -> tuple[str, ...]:
        """What the compiler needs for this target."""

    @property
    @abc.abstractmethod
    def device_uri(self) -> str:
        """The runtime device that runs it, unless the user names another."""

    @property
    @abc.abstractmethod
    def limits(self) -> Limits:
        """Hardware limits that make configurations invalid."""

    def unsupported_reason(self, operation: Operation) -> str | None:
        """Why the compiler has no code for `operation` here, or wrong code; None if it has.

        Its dispatches are generated, and `Not compiled` for this reason without being tried.
        """
        return None

    @property
    def note(self) -> str:
        """What the user should know about the chosen code; usually empty."""
        return ""

    @property
    def host(self) -> str:
        """The machine that compiles, if code is made for what that is; mostly empty."""
        return ""

    @property
    def fingerprint(self) -> str:
        """What `compile_flags` stand for on this machine: `host` resolved to the features it has."""
        return " ".join(self.compile_flags)

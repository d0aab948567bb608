"""Contracts of the compiler room: what goes into a build, what comes out, who does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dispatch_profiler.configurations import GpuLimits
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import CompilerError

#: The smallest module with a dispatch.
SMALLEST_MODULE = """func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


@dataclass(frozen=True)
class BuildRequest:
    """All configurations of one operation that share their compiler flags.

    `source` is the whole MLIR file; a build takes the functions of `dispatches` out of it.
    `repeat` is how often the profile vmfb does each dispatch in one call. `rejected` are (dispatch,
    reason) of those that the target cannot have: they are not even tried.
    """

    source: str
    dispatches: tuple[Dispatch, ...]
    flags: tuple[str, ...]
    repeat: int
    rejected: tuple[tuple[str, str], ...] = ()
    #: The device that external kernels are made for.
    gpu: GpuLimits | None = None


@dataclass(frozen=True)
class BuildOutcome:
    """The outcome of one dispatch: compiled with `applied`, or a state with its reason."""

    state: State
    reason: str = ""
    #: What the compiler configured, in its own words.
    applied: str = ""
    #: May it be another one if it is tried again (a time limit, a crash)?
    is_transient: bool = False


@dataclass(frozen=True)
class Kernel:
    """An object for the driver, the shared memory it takes, and where it comes from in words."""

    data: bytes
    shared_bytes: int
    origin: str
    #: Bytes of scratch memory that the whole launch needs.
    scratch_bytes: int = 0


@dataclass(frozen=True)
class Built:
    """Two vmfbs with the same functions, and an outcome for every dispatch that was asked for.

    Dispatches that were not applied are not in the vmfbs; both are empty if none was.
    """

    verify: bytes
    profile: bytes
    outcomes: dict[str, BuildOutcome]
    diagnostics: str = ""


class BuildError(CompilerError):
    """A build failed. `culprits` are the functions that the diagnostics name; maybe none."""

    def __init__(self, message: str, *, diagnostics: str = "", culprits: tuple[str, ...] = ()) -> None:
        super().__init__(message, diagnostics=diagnostics)
        self.culprits = culprits


class Compiler(Protocol):
    """Builds modules. Must be picklable: all but `revision` is asked for in worker processes."""

    @property
    def revision(self) -> str:
        """Which compiler this is, exactly; part of every key."""

    def check_flags(self, flags: Sequence[str]) -> None:
        """Raise UsageError if the compiler does not know one of `flags`."""

    def resolve(self, flags: Sequence[str]) -> tuple[str, ...]:
        """Flags that mean on every machine what `flags` mean on this one."""

    def build(self, request: BuildRequest) -> Built:
        """Compile every dispatch of `request`. Raises BuildError if the compiler refuses the module."""

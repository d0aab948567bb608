"""Contracts of the `compiler` package: the input, the output and the executor of a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dispatch_profiler.configurations import GpuLimits
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import CompilerError

#: A minimal module with one dispatch.
SMALLEST_MODULE = """func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
#: The end of the reason of a function that only `--trust` compiles.
TRUST = "if you trust its author, add --trust"


@dataclass(frozen=True)
class BuildRequest:
    """All configurations of one operation that share their compiler flags.

    `source` is the whole MLIR file; a build compiles its functions for `dispatches`. `repeat` is the
    number of executions of each dispatch per call of the profile vmfb; with 1, the two vmfbs are the same
    unless weights are packed. `rejected` has a (dispatch, reason) pair for each dispatch that the target does
    not support; these are not compiled.
    """

    source: str
    dispatches: tuple[Dispatch, ...]
    flags: tuple[str, ...]
    repeat: int
    rejected: tuple[tuple[str, str], ...] = ()
    #: The device that external kernels are compiled for.
    gpu: GpuLimits | None = None
    #: Whether the compiler also verifies its IR after each pass of the code generator. That finds bugs of the compiler,
    #: and takes a tenth of the time; the vmfbs are the same.
    verifies_passes: bool = True
    #: Further functions of the source to build, beside the functions of the dispatches.
    helpers: tuple[str, ...] = ()
    #: Whether the source was read from a file: its functions are compared with what their configurations render.
    is_from_file: bool = False
    #: Functions that differ from it: they are checked (see `source.foreign`).
    foreign: tuple[str, ...] = ()
    #: Whether the build, of a single dispatch, also yields its launch program.
    wants_program: bool = False
    #: Whether kernels for CPUs flush subnormal numbers to zero, as IREE's do, instead of keeping them.
    flushes_subnormals: bool = False


@dataclass(frozen=True)
class BuildOutcome:
    """The outcome of one dispatch: compiled with `applied`, or a state with its reason."""

    state: State
    reason: str = ""
    #: The configuration that the compiler applied, in its own syntax.
    applied: str = ""
    #: Hash of the generated code without names, if compiled: equal hashes under equal flags mean equal kernels.
    kernel: str = ""
    #: Whether another attempt may have a different outcome (after a time limit or a crash).
    is_transient: bool = False
    #: Whether the compiler would have the same outcome again: not after a lack of memory, processes or disk
    #: space, nor after a signal from outside.
    is_deterministic: bool = True
    #: The time limit in seconds that the build exceeded; 0 without a timeout.
    seconds: float = 0.0


@dataclass(frozen=True)
class KernelBinary:
    """An object for the driver with the kernel `entry`, the shared memory that it needs, and a description of its origin."""

    entry: str
    data: bytes
    shared_bytes: int
    origin: str
    #: Bytes of scratch memory that the whole launch needs.
    scratch_bytes: int = 0


#: Dispatch -> the external kernels that it launches.
Kernels = Mapping[str, tuple[KernelBinary, ...]]


@dataclass(frozen=True)
class Built:
    """Two vmfbs with the same functions, and an outcome for every requested dispatch.

    Only dispatches whose configuration was applied are in the vmfbs; without any, both are empty. `program`
    is for `read_program`; empty unless requested.
    """

    verify: bytes
    profile: bytes
    outcomes: dict[str, BuildOutcome]
    diagnostics: str = ""
    program: str = ""


class BuildError(CompilerError):
    """A failed build. `culprits` are the functions that the diagnostics name; possibly none."""

    def __init__(self, message: str, *, diagnostics: str = "", culprits: tuple[str, ...] = ()) -> None:
        super().__init__(message, diagnostics=diagnostics)
        self.culprits = culprits


class Compiler(Protocol):
    """Builds modules. Must be picklable: worker processes call `check_flags` and `build`."""

    @property
    def revision(self) -> str:
        """The exact version of the compiler; part of every cache key."""

    def check_flags(self, flags: Sequence[str]) -> None:
        """Raise UsageError if the compiler does not know one of `flags`."""

    def resolve(self, flags: Sequence[str]) -> tuple[str, ...]:
        """`flags` with this machine's meaning made explicit, so that they mean the same on every machine."""

    def build(self, request: BuildRequest) -> Built:
        """Compile every dispatch of `request`. Raises BuildError if the compiler rejects the module."""

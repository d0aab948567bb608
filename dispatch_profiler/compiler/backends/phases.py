"""The steps of a compilation, and where they begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dispatch_profiler.compiler.ir_module import IrModule

#: The phase at which loops are assigned to dispatches.
FORMED = "flow"
#: The phase at which every dispatch is a separate executable, with its source.
OUTLINED = "executable-sources"
#: The phase at which every executable has its tiles and pipeline.
CONFIGURED = "executable-configurations"
#: The phase at which every executable is lowered to the target's dialect of MLIR.
LOWERED = "executable-targets"
#: The phase at which code is generated, and command buffers hold every dispatch, fill and copy.
COMMANDS = "hal"


class Phases(Protocol):
    """The steps of a compilation, as `in_process` and `tools` implement them."""

    @property
    def revision(self) -> str: ...

    def check_flags(self, flags: Sequence[str]) -> None: ...

    def parse(self, source: str, flags: tuple[str, ...]) -> IrModule:
        """Source -> a module for the other steps."""

    def advance(
        self, module: IrModule, flags: tuple[str, ...], start: str | None = None, *, stop: str
    ) -> IrModule:
        """Take a module from one phase (None: a source) to another. Consumes `module`."""

    def vmfb(self, module: IrModule, flags: tuple[str, ...], start: str) -> bytes:
        """A module at phase `start` -> vmfb. Consumes `module`."""

    def without_verifier(self) -> Phases:
        """The same steps without verifying the IR after each pass, if the compiler supports that."""

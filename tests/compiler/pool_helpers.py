"""Compilers that the processes of the pool tests import."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.compiler import BuildRequest, Built, NullCompiler


@dataclass(frozen=True)
class Deadly(NullCompiler):
    """Aborts on the source `die`."""

    def build(self, request: BuildRequest) -> Built:
        if request.source == "die":
            os.abort()
        return Built(b"v", b"p", {})


@dataclass(frozen=True)
class DiesOfFlags(NullCompiler):
    """Aborts when it reads the flag `die`."""

    def check_flags(self, flags: Sequence[str]) -> None:
        if "die" in flags:
            os.abort()


@dataclass(frozen=True)
class TellsItsProcess(NullCompiler):
    """The verify vmfb is the number of the process that built it."""

    def build(self, request: BuildRequest) -> Built:
        return Built(str(os.getpid()).encode(), b"p", {})


@dataclass(frozen=True)
class KillsItsParent(NullCompiler):
    """Takes the process that waits for it down, as often as `times`; counts in a file."""

    counter: str = ""
    times: int = 1

    def build(self, request: BuildRequest) -> Built:
        file = Path(self.counter)
        killed = len(file.read_text()) if file.exists() else 0
        if request.source == "die" and killed < self.times:
            file.write_text("x" * (killed + 1))
            os.kill(os.getppid(), signal.SIGKILL)
        return Built(b"v", b"p", {})


@dataclass(frozen=True)
class TellsItsCores(NullCompiler):
    """The verify vmfb is the number of the process that built it, the profile vmfb the cores that it may use."""

    def build(self, request: BuildRequest) -> Built:
        return Built(str(os.getpid()).encode(), repr(sorted(os.sched_getaffinity(0))).encode(), {})

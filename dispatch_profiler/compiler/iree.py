"""IREE as a compiler: configure, prove that what was asked for is configured, generate code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dispatch_profiler.compiler._base import BuildError, Built, ModuleJob, Outcome
from dispatch_profiler.compiler.tools import Tools
from dispatch_profiler.configurations import Evidence
from dispatch_profiler.files import find_tools
from dispatch_profiler.generator import State


class Phases(Protocol):
    """The steps of a compilation, by whoever does them (see `in_process` and `tools`)."""

    @property
    def revision(self) -> str: ...

    def check_flags(self, flags: Sequence[str]) -> None: ...

    def configure(self, source: bytes, flags: tuple[str, ...]) -> bytes: ...

    def advance(self, configured: bytes, flags: tuple[str, ...], phase: str) -> bytes: ...

    def translate(self, configured: bytes, flags: tuple[str, ...], repeat: int) -> tuple[bytes, bytes]: ...


@dataclass(frozen=True)
class IreeCompiler:
    """The installed wheel, or the build in `build_dir`."""

    build_dir: Path | None = None

    @property
    def _phases(self) -> Phases:
        if self.build_dir is not None:
            return Tools(*find_tools(self.build_dir, ["iree-compile"]))
        # Loading the compiler costs 0.2 s and 100 MB: only where something is compiled.
        from dispatch_profiler.compiler.in_process import InProcess

        return InProcess()

    @property
    def revision(self) -> str:
        return self._phases.revision

    def check_flags(self, flags: Sequence[str]) -> None:
        """Raise UsageError if the compiler does not know one of `flags`."""
        self._phases.check_flags(flags)

    def build(self, job: ModuleJob) -> Built:
        """See `Compiler.build`."""
        from dispatch_profiler.compiler.configured import ConfiguredModule

        source = ConfiguredModule(job.source)
        lines = source.lines()
        names = [dispatch.name for dispatch in job.dispatches]
        source.keep_functions(names)
        try:
            module = ConfiguredModule(self._phases.configure(source.bytecode(), job.flags))
            outcomes = module.settle(job.dispatches)
            outcomes |= self._without_evidence(job, module.text(), module.bytecode())
            dropped = [name for name in names if outcomes[name].state is not State.COMPILED]
            if len(dropped) == len(names):
                return Built(b"", b"", outcomes)
            module.drop_dispatches(dropped)
            verify, profile = self._phases.translate(module.bytecode(), job.flags, job.repeat)
        except BuildError as error:
            culprits = tuple(name for name in _culprits(error.diagnostics, lines) if name in names)
            message = _sentence(error.message)
            raise BuildError(message, diagnostics=error.diagnostics, culprits=culprits) from error
        return Built(verify, profile, outcomes)

    def _without_evidence(self, job: ModuleJob, text: str, configured: bytes) -> dict[str, Outcome]:
        """Outcomes of the whole-flow dispatches of which the compiler's IR shows nothing."""
        found: dict[str, Outcome] = {}
        for dispatch in job.dispatches:
            evidence = dispatch.configuration.evidence
            if evidence is not None and not self._shows(evidence, job, text, configured):
                reason = f"the compiler took {' '.join(dispatch.configuration.flags)}, but its IR at "
                reason += f"{evidence.phase} has no {evidence.text}: it changed nothing here"
                found[dispatch.name] = Outcome(State.NOT_APPLIED, reason)
        return found

    def _shows(self, evidence: Evidence, job: ModuleJob, text: str, configured: bytes) -> bool:
        if evidence.phase == "executable-configurations":
            return evidence.text in text
        from dispatch_profiler.compiler.configured import ConfiguredModule

        later = self._phases.advance(configured, job.flags, evidence.phase)
        return evidence.text in ConfiguredModule(later).text()


def _culprits(diagnostics: str, lines: dict[str, int]) -> list[str]:
    """Functions whose lines the diagnostics name. `lines` are where the functions start."""
    starts = sorted((line, name) for name, line in lines.items())
    found: dict[str, None] = {}
    for text in re.findall(r"^\S*?:(\d+):\d+:", diagnostics, flags=re.MULTILINE):
        before = [name for line, name in starts if line <= int(text)]
        if before:
            found[before[-1]] = None
    return list(found)


def _sentence(message: str) -> str:
    """The first line of a diagnostic without its location and the lists that follow it."""
    first = next((line for line in message.splitlines() if line.strip()), message)
    first = re.sub(r"^\S*?:\d+:\d+: (error: )?", "", first.strip())
    return re.sub(r"\s+", " ", first)[:300]

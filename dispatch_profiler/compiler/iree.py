"""IREE as a compiler: configure, verify that the request was configured, generate code."""

from __future__ import annotations

import importlib.util
import re
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dispatch_profiler.compiler._base import SMALLEST_MODULE, BuildError, BuildOutcome, BuildRequest, Built
from dispatch_profiler.configurations import Evidence
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import ToolError
from dispatch_profiler.files import find_tools

if TYPE_CHECKING:
    from dispatch_profiler.compiler.ir_module import IrModule

#: The phase at which it is decided which loops share a dispatch.
_FORMED = "flow"
#: The phase at which every dispatch is a separate executable, with its source.
_OUTLINED = "executable-sources"
#: The phase at which every executable has its tiles and pipeline.
_CONFIGURED = "executable-configurations"
#: The phase at which every executable is lowered to the target's dialect of MLIR.
_LOWERED = "executable-targets"
#: The phase at which code is generated, and command buffers hold every dispatch, fill and copy.
_COMMANDS = "hal"

_CPU = "--iree-llvmcpu-target-cpu"
_HOST = f"{_CPU}=host"
#: The target whose runtime replays recorded commands as a CUDA graph.
_CUDA = "--iree-hal-target-device=cuda"


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
        """The same steps, in which the compiler does not verify its IR after each pass, if it can be told so."""


@dataclass(frozen=True)
class IreeCompiler:
    """The installed wheel, or the build in `build_dir`."""

    build_dir: Path | None = None

    @property
    def _phases(self) -> Phases:
        # Loading the compiler costs 0.2 s and 100 MB: do it only to compile.
        if self.build_dir is not None:
            from dispatch_profiler.compiler.tools import Tools

            return Tools(*find_tools(self.build_dir, ["iree-compile"]))
        from dispatch_profiler.compiler.in_process import InProcess

        return InProcess()

    @property
    def revision(self) -> str:
        """`3.13.0rc20261016 @ 89ece87b...`"""
        return (self.build_dir is None and _wheel_revision()) or _revision_of(self)

    def check_flags(self, flags: Sequence[str]) -> None:
        """Raise UsageError if the compiler does not know one of `flags`."""
        self._phases.check_flags(flags)

    def resolve(self, flags: Sequence[str]) -> tuple[str, ...]:
        """See `Compiler.resolve`: `host` becomes the CPU that the compiler finds here."""
        if _HOST not in flags:
            return tuple(flags)
        cpu, features = self._cpu_of(flags)
        # The compiler puts the features that a CPU name implies before those in the flags.
        _, implied = self._cpu_of([f"{_CPU}={cpu}" if flag == _HOST else flag for flag in flags])
        named = (f"{_CPU}={cpu}", f"{_CPU}-features={features.removeprefix(implied).strip(',')}")
        return tuple(new for flag in flags for new in (named if flag == _HOST else (flag,)))

    def _cpu_of(self, flags: Sequence[str]) -> tuple[str, str]:
        """Name and features of the CPU that `flags` select, as the compiler resolves them."""
        phases, given = self._phases, tuple(flags)
        text = phases.advance(phases.parse(SMALLEST_MODULE, given), given, stop=_OUTLINED).text()
        found = re.search(r'\bcpu = "([^"]*)", cpu_features = "([^"]*)"', text)
        if found is None:
            raise ToolError(
                f"the compiler does not report the CPU of {_HOST}", hint="name it: --target=llvm-cpu:CPU"
            )
        return found[1], found[2]

    def build(self, request: BuildRequest) -> Built:
        """See `Compiler.build`."""
        from dispatch_profiler.compiler.applied import restore_dropped, verify_applied
        from dispatch_profiler.compiler.external_kernels import (
            insert_kernels,
            make_kernels,
            verify_external_kernels,
        )
        from dispatch_profiler.compiler.kernel_identity import kernel_hashes
        from dispatch_profiler.compiler.operand_order import order_operands
        from dispatch_profiler.compiler.padded_products import avoid_padding
        from dispatch_profiler.compiler.sharing import fan_out, share
        from dispatch_profiler.compiler.subnormals import keep_subnormals

        phases, flags = self._phases, request.flags
        kernels, failed = make_kernels(request.dispatches, request.gpu)
        request = replace(request, dispatches=tuple(d for d in request.dispatches if d.name not in failed))
        if not request.dispatches:
            return Built(b"", b"", failed)
        source = phases.parse(request.source, flags)
        lines = source.lines()
        names = [dispatch.name for dispatch in request.dispatches]
        source.keep_functions([*names, *request.helpers])
        insert_kernels(source, kernels)
        groups = share(source)
        try:
            module = outlined(phases, source, flags)
            if _CUDA in flags:
                order_operands(module)
            fan_out(module, groups, lines)
            restore_dropped(module, request.dispatches, lines)
            if _CUDA in flags:
                avoid_padding(module)
            module = phases.advance(module, flags, _OUTLINED, stop=_CONFIGURED)
            outcomes = verify_applied(module, request.dispatches, lines)
            outcomes |= verify_external_kernels(module, kernels) | self._without_evidence(request, module)
            dropped = [name for name in names if outcomes[name].state is not State.COMPILED]
            if len(dropped) == len(names):
                return Built(b"", b"", outcomes | failed)
            module.drop_dispatches(dropped)
            generating = phases if request.verifies_passes else phases.without_verifier()
            module = generating.advance(module, flags, _CONFIGURED, stop=_LOWERED)
            kept = [name for name in names if name not in dropped]
            hashes = kernel_hashes(module, kept)
            outcomes |= {name: replace(outcomes[name], kernel=hashes[name]) for name in kept}
            if not request.flushes_subnormals:
                keep_subnormals(module)
            module = generating.advance(module, flags, _LOWERED, stop=_COMMANDS)
            program = _program(module, request) if request.wants_program else None
            verify, profile = _vmfbs(phases, module, flags, request.repeat)
        except BuildError as error:
            if not request.verifies_passes:  # the verifier may say more
                verified = self.build(replace(request, verifies_passes=True))
                return replace(verified, outcomes=verified.outcomes | failed)
            culprits = tuple(name for name in _culprits(error.diagnostics, lines) if name in names)
            message = _sentence(error.message)
            raise BuildError(message, diagnostics=error.diagnostics, culprits=culprits) from error
        return Built(verify, profile, outcomes | failed, program=program(verify) if program else "")

    def _without_evidence(self, request: BuildRequest, module: IrModule) -> dict[str, BuildOutcome]:
        """Outcomes of the whole-flow dispatches whose evidence is missing in the compiler's IR."""
        found: dict[str, BuildOutcome] = {}
        for dispatch in request.dispatches:
            evidence = dispatch.configuration.evidence
            if evidence is not None and not self._shows(evidence, request, module):
                reason = f"the compiler accepted {' '.join(dispatch.configuration.flags)}, but its IR at "
                reason += f"{evidence.phase} has no {evidence.text}: they had no effect"
                found[dispatch.name] = BuildOutcome(State.NOT_APPLIED, reason)
        return found

    def _shows(self, evidence: Evidence, request: BuildRequest, module: IrModule) -> bool:
        if evidence.phase == _CONFIGURED:
            return evidence.text in module.text()
        later = self._phases.advance(module.clone(), request.flags, _CONFIGURED, stop=evidence.phase)
        return evidence.text in later.text()


def outlined(phases: Phases, source: IrModule, flags: tuple[str, ...]) -> IrModule:
    """A source -> a module at phase `executable-sources`. Consumes `source`.

    Barriers keep the kernels of a form in separate dispatches. Later, the compiler makes the host wait for the
    device at each of them, which only packed weights need.
    """
    if not source.has_barriers:
        return phases.advance(source, flags, stop=_OUTLINED)
    module = phases.advance(source, flags, stop=_FORMED)
    module.drop_barriers()
    return phases.advance(module, flags, _FORMED, stop=_OUTLINED)


def _program(module: IrModule, request: BuildRequest) -> Callable[[bytes], str] | None:
    """What returns the launch program of the request's dispatch, given its vmfb; None for other devices than CUDA's."""
    if _CUDA not in request.flags:
        return None
    from dispatch_profiler.compiler.launch_programs import program_text

    return program_text(module, request.dispatches[0].name)


def _vmfbs(phases: Phases, module: IrModule, flags: tuple[str, ...], repeat: int) -> tuple[bytes, bytes]:
    """A module at phase `hal`, with its code -> verify vmfb and profile vmfb. Consumes `module`."""
    from dispatch_profiler.compiler.appending import add_appending
    from dispatch_profiler.compiler.recording import add_recordings
    from dispatch_profiler.compiler.repetition import repeated

    profile = repeated(module, repeat) if repeat > 1 or module.has_barriers else None
    if _CUDA in flags:
        for each in (module, profile):
            if each is not None:
                add_recordings(each)
    elif profile is None:
        add_appending(module)
    verify = phases.vmfb(module, flags, _COMMANDS)
    return verify, verify if profile is None else phases.vmfb(profile, flags, _COMMANDS)


@cache
def _revision_of(compiler: IreeCompiler) -> str:
    """The revision that the compiler reports, cached because every module's key contains it."""
    return compiler._phases.revision


@cache
def _wheel_revision() -> str:
    """The wheel's revision, without loading the compiler; empty if the wheel has none."""
    spec = importlib.util.find_spec("iree.compiler")
    origin = Path(spec.origin if spec and spec.origin else "").with_name("version.py")
    try:
        found = runpy.run_path(str(origin))
        return f"{found['VERSION']} @ {found['REVISIONS']['IREE']}"
    except (OSError, KeyError):
        return ""


def _culprits(diagnostics: str, lines: dict[str, int]) -> list[str]:
    """Functions that the diagnostics refer to. `lines` maps functions to their first lines."""
    starts = sorted((line, name) for name, line in lines.items())
    found: dict[str, None] = {}
    for text in re.findall(r"^\S*?:(\d+):\d+:", diagnostics, flags=re.MULTILINE):
        before = [name for line, name in starts if line <= int(text)]
        if before:
            found[before[-1]] = None
    return list(found)


def _sentence(message: str) -> str:
    """The first line of a diagnostic, without its location."""
    first = next((line for line in message.splitlines() if line.strip()), message)
    first = re.sub(r"^\S*?:\d+:\d+: (error: )?", "", first.strip())
    return re.sub(r"\s+", " ", first)[:300]

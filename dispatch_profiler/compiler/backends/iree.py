"""IREE as a compiler: configure, verify that the request was configured, generate code."""

from __future__ import annotations

import importlib.util
import re
import runpy
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dispatch_profiler.compiler._base import BuildError, BuildOutcome, BuildRequest, Built, Kernels
from dispatch_profiler.compiler.backends.host_cpu import resolved_flags
from dispatch_profiler.compiler.backends.phases import COMMANDS, CONFIGURED, FORMED, LOWERED, OUTLINED, Phases
from dispatch_profiler.configurations import Evidence, apply_to_processes
from dispatch_profiler.dispatches import State
from dispatch_profiler.files.regular import find_tools

if TYPE_CHECKING:
    from dispatch_profiler.compiler.ir_module import IrModule
    from dispatch_profiler.compiler.passes.sharing import SharedBody

#: The target whose runtime replays recorded commands as a CUDA graph.
_CUDA = "--iree-hal-target-device=cuda"


@dataclass(frozen=True)
class IreeCompiler:
    """The installed wheel, or the build in `build_dir`."""

    build_dir: Path | None = None
    #: A cache for the CPU that `host` stands for, used if the user's cache cannot be.
    folder: Path | None = field(default=None, compare=False)

    @property
    def phases(self) -> Phases:
        """The steps of a compilation, in this process or as commands."""
        return self.phases_with(())

    def phases_with(self, flags: Iterable[str]) -> Phases:
        """`phases` for modules with `flags`: commands if one of these applies to a whole process."""
        # Loading the compiler costs 0.2 s and 100 MB: do it only to compile.
        if self.build_dir is None and not apply_to_processes(flags):
            from dispatch_profiler.compiler.backends.in_process import InProcess

            return InProcess()
        from dispatch_profiler.compiler.backends.tools import Tools

        if self.build_dir is not None:
            return Tools(*find_tools(self.build_dir, ["iree-compile"]))
        from iree.compiler.tools.binaries import find_tool

        return Tools(Path(find_tool("iree-compile")))

    @property
    def revision(self) -> str:
        """`3.13.0rc20261016 @ 89ece87b...`"""
        return (self.build_dir is None and _wheel_revision()) or _revision_of(self)

    def check_flags(self, flags: Sequence[str]) -> None:
        """Raise UsageError if the compiler does not know one of `flags`."""
        self.phases_with(flags).check_flags(flags)

    def resolve(self, flags: Sequence[str]) -> tuple[str, ...]:
        """See `Compiler.resolve`: `host` becomes the CPU that the compiler was shown to work for (`host_cpu`)."""
        return resolved_flags(self, flags, self.folder)

    def build(self, request: BuildRequest) -> Built:
        """See `Compiler.build`. Each step leaves out the dispatches that it rejects."""
        from dispatch_profiler.compiler.passes.external_kernels import insert_kernels, make_kernels
        from dispatch_profiler.compiler.passes.sharing import share

        request = replace(request, flags=self.resolve(request.flags))
        kernels, failed = make_kernels(request.dispatches, request.gpu)
        request = _without(request, failed)
        if not request.dispatches:
            return Built(b"", b"", failed)
        source, rejected = self._parsed(request)
        failed |= rejected
        if not source.names:
            return Built(b"", b"", failed)
        kernels = {name: kernel for name, kernel in kernels.items() if name in source.names}
        insert_kernels(source.module, kernels)
        groups = share(source.module)
        try:
            built = self._compiled(source, kernels, groups)
        except BuildError as error:
            if source.request.verifies_passes:
                raise _blaming(error, source.names, source.lines) from error
            built = self.build(replace(source.request, verifies_passes=True))  # the verifier may say more
        return replace(built, outcomes=built.outcomes | failed)

    def lowered(self, request: BuildRequest, name: str) -> tuple[BuildOutcome, IrModule | None]:
        """The outcome of the only dispatch of `request`, and its module, called `name`, at phase `hal`.

        The module is None unless the dispatch was compiled. External kernels are not supported. Raises BuildError.
        """
        from iree.compiler import ir

        from dispatch_profiler.compiler.passes.sharing import share

        if request.rejected:
            return BuildOutcome(State.NOT_COMPILED, request.rejected[0][1]), None
        dispatch = request.dispatches[0].name
        source, rejected = self._parsed(request)
        if rejected:
            return rejected[dispatch], None
        phases = self.phases_with(request.flags)
        with source.module.operation.context:
            source.module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        module = _configured(phases, source.module, request, share(source.module), source.lines)
        outcome = self._applied(module, request, {}, source.lines)[dispatch]
        if outcome.state is not State.COMPILED:
            return outcome, None
        module, hashes = _generated(phases, module, request, [dispatch])
        return replace(outcome, kernel=hashes[dispatch]), module

    def _parsed(self, request: BuildRequest) -> tuple[_ParsedSource, dict[str, BuildOutcome]]:
        """The source of `request`, and the outcomes of dispatches with functions that may not be compiled."""
        from dispatch_profiler.compiler.source.foreign import keep_allowed
        from dispatch_profiler.compiler.source.functions import with_known_source

        if request.is_from_file:
            request = with_known_source(request)
        module = self.phases_with(request.flags).parse(request.source, request.flags)
        lines = module.lines()
        rejected = keep_allowed(module, request)
        return _ParsedSource(_without(request, rejected), module, lines), rejected

    def _compiled(self, source: _ParsedSource, kernels: Kernels, groups: Sequence[SharedBody]) -> Built:
        """A source with `kernels`, whose equal functions are shared in `groups` -> vmfbs. Consumes its module."""
        phases, request, lines = self.phases_with(source.request.flags), source.request, source.lines
        module = _configured(phases, source.module, request, groups, lines)
        outcomes = self._applied(module, request, kernels, lines)
        kept = [name for name in source.names if outcomes[name].state is State.COMPILED]
        if not kept:
            return Built(b"", b"", outcomes)
        module.drop_dispatches([name for name in source.names if name not in kept])
        module, hashes = _generated(phases, module, request, kept)
        outcomes |= {name: replace(outcomes[name], kernel=hashes[name]) for name in kept}
        program = _program(module, request) if request.wants_program else None
        verify, profile = _vmfbs(phases, module, request.flags, request.repeat)
        return Built(verify, profile, outcomes, program=program(verify) if program else "")

    def _applied(
        self,
        module: IrModule,
        request: BuildRequest,
        kernels: Kernels,
        lines: dict[str, int],
    ) -> dict[str, BuildOutcome]:
        """Whether each dispatch of a configured module is configured as requested."""
        from dispatch_profiler.compiler.passes.applied import verify_applied
        from dispatch_profiler.compiler.passes.external_kernels import verify_external_kernels

        outcomes = verify_applied(module, request.dispatches, lines)
        return outcomes | verify_external_kernels(module, kernels) | self._without_evidence(request, module)

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
        if evidence.phase == CONFIGURED:
            return evidence.text in module.text()
        later = self.phases_with(request.flags).advance(
            module.clone(), request.flags, CONFIGURED, stop=evidence.phase
        )
        return evidence.text in later.text()


@dataclass(frozen=True)
class _ParsedSource:
    """A parsed source, and the request for the dispatches that may be compiled. `lines` has each function's first line."""

    request: BuildRequest
    module: IrModule
    lines: dict[str, int]

    @property
    def names(self) -> list[str]:
        """The names of the dispatches."""
        return [dispatch.name for dispatch in self.request.dispatches]


def _without(request: BuildRequest, names: Collection[str]) -> BuildRequest:
    """`request` without the dispatches called `names`."""
    return replace(request, dispatches=tuple(d for d in request.dispatches if d.name not in names))


def outlined(phases: Phases, source: IrModule, flags: tuple[str, ...]) -> IrModule:
    """A source -> a module at phase `executable-sources`. Consumes `source`.

    Barriers keep the kernels of a form in separate dispatches. Later, the compiler makes the host wait for
    the device at each barrier, which only packed weights need.
    """
    from dispatch_profiler.compiler.passes.kernel_bodies import put_back, take_bodies

    bodies = take_bodies(source)
    if source.has_barriers:
        module = phases.advance(source, flags, stop=FORMED)
        module.drop_barriers()
        module = phases.advance(module, flags, FORMED, stop=OUTLINED)
    else:
        module = phases.advance(source, flags, stop=OUTLINED)
    put_back(module, bodies)
    return module


def _configured(
    phases: Phases,
    source: IrModule,
    request: BuildRequest,
    groups: Sequence[SharedBody],
    lines: dict[str, int],
) -> IrModule:
    """A source, whose equal functions are shared in `groups`, -> a module at phase `configured`. Consumes `source`."""
    from dispatch_profiler.compiler.passes.applied import restore_dropped
    from dispatch_profiler.compiler.passes.padded_products import avoid_padding, order_operands
    from dispatch_profiler.compiler.passes.sharing import fan_out

    module = outlined(phases, source, request.flags)
    if _CUDA in request.flags:
        order_operands(module)
    fan_out(module, groups, lines)
    restore_dropped(module, request.dispatches, lines)
    if _CUDA in request.flags:
        avoid_padding(module)
    return phases.advance(module, request.flags, OUTLINED, stop=CONFIGURED)


def _generated(
    phases: Phases, module: IrModule, request: BuildRequest, names: Collection[str]
) -> tuple[IrModule, dict[str, str]]:
    """A configured module -> a module at phase `hal`, with its code, and each kernel's hash. Consumes `module`."""
    from dispatch_profiler.compiler.ir_module import kernel_hashes
    from dispatch_profiler.compiler.passes.subnormals import keep_subnormals

    generating = phases if request.verifies_passes else phases.without_verifier()
    module = generating.advance(module, request.flags, CONFIGURED, stop=LOWERED)
    hashes = kernel_hashes(module, names)
    if not request.flushes_subnormals:
        keep_subnormals(module)
    return generating.advance(module, request.flags, LOWERED, stop=COMMANDS), hashes


def _program(module: IrModule, request: BuildRequest) -> Callable[[bytes], str] | None:
    """A function from the vmfb to the launch program of the request's dispatch; None for devices other than CUDA's."""
    if _CUDA not in request.flags:
        return None
    from dispatch_profiler.compiler.cuda.launch_programs import program_text

    return program_text(module, request.dispatches[0].name)


def _vmfbs(phases: Phases, module: IrModule, flags: tuple[str, ...], repeat: int) -> tuple[bytes, bytes]:
    """A module at phase `hal`, with its code -> verify vmfb and profile vmfb. Consumes `module`."""
    from dispatch_profiler.compiler.passes.packing import repeated
    from dispatch_profiler.compiler.passes.recording import add_appending, add_recordings

    profile = repeated(module, repeat) if repeat > 1 or module.has_barriers else None
    if _CUDA in flags:
        for each in (module, profile):
            if each is not None:
                add_recordings(each)
    elif profile is None:
        add_appending(module)
    verify = phases.vmfb(module, flags, COMMANDS)
    return verify, verify if profile is None else phases.vmfb(profile, flags, COMMANDS)


@cache
def _revision_of(compiler: IreeCompiler) -> str:
    """The revision that the compiler reports, cached because every module's key contains it."""
    return compiler.phases.revision


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


def _blaming(error: BuildError, names: Collection[str], lines: dict[str, int]) -> BuildError:
    """`error` with the functions of `names` that its diagnostics refer to, and a message of one sentence."""
    culprits = tuple(name for name in _culprits(error.diagnostics, lines) if name in names)
    return BuildError(_sentence(error.message), diagnostics=error.diagnostics, culprits=culprits)


def _sentence(message: str) -> str:
    """The first line of a diagnostic, without its location."""
    first = next((line for line in message.splitlines() if line.strip()), message)
    first = re.sub(r"^\S*?:\d+:\d+: (error: )?", "", first.strip())
    return re.sub(r"\s+", " ", first)[:300]

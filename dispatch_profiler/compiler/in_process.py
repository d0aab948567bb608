"""The compiler of the installed wheel, called in this process through its C API."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import iree.compiler.api.ctypes_dl as native
from iree.compiler import api

from dispatch_profiler.compiler._base import BuildError
from dispatch_profiler.compiler.configured import dispatch_commands
from dispatch_profiler.errors import ToolError, UsageError

_ERROR = 2  # IREE_COMPILER_DIAGNOSTIC_SEVERITY_ERROR
_Callback = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t, ctypes.c_void_p
)


class InProcess:
    """Phases of the compiler, in this process. Picklable: it holds nothing."""

    @property
    def revision(self) -> str:
        """`3.13.0rc20261016 @ 89ece87b...`"""
        _session(())  # loads the library
        function = _library().ireeCompilerGetRevision
        function.restype = ctypes.c_char_p
        return str(function().decode())

    def check_flags(self, flags: Sequence[str]) -> None:
        """UsageError if the compiler does not know one of `flags`."""
        _session(tuple(flags))

    def configure(self, source: bytes, flags: tuple[str, ...]) -> bytes:
        """Source -> IR in which every dispatch is configured, as bytecode."""
        return _run(source, flags, stop="executable-configurations")

    def advance(self, configured: bytes, flags: tuple[str, ...], phase: str) -> bytes:
        """Configured IR -> IR at a later phase, as bytecode."""
        return _run(configured, flags, start="executable-configurations", stop=phase)

    def translate(self, configured: bytes, flags: tuple[str, ...], repeat: int) -> tuple[bytes, bytes]:
        """Configured IR -> the verify vmfb and the profile vmfb, from one code generation."""
        translated = self.advance(configured, flags, "hal")
        verify = _run(translated, flags, start="hal")
        if repeat == 1:
            return verify, verify
        return verify, _run(_repeated(translated, flags, repeat), flags, start="hal")


def _repeated(translated: bytes, flags: tuple[str, ...], repeat: int) -> bytes:
    """IR at phase `hal` in which every dispatch is done `repeat` times, as bytecode."""
    # Wrapped in builtin.module(...) the same pipeline does nothing, and says nothing.
    pipeline = f"util.func(iree-hal-repeat-dispatches{{count={repeat}}})"
    repeated = _run(translated, flags, pipeline=pipeline)
    before, after = (dispatch_commands(ir) for ir in (translated, repeated))
    if after != repeat * before:
        raise ToolError(
            f"the profile module should do {repeat} x {before} dispatches, but does {after}",
            hint="this compiler repeats dispatches in another way: use --batch-size=1",
        )
    return repeated


@cache
def _library() -> Any:
    library = native._dylib
    for name in ("SetCompileFromPhase", "SetCompileToPhase"):
        function = getattr(library, f"ireeCompilerInvocation{name}")
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_char_p], None
    enable = library.ireeCompilerInvocationEnableCallbackDiagnostics
    enable.argtypes, enable.restype = [ctypes.c_void_p, ctypes.c_int, _Callback, ctypes.c_void_p], None
    return library


@cache
def _session(flags: tuple[str, ...]) -> api.Session:
    session = api.Session()
    try:
        session.set_flags(*flags)
    except ValueError as error:
        detail = " ".join(str(error).split()).removeprefix("Error parsing flags: ")
        raise UsageError(
            f"iree-compile refuses its flags: {detail}", hint="see iree-compile --help-hidden"
        ) from error
    return session


def _run(
    data: bytes,
    flags: tuple[str, ...],
    *,
    start: str | None = None,
    stop: str | None = None,
    pipeline: str | None = None,
) -> bytes:
    """Compile `data` from phase `start` to `stop`: bytecode, or a vmfb if there is no `stop`.

    With `pipeline`, run those passes and nothing else; the answer is bytecode.
    """
    session, library = _session(flags), _library()
    errors: list[str] = []

    def heard(severity: int, message: Any, size: int, _: Any) -> None:
        if severity == _ERROR:
            errors.append(ctypes.string_at(message, size).decode(errors="replace"))

    callback = _Callback(heard)
    with session.invocation() as invocation:
        library.ireeCompilerInvocationEnableCallbackDiagnostics(invocation._inv_p, 0, callback, None)
        if start:
            library.ireeCompilerInvocationSetCompileFromPhase(invocation._inv_p, start.encode())
        if stop:
            library.ireeCompilerInvocationSetCompileToPhase(invocation._inv_p, stop.encode())
        done = invocation.parse_source(api.Source.wrap_buffer(session, data)) and (
            invocation.execute_text_pass_pipeline(pipeline) if pipeline else invocation.execute()
        )
        if not done:
            raise BuildError(
                errors[0] if errors else "the compiler failed without a diagnostic",
                diagnostics="\n".join(errors),
            )
        return _output(invocation, is_vmfb=stop is None and pipeline is None)


def _output(invocation: api.Invocation, *, is_vmfb: bool) -> bytes:
    output = api.Output.open_membuffer()
    try:
        if is_vmfb:
            invocation.output_vm_bytecode(output)
        else:
            invocation.output_ir_bytecode(output)
        return bytes(output.map_memory())
    finally:
        output.close()

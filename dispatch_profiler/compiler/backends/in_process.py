"""The compiler of the installed wheel, called in this process through its C API."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import iree.compiler.api.ctypes_dl as native
from iree.compiler import api

from dispatch_profiler.compiler._base import BuildError
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.errors import UsageError

_ERROR = 2  # IREE_COMPILER_DIAGNOSTIC_SEVERITY_ERROR
_Callback = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t, ctypes.c_void_p
)


@dataclass(frozen=True)
class InProcess:
    """Phases of the compiler, in this process. Picklable, because it has no state.

    A module stays in the MLIR context of its session from the source to the vmfb. With `verifies`, the compiler
    verifies its IR after each pass.
    """

    verifies: bool = True

    def without_verifier(self) -> InProcess:
        """See `Phases.without_verifier`."""
        return InProcess(verifies=False)

    @property
    def revision(self) -> str:
        """`3.13.0rc20261016 @ 89ece87b...`"""
        session_of(())  # loads the library
        function = _library().ireeCompilerGetRevision
        function.restype = ctypes.c_char_p
        return str(function().decode())

    def check_flags(self, flags: Sequence[str]) -> None:
        """Raise UsageError if the compiler does not know one of `flags`."""
        session_of(tuple(flags))

    def parse(self, source: str, flags: tuple[str, ...]) -> IrModule:
        """See `Phases.parse`."""
        return IrModule.of_source(source, session_of(flags).context)

    def advance(
        self, module: IrModule, flags: tuple[str, ...], start: str | None = None, *, stop: str
    ) -> IrModule:
        """See `Phases.advance`."""
        self._run(module, flags, start=start, stop=stop)
        return module

    def vmfb(self, module: IrModule, flags: tuple[str, ...], start: str) -> bytes:
        """See `Phases.vmfb`."""
        return self._run(module, flags, start=start)

    def _run(
        self, module: IrModule, flags: tuple[str, ...], *, start: str | None = None, stop: str | None = None
    ) -> bytes:
        """Take `module` from phase `start` to `stop`; without `stop`, compile it and return the vmfb.

        Changes `module`, which is unusable after an error.
        """
        session, library = session_of(flags), _library()
        errors: list[str] = []

        def on_diagnostic(severity: int, message: Any, size: int, _: Any) -> None:
            if severity == _ERROR:
                errors.append(ctypes.string_at(message, size).decode(errors="replace"))

        callback = _Callback(on_diagnostic)
        with session.invocation() as invocation:
            library.ireeCompilerInvocationEnableCallbackDiagnostics(invocation._inv_p, 0, callback, None)
            library.ireeCompilerInvocationSetVerifyIR(invocation._inv_p, self.verifies)
            if start:
                library.ireeCompilerInvocationSetCompileFromPhase(invocation._inv_p, start.encode())
            if stop:
                library.ireeCompilerInvocationSetCompileToPhase(invocation._inv_p, stop.encode())
            invocation.import_module(module.operation)
            if not invocation.execute():
                raise BuildError(
                    errors[0] if errors else "the compiler failed without a diagnostic",
                    diagnostics="\n".join(errors),
                )
            return b"" if stop else _vmfb(invocation)


@cache
def _library() -> Any:
    library = native._dylib
    for name in ("SetCompileFromPhase", "SetCompileToPhase"):
        function = getattr(library, f"ireeCompilerInvocation{name}")
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_char_p], None
    enable = library.ireeCompilerInvocationEnableCallbackDiagnostics
    enable.argtypes, enable.restype = [ctypes.c_void_p, ctypes.c_int, _Callback, ctypes.c_void_p], None
    verify = library.ireeCompilerInvocationSetVerifyIR
    verify.argtypes, verify.restype = [ctypes.c_void_p, ctypes.c_bool], None
    return library


@cache
def session_of(flags: tuple[str, ...]) -> api.Session:
    """The compiler's session with `flags`, made once in a process. Raises UsageError for an unknown flag."""
    session = api.Session()
    try:
        session.set_flags(*flags)
    except ValueError as error:
        detail = " ".join(str(error).split()).removeprefix("Error parsing flags: ")
        raise UsageError(
            f"iree-compile rejected its flags: {detail}", hint="see iree-compile --help-hidden"
        ) from error
    # Each worker has one core: threads of the compiler would only compete with the other workers.
    session.context.enable_multithreading(False)
    return session


def _vmfb(invocation: api.Invocation) -> bytes:
    output = api.Output.open_membuffer()
    try:
        invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())
    finally:
        output.close()

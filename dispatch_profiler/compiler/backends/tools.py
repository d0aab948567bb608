"""The command-line compiler of a user's IREE build (`--build-dir`)."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dispatch_profiler.compiler._base import BuildError
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.outside_causes import crash_of, is_own_signal

#: Shells add it to the number of the signal that ended a program.
_SHELL = 128


@dataclass(frozen=True)
class Tools:
    """Phases of the compiler, each a run of `iree_compile`."""

    iree_compile: Path

    @cached_property
    def revision(self) -> str:
        """The line of `iree-compile --version` that has the revision."""
        output = self._call(["--version"])
        return next((line.strip() for line in output.splitlines() if "version" in line), output.strip())

    @property
    def phases(self) -> Tools:
        """The steps, which this object implements itself."""
        return self

    def check_flags(self, flags: Sequence[str]) -> None:
        """Raise UsageError if the compiler does not know one of `flags`."""
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder, "empty.mlir")
            empty.write_text("module {}\n")
            try:
                self._call([*flags, str(empty), "--compile-to=input", "-o", str(Path(folder, "out"))])
            except BuildError as error:
                raise UsageError(f"iree-compile rejected its flags: {error}") from error

    def parse(self, source: str, flags: tuple[str, ...]) -> IrModule:
        """See `Phases.parse`."""
        return IrModule.of_source(source)

    def advance(
        self, module: IrModule, flags: tuple[str, ...], start: str | None = None, *, stop: str
    ) -> IrModule:
        """See `Phases.advance`."""
        begin = [f"--compile-from={start}"] if start else []
        return IrModule.parse(
            self._run(module, flags, *begin, f"--compile-to={stop}", "--emit-mlir-bytecode")
        )

    def vmfb(self, module: IrModule, flags: tuple[str, ...], start: str) -> bytes:
        """See `Phases.vmfb`."""
        return self._run(module, flags, f"--compile-from={start}")

    def without_verifier(self) -> Tools:
        """See `Phases.without_verifier`: a build of IREE always verifies."""
        return self

    def _run(self, module: IrModule, flags: tuple[str, ...], *more: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            source, output = Path(folder, "source.mlir"), Path(folder, "output")
            source.write_bytes(module.bytecode())
            self._call([*flags, *more, str(source), "-o", str(output)])
            return output.read_bytes()

    def _call(self, arguments: Sequence[str]) -> str:
        command = [str(self.iree_compile), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise ToolError(f"cannot run {self.iree_compile}: {error}") from error
        if (code := _signalled(done.returncode)) < 0:
            raise crash_of(code, done.stderr)
        if done.returncode:
            lines = [
                line for line in done.stderr.splitlines() if "error:" in line or "unknown" in line.lower()
            ]
            message = lines[0] if lines else f"iree-compile exited with status {done.returncode}"
            raise BuildError(message, diagnostics=done.stderr)
        return done.stdout


def _signalled(code: int) -> int:
    """The exit code of a killed process, also if a shell or Python's wrapper of the compiler passed it on."""
    if code > _SHELL and is_own_signal(code - _SHELL):
        return _SHELL - code
    return code - 256 if code > _SHELL and is_own_signal(256 - code) else code

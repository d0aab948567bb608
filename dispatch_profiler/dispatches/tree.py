"""Paths in a generated tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.operations import Operation

Purpose = Literal["verify", "profile"]


@dataclass(frozen=True)
class Tree:
    """`folder/generated/linalg/<kind>/<operation>/`; `folder` is what `--generated-dir` names."""

    folder: Path
    #: The zip that it is temporarily unpacked from; None for a tree on disk.
    bundle: Path | None = None

    @property
    def option(self) -> str:
        """The option that names it: `--generated-dir=FOLDER` or `--bundle=FILE`."""
        return f"--generated-dir={self.folder}" if self.bundle is None else f"--bundle={self.bundle}"

    @property
    def root(self) -> Path:
        """The folder of the manifest and of the kinds."""
        return self.folder / "generated" / "linalg"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    @property
    def journal(self) -> Path:
        """Additions to the manifest since it was last written."""
        return self.root / "manifest.journal"

    @property
    def references(self) -> Path:
        """Cached references, by content."""
        return self.folder / "generated" / "reference_cache"

    def operation(self, operation: Operation) -> Path:
        return self.root / operation.kind / operation.name

    def source(self, operation: Operation, module: str = "") -> Path:
        """The MLIR of every configuration of `operation` that the generator wrote, or the MLIR of another `module`."""
        suffix = f"_{module}" if module else ""
        return self.operation(operation) / f"{operation.name}{suffix}.mlir"

    def source_of(self, dispatch: Dispatch) -> Path:
        """The MLIR file with the function of `dispatch`."""
        configuration = dispatch.configuration
        return self.source(dispatch.operation, "" if configuration.is_generated else configuration.module)

    def vmfb(self, operation: Operation, module: str, purpose: Purpose) -> Path:
        """A compiled module. `module` is "" for the target's plain flags, else the flow's name."""
        flow = f"_{module}" if module else ""
        return self.operation(operation) / f"{operation.name}{flow}_{purpose}.vmfb"

    def compiler_output(self, operation: Operation, module: str = "") -> Path:
        """The compiler's output for one module of this operation."""
        flow = f"_{module}" if module else ""
        return self.operation(operation) / f"iree_compile_cmd_stdout{flow}.mlir"

    def made_of(self, operation: Operation, module: str) -> tuple[Path, ...]:
        """Every file that compiling one module produces."""
        vmfbs = (self.vmfb(operation, module, "verify"), self.vmfb(operation, module, "profile"))
        return (*vmfbs, self.compiler_output(operation, module))

    def reproducer(self, operation: Operation, dispatch: str) -> Path:
        """One dispatch that does not compile, alone, with the command."""
        return self.operation(operation) / "reproducers" / f"{dispatch}.mlir"

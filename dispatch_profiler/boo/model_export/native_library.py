"""The static library of a package: kernels, constants, and the functions that AOTInductor's code calls."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dispatch_profiler.boo.driver.torch_functions import cpp_compiler
from dispatch_profiler.boo.fusion.spec import MAX_AXES
from dispatch_profiler.boo.model_export.operators import RegionOperator
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError, reason_of
from dispatch_profiler.generator.render import environment
from dispatch_profiler.library.c_export.c_files import c_files
from dispatch_profiler.library.c_export.functions import ALIGNMENT, CKernel
from dispatch_profiler.version import __version__

_torch: Any = torch
#: The name of the kernels' header and source, and of the block of constants.
_KERNELS, _CONSTANTS = "package_kernels", "dp_constants"
#: Element type -> its name in torch's C interface.
_TYPE_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
#: What is wrong with a command: the last lines of its output.
_LINES = 5
_C_FLAGS = ("-x", "c", "-std=c11", "-O2", "-fPIC", "-fopenmp")


def check_tools() -> str:
    """The C++ compiler that AOTInductor uses. Raises UsageError or MissingDependency if no package can be made here."""
    if sys.platform != "linux":
        raise UsageError(f"packages with kernels are for Linux, and this is {platform.system()}")
    from torch._inductor import config

    if not all(hasattr(config.aot_inductor, each) for each in ("custom_ops_to_c_shims", "custom_op_libs")):
        version = torch.__version__
        raise MissingDependency(
            f"torch {version} cannot link kernels into packages of AOTInductor",
            hint="run python -m pip install 'torch>=2.9'",
        )
    compiler = cpp_compiler("AOTInductor")
    if shutil.which("ar") is None:
        raise UsageError("the program ar is not on PATH", hint="install binutils")
    return compiler


@dataclass(frozen=True)
class NativeLibrary:
    """Kernels in a folder, which a C++ compiler turns into libraries."""

    folder: Path
    compiler: str
    kernels: tuple[CKernel, ...]

    def write(self) -> None:
        """Write the kernels' objects and source to the folder."""
        files = c_files(_KERNELS, self.kernels, origin="a model", compiler="IREE", cpus="this machine's CPU")
        self._write(files)
        self._run([*self._compile, "-c", f"{_KERNELS}.c", "-o", f"{_KERNELS}.o"])

    def shared(self) -> Path:
        """A shared library of the kernels."""
        path = self.folder / f"lib{_KERNELS}.so"
        objects = [each.object_file for each in self.kernels]
        self._run([self.compiler, "-shared", "-o", str(path), f"{_KERNELS}.o", *objects, "-lm"])
        return path

    def archive(self, name: str, operators: Sequence[RegionOperator], constants: bytes) -> None:
        """Write `lib<name>.a`: the kernels, `constants`, and the functions of the `operators`."""
        source = _source(operators)
        self._write(
            {"operators.c": source.encode(), "constants.bin": constants, "constants.s": _assembly().encode()}
        )
        self._run([*self._compile, "-c", "operators.c", "-o", "operators.o"])
        self._run([self.compiler, "-x", "assembler", "-c", "constants.s", "-o", "constants.o"])
        objects = [
            f"{_KERNELS}.o",
            "operators.o",
            "constants.o",
            *(each.object_file for each in self.kernels),
        ]
        self._run(["ar", "rcs", f"lib{name}.a", *objects])

    @property
    def _compile(self) -> list[str]:
        return [self.compiler, *_C_FLAGS]

    def _write(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            (self.folder / name).write_bytes(data)

    def _run(self, command: Sequence[str]) -> None:
        try:
            done = subprocess.run(
                command, cwd=self.folder, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            raise ToolError(f"{command[0]} does not start: {reason_of(error)}") from error
        if done.returncode:
            lines = " ".join(done.stderr.split("\n")[-_LINES:]).strip()
            raise ToolError(f"{command[0]} failed with status {done.returncode}: {lines}")


def _source(operators: Sequence[RegionOperator]) -> str:
    """The functions of the operators in C."""
    used = sorted({layout.type for each in operators for layout in (*each.inputs, *each.results)})
    lines = environment().overlay(trim_blocks=True, lstrip_blocks=True)
    return lines.get_template("package_operators.c.j2").render(
        version=__version__,
        library=_KERNELS,
        constants=_CONSTANTS,
        types=[_TYPE_NAMES[each] for each in used],
        type_names=_TYPE_NAMES,
        most_axes=MAX_AXES,
        operators=operators,
    )


def _assembly() -> str:
    """An object with `constants.bin`. On x86-64, in the section for data of more than 2 GB."""
    section = ".lrodata" if platform.machine() == "x86_64" else ".rodata"
    return "\n".join(
        [
            f'.section {section},"a"',
            f".balign {ALIGNMENT}",
            f".globl {_CONSTANTS}",
            f"{_CONSTANTS}:",
            '.incbin "constants.bin"',
            ".byte 0",
            '.section .note.GNU-stack,"",%progbits',
            "",
        ]
    )

"""Entries of a library -> a folder with code for programs outside Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.compiler.backends.host_cpu import CPU_FLAG
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import CompilerError, UsageError
from dispatch_profiler.library.c_export.c_files import c_files, library_name
from dispatch_profiler.library.c_export.folder import check_folder, write_folder
from dispatch_profiler.library.c_export.functions import compiled
from dispatch_profiler.library.c_export.kernels import ExportedKernel, LeftOut, exported_kernels
from dispatch_profiler.library.c_export.vmfbs import vmfb_of, vmfb_readme
from dispatch_profiler.library.entry import Entry
from dispatch_profiler.targets import Target

T = TypeVar("T")


@dataclass(frozen=True)
class Exported:
    """The names of the exported kernels, and why others were left out."""

    kernels: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


def export_c(entries: Sequence[Entry], folder: Path, *, origin: str) -> Exported:
    """Write object files, and C code that calls them, for `entries` to `folder`. `origin` names the library.

    Raises UsageError if no entry can be exported, or if a file of `folder` is not of an export.
    """
    kernels, made, left_out = _made(entries, folder, compiled, as_c=True)
    files = c_files(
        library_name(folder),
        made,
        origin=origin,
        compiler=_compilers(kernels),
        cpus=cpus_of(each.target for each in kernels),
        left_out=left_out,
    )
    write_folder(folder, files)
    return Exported(tuple(each.name for each in kernels), left_out)


def export_vmfbs(entries: Sequence[Entry], folder: Path, *, origin: str) -> Exported:
    """Write a vmfb for each of `entries`, and README.txt with the command that runs it, to `folder`.

    Raises UsageError like `export_c`.
    """
    kernels, made, left_out = _made(entries, folder, vmfb_of, as_c=False)
    files = {f"{kernel.name}.vmfb": data for kernel, data in zip(kernels, made, strict=True)}
    readme = vmfb_readme(kernels, origin=origin, compiler=_compilers(kernels), left_out=left_out)
    write_folder(folder, {**files, "README.txt": readme.encode()})
    return Exported(tuple(each.name for each in kernels), left_out)


def _made(
    entries: Sequence[Entry], folder: Path, make: Callable[[ExportedKernel], T], *, as_c: bool
) -> tuple[tuple[ExportedKernel, ...], tuple[T, ...], tuple[LeftOut, ...]]:
    """The kernels that `make` compiled, what it made, and the entries that were left out."""
    check_folder(folder)
    kernels, reasons = exported_kernels(entries, as_c=as_c)
    left_out = list(reasons)
    made: dict[ExportedKernel, T] = {}
    for kernel in kernels:
        try:
            made[kernel] = make(kernel)
        except CompilerError as error:
            left_out.append((kernel.operation_name, error.message))
    if not made:
        name, reason = left_out[0] if left_out else ("", "the library has no entries")
        more = f"; {counted(len(left_out) - 1, 'more entry')} cannot be exported" if len(left_out) > 1 else ""
        raise UsageError(f"{name}: {reason}{more}" if name else reason)
    return tuple(made), tuple(made.values()), tuple(left_out)


def _compilers(kernels: Iterable[ExportedKernel]) -> str:
    return ", ".join(dict.fromkeys(f"IREE {each.compiler.revision}" for each in kernels))


def cpus_of(targets: Iterable[Target]) -> str:
    """`znver4 (x86-64-v4)`, for each CPU that kernels for `targets` are compiled for."""
    names = []
    for target in dict.fromkeys(targets):
        flags = compiler_for(target).resolve(target.compile_flags)
        cpu = next((flag.partition("=")[2] for flag in flags if flag.startswith(f"{CPU_FLAG}=")), target.name)
        level = getattr(target, "level", "")
        names.append(f"{cpu} ({level})" if level else cpu)
    return ", ".join(dict.fromkeys(names))

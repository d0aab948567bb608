"""Which vector instructions inductor may use: asked once, and kept beside the kernels.

Inductor compiles a library for each set of instructions that the CPU has, and starts processes that load it: 1 to 2 s of
a core in every process that compiles. Only "all of them can be used" is kept, under everything that this depends on.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.private_files import read_private, write_private

_torch: Any = torch
#: What compilers and the loader of libraries read.
_VARIABLES = (
    "PATH",
    "CC",
    "CXX",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GLIBC_TUNABLES",
)
_PREFIXES = ("LD_", "GCC_", "CONDA_", "PYTHON")
#: Far above the names of all instructions.
_LONGEST = 2**12


def ask_for_vector_instructions(folder: Path | None) -> None:
    """Let inductor know which instructions to use, from a note in `folder`; without a note, it finds out.

    Raises what inductor raises.
    """
    from torch._inductor import config, cpu_vec_isa

    names = _names(_supported())
    # In older versions of torch, all threads share settings, and are not to be changed even for a moment.
    settings: Any = config
    is_ours = hasattr(settings, "_hash_dirty_var") and settings.cpp.vec_isa_ok is None
    note = None if folder is None or not (names and is_ours) else folder / "inductor" / f"vectors-{_key()}"
    if note is not None and _read(note) == names:
        with settings.patch({"cpp.vec_isa_ok": True}):
            cpu_vec_isa.valid_vec_isa_list()
    elif _names(cpu_vec_isa.valid_vec_isa_list()) == names and note is not None:
        write_private(note, names)


def _supported() -> list[Any]:
    """The sets of vector instructions that the CPU has and inductor knows, whether or not they can be used."""
    from torch._inductor import cpu_vec_isa

    known = cpu_vec_isa.x86_isa_checker()
    return [
        each
        for each in cpu_vec_isa.supported_vec_isa_list
        if all(name in known for name in str(each).split())
    ]


def _names(found: list[Any]) -> str:
    return ", ".join(map(str, found))


def _read(note: Path) -> str | None:
    try:
        return read_private(note, _LONGEST).decode()
    except (UsageError, ValueError):
        return None


def _key() -> str:
    """Of all that decides what can be compiled and loaded: torch's files, the compiler, the system, settings."""
    from torch._inductor import config, cpp_builder
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = cpp_builder.get_cpp_compiler()
    variables = {
        name: found
        for name, found in sorted(os.environ.items())
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }
    files = sorted((Path(torch.__file__).parent / "lib").iterdir())
    settings: Any = config
    parts = (
        torch.__version__,
        _torch.version.git_version,
        [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files],
        sys.executable,
        sys.version,
        platform.platform(),
        _torch.cpu.get_capabilities(),
        compiler,
        cpp_builder.get_compiler_version_info(compiler),
        settings.get_hash(),
        cache_dir(),
        variables,
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]

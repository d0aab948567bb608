"""Sources of this package as parts of cache keys: entries that other versions of the code made are made again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dispatch_profiler.files.regular import sha256

_PACKAGE = Path(__file__).parent


@dataclass(frozen=True)
class Sources:
    """The sources that determine the entries of a cache.

    `included` and `excluded` are globs below this package. Each module that an included module imports is in one of them:
    an excluded module changes no kept result, or its influence is in the key itself. `package` is the folder
    that holds the sources.
    """

    included: tuple[str, ...]
    excluded: tuple[str, ...]
    package: Path = _PACKAGE

    @cache  # noqa: B019 - the few instances are constants
    def hash(self) -> str:
        """The hash of the included files, which are read once per process. Each glob matches a file, or this fails."""
        return sha256(b"".join(file.read_bytes() for file in files(self.included, self.package)))


def files(globs: tuple[str, ...], package: Path = _PACKAGE) -> list[Path]:
    """The files of `package` that match `globs`. Raises ValueError for an outdated glob, which matches no file."""
    every: set[Path] = set()
    for glob in globs:
        matches = {file for file in package.glob(glob) if file.is_file()}
        if not matches:
            raise ValueError(f"no file of dispatch_profiler matches {glob}")
        every |= matches
    return sorted(every)


#: Errors, files, terminals, processes, and the version, which is part of every key.
_TOP = (
    *(
        "__init__.py",
        "amx_permission.py",
        "blocks.py",
        "closing.py",
        "command.py",
        "cores.py",
        "errors.py",
        "exports.py",
    ),
    "families.py",
    *("isolation.py", "outside_causes.py", "sources.py", "startup.py", "version.py"),
    *("console/*.py", "files/*.py"),
)
_COMPILING = ("compiler/**/*.py", "configurations/**/*.py", "templates/triton_*.py")
#: The name and features of the CPU `host`, which are found by compiling small modules.
HOST_CPU = Sources(
    included=("compiler/backends/host_cpu.py", "targets/cpu.py"),
    # Caches and requests keep the results of the probes; flags come from IREE's own modules.
    excluded=(
        *_TOP,
        "compiler/**/*.py",
        "configurations/**/*.py",
        "dispatches/*.py",
        "operations/**/*.py",
        "targets/**/*.py",
    ),
)
#: The vmfbs of generated modules, with source and flags in the key.
BUILDS = Sources(
    included=_COMPILING,
    excluded=(*_TOP, "dispatches/*.py", "generator/*.py", "operations/**/*.py", "targets/**/*.py"),
)
#: The vmfbs of single dispatches for launches, whose key does not have the MLIR source.
LAUNCHES = Sources(
    included=(
        *(*_COMPILING, "dispatches/**/*.py", "generator/render.py", "operations/**/*.py"),
        *("targets/**/*.json", "targets/**/*.py", "templates/**/*.mlir.j2"),
    ),
    excluded=_TOP,
)
#: The runs of kernels that replace parts of a torch graph.
GRAPHS = Sources(
    included=(
        *(
            "boo/backends/**/*.py",
            "boo/fusion/**/*.py",
            "boo/launching/torch_types.py",
            "boo/ops/layouts.py",
            "boo/weights/memory.py",
            "operations/**/*.py",
        ),
        *("profiler/providers/torch_library.py", "workloads/miopen/*.py"),
    ),
    # Kernels and chains are made from the runs in each process, and kernels have their own keys.
    excluded=(
        *(
            *_TOP,
            "boo/*.py",
            "boo/driver/**/*.py",
            "boo/kernels/*.py",
            "boo/launching/**/*.py",
            "boo/op_exports/*.py",
            "boo/ops/*.py",
        ),
        *(
            "boo/weights/*.py",
            "compiler/**/*.py",
            "configurations/**/*.py",
            "dispatches/*.py",
            "generator/*.py",
        ),
        *("library/*.py", "profiler/**/*.py", "runtime/*.py", "targets/**/*.py", "workloads/*.py"),
    ),
)

"""Generated tree -> vmfbs, with proof that each dispatch is configured as requested."""

from __future__ import annotations

from pathlib import Path

from dispatch_profiler.compiler._base import BuildError, BuildOutcome, BuildRequest, Built, Compiler
from dispatch_profiler.compiler.backends.iree import IreeCompiler
from dispatch_profiler.compiler.backends.null import NullCompiler, load_rules
from dispatch_profiler.compiler.cache import Cache, CacheEntry, CacheInfo, Origin
from dispatch_profiler.compiler.request import (
    build_key,
    build_request,
    launch_flags,
    launch_key,
    launch_request,
    origin_of,
    repeat_count,
)
from dispatch_profiler.compiler.tree import (
    CompileOptions,
    Progress,
    artifact_of,
    compile_tree,
    count_dispatches,
)
from dispatch_profiler.compiler.workers.cluster import Cluster, TlsFiles
from dispatch_profiler.targets import NullTarget, Target


def compiler_for(target: Target, build_dir: Path | None = None, folder: Path | None = None) -> Compiler:
    """The compiler for `target`; `build_dir` is a user's IREE build, instead of the installed wheel.

    `folder` is a cache for the CPU that the target `host` stands for, used if the user's cache cannot be.
    """
    if isinstance(target, NullTarget):
        return NullCompiler(load_rules(Path(target.faults)) if target.faults else ())
    return IreeCompiler(build_dir, folder)


__all__ = [
    "BuildError",
    "BuildOutcome",
    "BuildRequest",
    "Built",
    "Cache",
    "CacheEntry",
    "CacheInfo",
    "Cluster",
    "CompileOptions",
    "Compiler",
    "IreeCompiler",
    "NullCompiler",
    "Origin",
    "Progress",
    "TlsFiles",
    "artifact_of",
    "build_key",
    "build_request",
    "compile_tree",
    "compiler_for",
    "count_dispatches",
    "launch_flags",
    "launch_key",
    "launch_request",
    "origin_of",
    "repeat_count",
]

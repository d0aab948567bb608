"""Build requests, and the keys under which their results are cached."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dispatch_profiler.compiler._base import BuildRequest, Compiler
from dispatch_profiler.compiler.backends.host_cpu import CPU_FLAG
from dispatch_profiler.compiler.cache import Origin
from dispatch_profiler.compiler.cuda.triton import triton_version
from dispatch_profiler.compiler.source.functions import relevant_source
from dispatch_profiler.configurations import (
    KernelObject,
    KernelSource,
    check_flags,
    rejection_reason,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import hash_file, sha256
from dispatch_profiler.operations import Operation
from dispatch_profiler.sources import BUILDS, LAUNCHES
from dispatch_profiler.targets import Target
from dispatch_profiler.version import __version__

#: The profile vmfb repeats a dispatch until one call does about this much work ...
_FLOPS_PER_CALL = 2e9
#: ... but at most as often as the IREE dispatch profiler does.
_MAX_REPEATS = 100
#: On a GPU. There a call costs as much as a small kernel, so it always repeats the dispatch.
_FLOPS_PER_CALL_ON_GPU = 2e11
_MIN_REPEATS_ON_GPU = 10


def repeat_count(operation: Operation, on_gpu: bool = False) -> int:
    """Executions of each dispatch per call of the profile vmfb: 100 for small ones, 1 (GPU: 10) for large."""
    work = _FLOPS_PER_CALL_ON_GPU if on_gpu else _FLOPS_PER_CALL
    fewest = _MIN_REPEATS_ON_GPU if on_gpu else 1
    return max(fewest, min(_MAX_REPEATS, round(work / max(1, operation.flops))))


def build_request(
    source: str,
    dispatches: Sequence[Dispatch],
    target: Target,
    *,
    flags: Sequence[str] = (),
    repeat: int | None = None,
) -> BuildRequest:
    """A request for `dispatches` of one operation that share their module, for `target`.

    `source` is MLIR text with a function for each, as `render_module` writes it. `flags` are compiler
    flags in addition to the flags of target and configurations. `repeat` defaults to `repeat_count`.
    Dispatches that `target` does not support are rejected with their reasons, not built.
    """
    operation = dispatches[0].operation
    shared = target.unsupported_reason(operation)
    reasons = (
        (d.name, rejection_reason(d.configuration, operation, target.limits) or shared) for d in dispatches
    )
    return BuildRequest(
        source,
        tuple(dispatches),
        all_flags(target, dispatches[0], flags),
        repeat or repeat_count(operation, target.limits.gpu is not None),
        tuple((name, reason) for name, reason in reasons if reason),
        target.limits.gpu,
        flushes_subnormals=target.flushes_subnormals,
    )


def all_flags(target: Target, dispatch: Dispatch, flags: Sequence[str]) -> tuple[str, ...]:
    """The flags of a build: the target's, the configuration's, and the user's.

    Raises ConfigurationError if the configuration, which may come from another user, has a flag that it may not set.
    """
    check_flags(dispatch.configuration.flags)
    return (*target.flags_of(dispatch.operation), *dispatch.configuration.flags, *flags)


def build_key(request: BuildRequest, target: Target, compiler: Compiler) -> str:
    """The hash, in hexadecimal, of everything that determines the output of `compiler` for `request`.

    Equal keys mean equal vmfbs. A key covers the requested functions of the source (edits elsewhere do
    not change it), this package's version and code, the compiler's revision, the target with its CPU resolved, and
    the content of files that flags or kernels name.
    """
    names = [dispatch.name for dispatch in request.dispatches]
    content = [
        *(__version__, BUILDS.hash(), compiler.revision, target.fingerprint),
        *(
            compiler.resolve(request.flags),
            request.repeat,
            relevant_source(request.source, names),
            names,
            request.rejected,
        ),
        *(files_of(request.flags), external_kernels(request.dispatches), _unnamed(request.dispatches)),
    ]
    return sha256(json.dumps(content).encode())


def origin_of(target: Target, compiler: Compiler) -> Origin:
    """The origin of a build of `compiler` for `target`, as a cache records it."""
    if not target.host:
        return Origin(compiler.revision, target.name)
    flags = compiler.resolve(target.compile_flags)
    cpus = [flag.partition("=")[2] for flag in flags if flag.startswith(f"{CPU_FLAG}=")]
    return Origin(compiler.revision, f"{target.name} ({' '.join([*cpus, 'on', target.host])})")


def _unnamed(dispatches: Sequence[Dispatch]) -> tuple[Mapping[str, Any], ...]:
    """Configurations whose names omit fields that the source may lack, such as the options of a Triton kernel."""
    configurations = (dispatch.configuration for dispatch in dispatches)
    return tuple(each.to_dict() for each in configurations if not each.is_generated)


def files_of(flags: Sequence[str]) -> tuple[str, ...]:
    """Hashes of the files that flags name, such as a tuning spec, because their content may change.

    Raises UsageError for a named pipe, which would block the compiler.
    """
    values = (flag.partition("=")[2] for flag in flags)
    return tuple(hash_file(Path(value)) for value in values if _is_file_or_pipe(value))


def _is_file_or_pipe(path: str) -> bool:
    # os.path also returns False for values too long for a path, such as a list of CPU features.
    return os.path.isfile(path) or (os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode))


def external_kernels(dispatches: Sequence[Dispatch]) -> tuple[str, ...]:
    """Dependencies of external kernels besides the configuration: Triton, or the object's content."""
    kernels = [each for dispatch in dispatches for each in dispatch.configuration.kernels(dispatch.operation)]
    objects = [kernel.path for kernel in kernels if isinstance(kernel, KernelObject)]
    versions = [f"triton {triton_version()}"] if any(isinstance(k, KernelSource) for k in kernels) else []
    return (*versions, *(_content(Path(path)) for path in objects if os.path.isfile(path)))


def _content(path: Path) -> str:
    """Hash of an object; empty if it cannot be read, which becomes the verdict of its dispatch."""
    try:
        return hash_file(path)
    except UsageError:
        return ""


# -- launch request --------------------------------------------------------------------------------

# Builds of one dispatch for programs that call it: one vmfb with one function, which executes the dispatch once.
#
# The key of such a build takes 10 ms. It contains the operation, the configuration and the templates instead of the
# source, so that a program whose kernels are cached renders nothing.


def launch_request(dispatch: Dispatch, target: Target, flags: Sequence[str] = ()) -> BuildRequest:
    """A request for a single vmfb: its function takes the operands, then the results, which it writes to.

    A packed weight is an operand of the function as `dispatch.packing_function` makes it. The two vmfbs of
    its `Built` are the same, and for CUDA it has a launch program. `flags` are compiler flags in addition to
    the flags of target and configuration.
    """
    # Imported here: a cached build needs no source.
    from dispatch_profiler.generator.render import render_launch

    request = build_request(render_launch(dispatch), [dispatch], target, flags=flags, repeat=1)
    packing = (dispatch.packing_function,) if dispatch.configuration.packs_weight else ()
    return replace(request, verifies_passes=False, wants_program=True, helpers=packing)


def launch_flags(dispatch: Dispatch, target: Target, flags: Sequence[str] = ()) -> tuple[str, ...]:
    """The compiler flags of `launch_request`, which are known without its source."""
    return all_flags(target, dispatch, flags)


def launch_key(dispatch: Dispatch, target: Target, compiler: Compiler, flags: Sequence[str] = ()) -> str:
    """The hash, in hexadecimal, of everything that determines the output of `compiler` for `launch_request`.

    Equal keys mean equal vmfbs. A key covers the operation and the configuration with all of their fields,
    this package's version and code, the compiler's revision, the target with its CPU resolved, and the
    content of files that flags or kernels name.
    """
    given = launch_flags(dispatch, target, flags)
    content = [
        *("launch", __version__, LAUNCHES.hash(), compiler.revision, target.fingerprint),
        *(dispatch.operation.kernel_identity, dispatch.configuration.to_dict(), compiler.resolve(given)),
        *(files_of(given), external_kernels([dispatch])),
    ]
    return sha256(json.dumps(content).encode())

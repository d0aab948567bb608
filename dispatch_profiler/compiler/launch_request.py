"""Builds of one dispatch for programs that call it: one vmfb with one function, which executes the dispatch once.

The key of such a build takes 10 ms. It contains the operation, the configuration and the templates instead of the
source, so that a program whose kernels are cached renders nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from dispatch_profiler.compiler._base import BuildRequest, Compiler
from dispatch_profiler.compiler.request import all_flags, build_request, external_kernels, files_of
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.sources import LAUNCHES
from dispatch_profiler.targets import Target
from dispatch_profiler.version import __version__


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

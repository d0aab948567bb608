"""The command line that makes one record again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from dispatch_profiler.dispatches import Tree
from dispatch_profiler.profiler.providers.library_calls import IREE

if TYPE_CHECKING:
    from dispatch_profiler.profiler.evaluation.session import ProfileOptions


def command_line(tree: Tree, dispatch: str, options: ProfileOptions, provider: str = IREE) -> str:
    """What measures `dispatch` of `tree` as `options` say, in the same working folder.

    Of a library, what measures what it makes of the operation of `dispatch`.

    What is as ever is left out: each option stands here once, with its value where that is another.
    """
    usual = type(options)(options.device)
    given, stop = options.measure, options.measure.stop
    mebibytes = None if options.memory_bytes is None else f"{options.memory_bytes // 2**20}"
    values = {
        "verification-enabled": (options.verify, usual.verify, "false"),
        "profiling-enabled": (options.profile, usual.profile, "false"),
        "benchmark-repetitions": (stop.count, None, str(stop.count)),
        "precision": (stop.width, usual.measure.stop.width, f"{100.0 * stop.width:.12g}"),
        "budget": (stop.seconds, usual.measure.stop.seconds, f"{stop.seconds!r}"),
        "batch-size": (given.batch, None, str(given.batch)),
        "mode": (given.mode, usual.measure.mode, given.mode.value),
        "timeout": (options.seconds, usual.seconds, f"{options.seconds!r}"),
        "memory-limit": (options.memory_bytes, None, mebibytes),
        "build-dir": (options.build_dir, None, str(options.build_dir)),
        "providers": (provider, IREE, provider),
    }
    # Where a bundle comes to there need not be a checkout.
    program = ["profiler.py"] if tree.bundle is None else ["-m", "dispatch_profiler", "profile"]
    words = ["python", *program, tree.option, f"--dispatches={dispatch}"]
    words += [f"--device={options.device}", f"--seed={options.seed}"]
    words += [f"--{name}={text}" for name, (value, default, text) in values.items() if value != default]
    return shlex.join(words)

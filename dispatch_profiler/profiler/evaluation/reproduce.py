"""The command line that reproduces one record."""

from __future__ import annotations

import shlex

from dispatch_profiler.dispatches import Tree
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions


def command_of(tree: Tree, dispatch: str) -> tuple[str, ...]:
    """The start of the command line that profiles `dispatch` of `tree`."""
    # A machine that profiles a bundle need not have a checkout.
    program = ("profiler.py",) if tree.bundle is None else ("-m", "dispatch_profiler", "profile")
    return ("python", *program, tree.option, f"--dispatches={dispatch}")


def command_line(command: tuple[str, ...], options: EvaluatorOptions, library: str = "") -> str:
    """`command` (see `command_of`) with `options`; empty if `command` is.

    With `library`, it measures that library for the operation of the dispatch. Options with their default
    values are omitted.
    """
    if not command:
        return ""
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
        "providers": (library, "", library),
    }
    words = [*command, f"--device={options.device}", f"--seed={options.seed}"]
    words += [f"--{name}={text}" for name, (value, default, text) in values.items() if value != default]
    return shlex.join(words)

"""`dispatch-profiler preload COMMANDS`, also as `python -m dispatch_profiler.boo.driver.preload`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.boo.driver.populator import CachePopulator
from dispatch_profiler.boo.environment import configure_logging
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    folder,
    positive,
    run,
    say,
    track,
    warn,
    warn_table,
)
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError

__all__ = ["CachePopulator", "CachePrepopulator", "main", "make_parser"]

PROG = "dispatch-profiler preload"
#: The class's other name in the documents of BOO.
CachePrepopulator = CachePopulator
#: Folder of the MLIR that `--device=""` writes.
_MLIR = "mlir"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="finished kernels are in the cache")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog, "Compile the kernels of MIOpen commands into the launch cache, ahead of their first launch."
    )
    parser.add_argument(
        "commands_file", metavar="COMMANDS",
        help="file with one command per line; sample_commands.txt comes with the package",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--cache-dir", type=folder, metavar="DIR",
        help="folder of the cache (default: BOO_CACHE_DIR, or $XDG_CACHE_HOME/dispatch_profiler)",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--device", action="append", metavar="DEVICE",
        help='device to compile for, such as local-task or cuda; may be given several times; "" writes only MLIR, '
        f"to --cache-dir or ./{_MLIR} (default: this CPU, and a GPU of each architecture)",
    )  # fmt: skip
    parser.add_argument(
        "-j", "--max-processes", type=positive, metavar="N", help="compiler processes (default: one per core)"
    )
    return parser


def _main(options: argparse.Namespace) -> int:
    configure_logging()
    only_mlir = options.device is not None and "" in options.device
    if only_mlir and len(options.device) > 1:
        raise UsageError('--device="" excludes other devices', hint="leave one of them out")
    populator = CachePopulator(
        cache_dir=options.cache_dir, devices=options.device, commands_file=folder(options.commands_file)
    )
    if only_mlir:
        files = populator.write_mlir(options.cache_dir or Path(_MLIR))
        say(f"Wrote {counted(len(files), 'file')} to {options.cache_dir or _MLIR}")
    else:
        _preload(populator, options.max_processes)
    failures = populator.get_failures()
    if not failures:
        return SUCCESS
    warn("Failures:")
    warn_table(failures.items())
    return FAILED


def _preload(populator: CachePopulator, processes: int | None) -> None:
    total = len(populator.signatures) * len(populator.devices)
    failed: list[str] = []
    for each in track(populator.results(processes), total, "Compiling", note=lambda: f"{len(failed)} failed"):
        if each.reason:
            failed.append(each.reason)
    kernels = counted(total - len(failed), "kernel")
    devices = ", ".join(map(str, populator.devices))
    say(f"{kernels} for {devices} in {populator.cache_folder}; {len(failed)} failed")


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.driver.preload"))

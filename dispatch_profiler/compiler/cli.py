"""`compile.py`: a generated tree -> vmfbs for verification and profiling."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler.command import (
    SUCCESS,
    Parser,
    add_tool_arguments,
    add_tree_arguments,
    folder,
    positive,
    run,
    say,
    user_cache,
    warn,
    writable,
)
from dispatch_profiler.compiler import (
    Cache,
    CompileOptions,
    compile_tree,
    compiler_for,
    count_dispatches,
)
from dispatch_profiler.compiler.console import CompileTally, report
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.dispatches import Selection, Tree, load_manifest, write_bundle
from dispatch_profiler.dispatches.bundle import command
from dispatch_profiler.errors import UsageError
from dispatch_profiler.isolation import available_memory
from dispatch_profiler.targets import parse_target

PROG = "compile.py"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments)


def _main(options: argparse.Namespace) -> int:
    cache = _cache(options)
    if options.cache_info or options.cache_clear:
        return _tend(cache, clear=options.cache_clear)
    manifest = load_manifest(Tree(folder(options.generated_dir)))
    target = parse_target(options.target) if options.target else None
    if target is not None and target.note:
        warn(target.note)
    compiler = compiler_for(target or manifest.target, options.build_dir)
    _check_executor(options)
    workers = min(options.num_cpu or len(usable_cores()), len(usable_cores()))
    chosen = CompileOptions(
        selection=Selection.parse(options.dispatches, options.operation_kind),
        target=target,
        flags=options.flags,
        executor=options.executor,
        workers=workers,
        scheduler=options.scheduler or "",
        force=options.force_compile,
        retry=options.retry,
        reproducers=options.keep_reproducers,
        repeat=options.batch_size,
        seconds=options.timeout,
        memory_bytes=_memory_limit(options, workers),
    )
    total = count_dispatches(manifest, chosen.selection)
    bundle = writable("--bundle", options.bundle) if options.bundle else None
    status = report(compile_tree(manifest, compiler, chosen, cache), CompileTally(total))
    if bundle is not None:
        _pack(bundle, manifest.tree, chosen.selection)
    return status


def _pack(path: Path, tree: Tree, selection: Selection) -> None:
    """Write the selected dispatches as a bundle, those that did not compile too."""
    manifest = load_manifest(tree)
    size = write_bundle(path, manifest, manifest.choose(selection))
    say(
        f"Writing the bundle {path}, {size / 2**20:.1f} MiB; on the other machine (its README.txt tells more):"
    )
    say(f"  {command(path.name)}")


def _memory_limit(options: argparse.Namespace, workers: int) -> int | None:
    if options.memory_limit is not None:
        return int(options.memory_limit)
    # Of another machine's memory we know nothing.
    return None if options.executor == "dask" else available_memory() // workers


def _check_executor(options: argparse.Namespace) -> None:
    if options.executor == "dask" and not options.scheduler:
        raise UsageError(
            "--executor=dask needs --scheduler",
            hint="give the address that `dask scheduler` printed, such as --scheduler=tcp://HOST:8786",
        )
    if options.scheduler and not re.fullmatch(r"\w+://\S+:\d+", options.scheduler):
        raise UsageError(
            f"malformed address of a scheduler {options.scheduler!r}", hint="write tcp://HOST:PORT"
        )
    if options.scheduler and options.executor != "dask":
        raise UsageError("--scheduler goes with --executor=dask", hint="add --executor=dask")
    if options.num_cpu and options.executor == "dask":
        raise UsageError(
            "--num-cpu does not bound a cluster", hint="bound its workers: dask worker --nthreads=N"
        )


def make_parser(prog: str = PROG) -> Parser:
    """What this command takes."""
    parser = Parser(
        prog,
        "Compile a generated tree: two vmfbs an operation, one to verify and one to profile.",
        usage="%(prog)s [options] [-- IREE-COMPILE-FLAG ...]",
        passes="iree-compile",
    )
    add_tree_arguments(parser)
    parser.add_argument(
        "--num-cpu", "-j", type=positive, metavar="N", help="worker processes (default: all CPUs)"
    )
    parser.add_argument("--force-compile", action="store_true", help="compile also what is up to date")
    parser.add_argument("--target", help="another member of the target's family, such as llvm-cpu:znver4")
    parser.add_argument(
        "--batch-size", type=positive, metavar="N",
        help="how often a profile vmfb does each dispatch in one call (default: by the work, 1 to 100)",
    )  # fmt: skip
    add_tool_arguments(
        parser,
        step="one dispatch",
        memory="memory the compiler may use for one dispatch (default: what is free, shared by the workers)",
    )
    parser.add_argument(
        "--retry",
        action="store_true",
        help="compile again what failed for time, memory, a crash or a missing package",
    )
    parser.add_argument(
        "--keep-reproducers", action="store_true",
        help="write each dispatch that does not compile alone to a file, with the command",
    )  # fmt: skip
    parser.add_argument(
        "--bundle", metavar="FILE.zip",
        help="then pack what is to be profiled on a machine that has the device and no compiler",
    )  # fmt: skip
    parser.add_argument(
        "--executor", choices=("threads", "loky", "dask"), default="threads",
        help="who hands modules to the compiler processes: threads, processes (loky), or a Dask cluster "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="the cluster's, with --executor=dask")
    parser.add_argument(
        "--cache-dir", metavar="DIR",
        help="what was compiled once, shared by all trees (default: $XDG_CACHE_HOME/dispatch_profiler)",
    )  # fmt: skip
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write it")
    parser.add_argument(
        "--cache-info", action="store_true", help="say where it lies and what it holds, and end"
    )
    parser.add_argument("--cache-clear", action="store_true", help="empty it, and end")
    return parser


def _cache(options: argparse.Namespace) -> Cache | None:
    if options.no_cache and (options.cache_info or options.cache_clear or options.cache_dir):
        raise UsageError("--no-cache goes with no other option of the cache", hint="leave one of them out")
    if options.no_cache:
        return None
    return Cache(folder(options.cache_dir) if options.cache_dir else user_cache())


def _tend(cache: Cache | None, *, clear: bool) -> int:
    assert cache is not None  # refused by _cache
    if clear:
        print(f"removed {cache.clear()} entries from {cache.info().folder}")
    else:
        info = cache.info()
        size, bound = info.bytes / 2**20, info.max_bytes / 2**20
        print(f"{info.folder}: {info.entries} entries, {size:.1f} of {bound:.0f} MiB")
    return SUCCESS

"""`compile.py`: a generated tree -> vmfbs for verification and profiling."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    add_tool_arguments,
    add_tree_arguments,
    cache_folder,
    folder,
    positive,
    run,
    say,
    say_table,
    user_cache,
    warn,
    warn_table,
    writable,
)
from dispatch_profiler.compiler import (
    Cache,
    CompileOptions,
    Compiler,
    IreeCompiler,
    compile_tree,
    compiler_for,
    count_dispatches,
)
from dispatch_profiler.compiler.backends.host_cpu import chosen_cpu
from dispatch_profiler.compiler.console import CompileTally, report
from dispatch_profiler.compiler.workers.cluster import Cluster, add_tls_arguments, cluster_at, tls_files
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import usable_cores, usable_processes
from dispatch_profiler.dispatches import Manifest, Selection, Tree, load_manifest, write_bundle
from dispatch_profiler.dispatches.bundle import command
from dispatch_profiler.errors import UsageError
from dispatch_profiler.generator.emit import emit_added
from dispatch_profiler.isolation import available_memory
from dispatch_profiler.library.entry import Hardware
from dispatch_profiler.library.library import Library, find_library, shipped_libraries
from dispatch_profiler.library.tuned import TunedConfigurations, check_some_fit
from dispatch_profiler.targets import Target, parse_target

PROG = "compile.py"
#: The options that --help shows.
_COMMON = (
    "--dispatches",
    "--operation-kind",
    "--generated-dir",
    "--jobs",
    "--timeout",
    "--force-compile",
    "--retry",
    "--library",
    "--bundle",
    "--build-dir",
    "--no-cache",
)


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments)


def _main(options: argparse.Namespace) -> int:
    cache = _cache(options)
    if options.cache_info or options.cache_clear:
        return _manage_cache(cache, clear=options.cache_clear)
    for option in ("nearest", "packed_weights"):
        if getattr(options, option) and options.library is None:
            raise UsageError(f"--{option.replace('_', '-')} needs --library", hint="add --library=DIR")
    manifest = load_manifest(Tree(folder(options.generated_dir)))
    target = parse_target(options.target) if options.target else None
    if target is not None and target.note:
        warn(target.note)
    compiler = compiler_for(target or manifest.target, options.build_dir)
    cluster = _cluster(options)
    workers = min(options.jobs or usable_processes(), len(usable_cores()))
    library_status = SUCCESS
    if options.library is not None:
        library_status = _add_tuned(manifest, target, compiler.revision, options)
        manifest = load_manifest(manifest.tree)
    chosen = CompileOptions(
        selection=Selection.parse(options.dispatches, options.operation_kind),
        target=target,
        flags=options.flags,
        executor=options.executor,
        workers=workers,
        cluster=cluster,
        force=options.force_compile,
        retry=options.retry,
        reproducers=options.keep_reproducers,
        trust=options.trust,
        repeat=options.batch_size,
        seconds=options.timeout,
        memory_bytes=_memory_limit(options, workers),
    )
    total = count_dispatches(manifest, chosen.selection)
    bundle = writable("--bundle", options.bundle) if options.bundle else None
    status = report(compile_tree(manifest, compiler, chosen, cache, warn), CompileTally(total))
    _say_cpu(compiler, [target] if target is not None else manifest.targets)
    if bundle is not None:
        _write_bundle(bundle, manifest.tree, chosen.selection)
    return max(status, library_status)


def _say_cpu(compiler: Compiler, targets: Iterable[Target]) -> None:
    """Print the CPU that code is compiled for, and why, if the target leaves the choice to the machine."""
    if isinstance(compiler, IreeCompiler) and any(target.host for target in targets):
        say(f"Compiled for {chosen_cpu(compiler, compiler.folder)}")


def _add_tuned(manifest: Manifest, target: Target | None, revision: str, options: argparse.Namespace) -> int:
    """Add `tile_config_tuned` to the operations that the library has an entry for, and remove it from others."""
    library = Library.load(find_library(options.library))
    tuned = {
        name: TunedConfigurations(
            library,
            each,
            revision,
            options.nearest,
            options.packed_weights,
            hardware=Hardware.here(each),
        )
        for name, each in (
            (name, target or parse_target(name))
            for name in dict.fromkeys(entry.target for entry in manifest.entries)
        )
    }
    lookups = [tuned[entry.target].of(entry.operation) for entry in manifest.entries]
    check_some_fit(lookups, [each.target for each in tuned.values()], revision, str(options.library))
    emit_added(manifest.tree, {each.operation: each.dispatch for each in lookups})
    used = [each for each in lookups if each.dispatch is not None]
    own = sum(not each.tuned_from for each in used)
    near = f", of similar shapes for {len(used) - own}" if options.nearest else ""
    say(
        f"{options.library}: entries for {own} of {counted(len(lookups), 'operation')}{near}; "
        f"{len(lookups) - len(used)} left to the compiler"
    )
    if own < len(used):
        say_table([(each.operation.name, f"as {each.tuned_from}") for each in used if each.tuned_from])
    problems = [(each.operation.name, each.problem) for each in lookups if each.problem]
    if problems:
        warn(f"{counted(len(problems), 'entry')} of {options.library} cannot be used:")
        warn_table(problems)
    return FAILED if any(each.problem and not each.is_foreign for each in lookups) else SUCCESS


def _write_bundle(path: Path, tree: Tree, selection: Selection) -> None:
    """Write the selected dispatches as a bundle, including dispatches that did not compile."""
    manifest = load_manifest(tree)
    size = write_bundle(path, manifest, manifest.choose(selection))
    say(f"Wrote the bundle {path}, {size / 2**20:.1f} MiB; on the other machine (see its README.txt):")
    say(f"  {command(path.name)}")


def _memory_limit(options: argparse.Namespace, workers: int) -> int | None:
    if options.memory_limit is not None:
        return int(options.memory_limit)
    # The memory of a cluster's machines is unknown.
    return None if options.executor == "dask" else available_memory() // workers


def _cluster(options: argparse.Namespace) -> Cluster | None:
    """The cluster of `--executor=dask`; None for other executors. Raises UsageError."""
    tls = tls_files(options)
    if options.executor != "dask":
        if options.scheduler or tls:
            name = "--scheduler" if options.scheduler else "--tls-ca-file"
            raise UsageError(f"{name} needs --executor=dask", hint="add --executor=dask")
        return None
    if not options.scheduler:
        raise UsageError(
            "--executor=dask needs --scheduler",
            hint="give the address of `dask scheduler`, such as --scheduler=tcp://127.0.0.1:8786",
        )
    cluster = cluster_at("--scheduler", options.scheduler, tls)
    if options.jobs:
        raise UsageError(
            "--jobs does not limit a cluster", hint="limit its workers: dask worker --nthreads=N"
        )
    return cluster


def make_parser(prog: str = PROG) -> Parser:
    """The parser of the command's arguments."""
    parser = Parser(
        prog,
        "Compile a generated tree: two vmfbs per operation, one to verify and one to profile.",
        HelpPage(_COMMON, (f"{prog} --dispatches='matmul_*' --jobs=4", f"{prog} -- --iree-opt-level=O2")),
        usage="%(prog)s [options] [-- IREE-COMPILE-FLAG ...]",
        passes="iree-compile",
    )
    add_tree_arguments(parser)
    _add_compilation(parser)
    _add_library(parser)
    add_tool_arguments(
        parser,
        step="one dispatch",
        memory="memory the compiler may use for one dispatch (default: the free memory divided by the workers)",
    )
    _add_results(parser)
    _add_executor(parser)
    _add_cache(parser)
    return parser


def _add_compilation(parser: Parser) -> None:
    """Options that choose the dispatches to compile, and how to compile them."""
    parser.add_argument(
        "-j", "--jobs", "--num-cpu", type=positive, metavar="N", help="worker processes (default: all CPUs)"
    )
    parser.add_argument(
        "--force-compile", action="store_true", help="also compile modules that are up to date"
    )
    parser.add_argument(
        "--retry",
        action="store_true",
        help="also compile dispatches that exceeded the time limit, crashed or lacked a package (dispatches that lacked "
        "memory, processes or disk space are always compiled again)",
    )
    parser.add_argument(
        "--trust", action="store_true",
        help="also compile functions that generator.py did not write, whatever operations they contain: their code runs "
        "with your permissions",
    )  # fmt: skip
    parser.add_argument("--target", help="another member of the target's family, such as llvm-cpu:znver4")
    parser.add_argument(
        "--batch-size", type=positive, metavar="N",
        help="executions of each dispatch per call of a profile vmfb (default: 1 to 100, depending on its work)",
    )  # fmt: skip


def _add_library(parser: Parser) -> None:
    """Options for tuned configurations."""
    parser.add_argument(
        "--library", type=folder, metavar="DIR|NAME",
        help="also compile the configuration that this library of tuned kernels has for each operation, as "
        f"tile_config_tuned: a folder, or a shipped library ({', '.join(shipped_libraries())})",
    )  # fmt: skip
    parser.add_argument(
        "--nearest", action="store_true",
        help="with --library, use the configuration of the most similar shape for operations without an entry",
    )  # fmt: skip
    parser.add_argument(
        "--packed-weights", action="store_true",
        help="with --library, prefer configurations that pack the weight at load time, for constant weights",
    )  # fmt: skip


def _add_results(parser: Parser) -> None:
    """Options for files in addition to the tree's."""
    parser.add_argument(
        "--keep-reproducers", action="store_true",
        help="write each dispatch that does not compile to its own file, with the command to reproduce it",
    )  # fmt: skip
    parser.add_argument(
        "--bundle", metavar="FILE.zip",
        help="afterwards write the dispatches to a file, to profile on a machine with the device but no compiler",
    )  # fmt: skip


def _add_executor(parser: Parser) -> None:
    """Options for where the compiler runs."""
    parser.add_argument(
        "--executor", choices=("threads", "loky", "dask"), default="threads",
        help="how to distribute modules to compiler processes: threads, processes (loky), or a Dask cluster "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="address of the cluster's scheduler, with --executor=dask; or tls://HOST:PORT",
    )
    add_tls_arguments(parser)


def _add_cache(parser: Parser) -> None:
    """Options for the cache of compiled modules."""
    parser.add_argument(
        "--cache-dir", metavar="DIR",
        help="cache of compiled modules, shared by all trees (default: $XDG_CACHE_HOME/dispatch_profiler)",
    )  # fmt: skip
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument(
        "--cache-info", action="store_true", help="print the cache's folder and size, and exit"
    )
    parser.add_argument("--cache-clear", action="store_true", help="empty the cache, and exit")


def _cache(options: argparse.Namespace) -> Cache | None:
    if options.no_cache and (options.cache_info or options.cache_clear or options.cache_dir):
        raise UsageError("--no-cache excludes the other cache options", hint="leave one of them out")
    if options.no_cache:
        return None
    return Cache(cache_folder(options.cache_dir) if options.cache_dir else user_cache())


def _manage_cache(cache: Cache | None, *, clear: bool) -> int:
    assert cache is not None  # _cache rejects --no-cache here
    if clear:
        print(f"removed {counted(cache.clear(), 'entry')} from {cache.info().folder}")
    else:
        info = cache.info()
        size, bound = info.bytes / 2**20, info.max_bytes / 2**20
        print(f"{info.folder}: {counted(info.entries, 'entry')}, {size:.1f} of {bound:.0f} MiB")
    return SUCCESS


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.library.compile_cli"))

"""`compile.py`: a generated tree -> vmfbs for verification and profiling."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Sequence

from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    add_tree_arguments,
    folder,
    positive,
    positive_number,
    run,
    say,
    track,
)
from dispatch_profiler.compiler import (
    Cache,
    CompileOptions,
    Progress,
    compile_tree,
    compiler_for,
    count_modules,
)
from dispatch_profiler.errors import UsageError
from dispatch_profiler.generator import DispatchEntry, Manifest, Selection, State, Tree, load_manifest
from dispatch_profiler.isolation import available_memory
from dispatch_profiler.targets import Target, parse_target

PROG = "compile.py"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run(PROG, _main, arguments)


def _main(arguments: Sequence[str]) -> int:
    ours, flags = _cut(arguments)
    options = _parser().parse_args(ours)
    cache = _cache(options)
    if options.cache_info or options.cache_clear:
        return _tend(cache, clear=options.cache_clear)
    manifest = load_manifest(Tree(folder(options.generated_dir)))
    target = parse_target(options.target) if options.target else None
    compiler = compiler_for(
        target or _generated_for(manifest), folder(options.build_dir) if options.build_dir else None
    )
    workers = min(options.num_cpu or _cpus(), _cpus())
    chosen = CompileOptions(
        selection=Selection.parse(options.dispatches, options.operation_kind),
        target=target,
        flags=flags,
        workers=workers,
        force=options.force_compile,
        repeat=options.batch_size,
        seconds=options.timeout,
        memory_bytes=available_memory() // workers,
    )
    modules = count_modules(manifest, chosen.selection)
    return _report(compile_tree(manifest, compiler, chosen, cache), manifest.tree, modules)


def _cut(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What stands before `--` is ours, what stands behind it is for iree-compile."""
    given = list(arguments)
    if "--" not in given:
        return given, ()
    at = given.index("--")
    return given[:at], tuple(given[at + 1 :])


def _parser() -> Parser:
    parser = Parser(
        PROG,
        "Compile a generated tree: two vmfbs an operation, one to verify and one to profile.",
        usage="%(prog)s [options] [-- IREE-COMPILE-FLAG ...]",
    )
    add_tree_arguments(parser)
    parser.add_argument(
        "--num-cpu", "-j", type=positive, metavar="N", help="worker processes (default: all CPUs)"
    )
    parser.add_argument("--force-compile", action="store_true", help="compile also what is up to date")
    parser.add_argument("--target", help="another member of the target's family, such as llvm-cpu:znver4")
    parser.add_argument(
        "--build-dir", "--iree-bin-dir", metavar="DIR", help="use the tools of this IREE build, not the wheel"
    )
    parser.add_argument(
        "--batch-size", type=positive, metavar="N",
        help="how often a profile vmfb does each dispatch in one call (default: by the work, 1 to 100)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=positive_number, default=120.0, metavar="SECONDS",
        help="time limit of one dispatch (default: %(default)g)",
    )  # fmt: skip
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
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Cache(folder(options.cache_dir or f"{home}/dispatch_profiler"))


def _tend(cache: Cache | None, *, clear: bool) -> int:
    assert cache is not None  # refused by _cache
    if clear:
        print(f"removed {cache.clear()} entries from {cache.info().folder}")
    else:
        info = cache.info()
        size, bound = info.bytes / 2**20, info.max_bytes / 2**20
        print(f"{info.folder}: {info.entries} entries, {size:.1f} of {bound:.0f} MiB")
    return SUCCESS


def _generated_for(manifest: Manifest) -> Target:
    family = manifest.family  # one family: one compiler serves all
    return next(t for t in map(parse_target, (e.target for e in manifest.entries)) if t.family == family)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- output ----------------------------------------------------------------------------------------


def _report(results: Iterable[Progress], tree: Tree, modules: int) -> int:
    entries: list[DispatchEntry] = []
    kept = cached = 0
    for done in track(results, modules, "Compiling"):
        entries.extend(done.entries)
        if done.kept:
            kept += len(done.entries)
        elif done.cached:
            cached += len(done.entries)
        else:
            say(_line(done, tree))
    return _summarize(entries, kept, cached)


def _line(done: Progress, tree: Tree) -> str:
    states = Counter(entry.state for entry in done.entries)
    counts = ", ".join(f"{count} {state.value}" for state, count in states.items())
    flow = f" ({done.module})" if done.module else ""
    return f"[Compiling]: {tree.source(done.operation)}{flow}: {counts}"


def _summarize(entries: list[DispatchEntry], kept: int, cached: int) -> int:
    states = Counter(entry.state for entry in entries)
    counts = ", ".join(f"{states[state]} {state.value}" for state in State if states[state])
    from_cache = f", {cached} from the cache" if cached else ""
    say(f"{len(entries)} dispatches: {counts}; {kept} were up to date{from_cache}")
    failed = [entry for entry in entries if entry.state is not State.COMPILED]
    reasons = Counter(entry.reason for entry in failed)
    for reason, count in reasons.most_common(5):
        say(f"    {count} x {reason}")
    if len(reasons) > 5:
        say(f"    and {len(reasons) - 5} other reasons; manifest.json holds the reason of each dispatch")
    return FAILED if failed else SUCCESS

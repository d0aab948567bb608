"""`dispatch-profiler cache list|clear`: lists or removes kernels of launches and modules of generated trees."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from textwrap import dedent

from dispatch_profiler import startup
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.command import SUCCESS, Parser, cache_folder, run, say, show, user_cache
from dispatch_profiler.compiler import BuildOutcome, Cache, CacheEntry
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.streams import width_of
from dispatch_profiler.console.terminal import aligned
from dispatch_profiler.dispatches import Selection

PROG = "dispatch-profiler cache"
_DAMAGED = "(damaged)"
#: Number of reasons that are listed for an entry.
_REASONS = 3


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="entries that were not removed are kept")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "List or remove what the cache holds: kernels of launches, and compiled modules of generated trees.",
        HelpPage(examples=(f"{prog} list", f"{prog} clear 'matmul_*' --failures")),
    )
    parser.add_argument(
        "action", choices=["list", "clear"],
        help="list: show name, compiled dispatches, size and last use of each entry, and why dispatches failed; "
        "clear: remove the entries",
    )  # fmt: skip
    parser.add_argument(
        "names", nargs="?", default="", metavar="NAME,...",
        help="only entries whose full name matches a glob or a regular expression",
    )  # fmt: skip
    parser.add_argument(
        "--failures", action="store_true",
        help="only entries with dispatches that did not compile; after clear, the next run tries them again",
    )  # fmt: skip
    parser.add_argument(
        "--cache-dir", metavar="DIR",
        help="folder of the cache (default: $XDG_CACHE_HOME/dispatch_profiler, and BOO_CACHE_DIR if it is set)",
    )  # fmt: skip
    return parser


def _main(options: argparse.Namespace) -> int:
    by_cache = {
        cache: [entry for entry in cache.entries() if entry.failures or not options.failures]
        for cache in _caches(options)
    }
    every = [entry for entries in by_cache.values() for entry in entries]
    selection = Selection.parse(options.names, "")
    chosen = set(selection.choose(every, lambda entry: "", _name, "entry")) if every else set()
    for cache, entries in by_cache.items():
        _ACTIONS[options.action](cache, [entry for entry in entries if entry in chosen])
    return SUCCESS


def _caches(options: argparse.Namespace) -> list[Cache]:
    if options.cache_dir is not None:
        return [Cache(cache_folder(options.cache_dir))]
    folders = dict.fromkeys([user_cache(), launch_settings().cache_folder])
    return [Cache(each) for each in folders if each is not None]


def _name(entry: CacheEntry) -> str:
    return entry.name or _DAMAGED


def _list(cache: Cache, entries: Sequence[CacheEntry]) -> None:
    rows = [
        (
            _name(entry),
            f"{entry.compiled} of {entry.dispatches}" if entry.dispatches else "-",
            f"{entry.bytes / 2**10:.1f} KiB",
            datetime.fromtimestamp(entry.used).isoformat(" ", "minutes"),
            _why(entry),
        )
        for entry in entries
    ]
    if rows:
        header = ("name", "compiled", "size", "last use", "why others failed")
        show(dedent(aligned([header, *rows], width_of(sys.stdout))))
    size, most = sum(entry.bytes for entry in entries), cache.info().max_bytes
    say(f"{cache.folder}: {counted(len(entries), 'entry')}, {size / 2**20:.1f} of {most / 2**20:.0f} MiB")


def _why(entry: CacheEntry) -> str:
    """Why dispatches of an entry failed, with target and compiler: `not compiled: no such tile [llvm-cpu, 3.13.0]`."""
    reasons = list(dict.fromkeys(_reason(each) for each in entry.failures.values()))
    if not reasons:
        return ""
    more = [counted(len(reasons) - _REASONS, "other reason")] if len(reasons) > _REASONS else []
    where = ", ".join(filter(None, (entry.origin.target, entry.origin.compiler)))
    return "; ".join([*reasons[:_REASONS], *more]) + (f" [{where}]" if where else "")


def _reason(outcome: BuildOutcome) -> str:
    limit = f" (time limit {outcome.seconds:g} s)" if outcome.seconds else ""
    return f"{outcome.state.value}: {' '.join(outcome.reason.split())}{limit}"


def _clear(cache: Cache, entries: Sequence[CacheEntry]) -> None:
    print(f"removed {counted(cache.remove(entries), 'entry')} from {cache.folder}")


_ACTIONS = {"list": _list, "clear": _clear}


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.kernels.cache_cli"))

"""`dispatch-profiler cache list|clear`: the kernels of launches, and the modules of generated trees."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from textwrap import dedent

from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.command import SUCCESS, Parser, folder, run, say, show, user_cache
from dispatch_profiler.compiler import Cache, CacheEntry
from dispatch_profiler.dispatches import Selection
from dispatch_profiler.plurals import counted
from dispatch_profiler.streams import width_of
from dispatch_profiler.terminal import aligned

PROG = "dispatch-profiler cache"
_DAMAGED = "(damaged)"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="entries that were not removed are kept")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog, "List or remove compiled kernels: those of launches, and the modules of generated trees."
    )
    parser.add_argument(
        "action", choices=["list", "clear"],
        help="list: name, compiled dispatches, size and last use of each entry; clear: remove the entries",
    )  # fmt: skip
    parser.add_argument(
        "names", nargs="?", default="", metavar="NAME,...",
        help="only entries whose full name matches a glob or a regular expression",
    )  # fmt: skip
    parser.add_argument(
        "--cache-dir", type=folder, metavar="DIR",
        help="folder of the cache (default: $XDG_CACHE_HOME/dispatch_profiler, and BOO_CACHE_DIR if it is set)",
    )  # fmt: skip
    return parser


def _main(options: argparse.Namespace) -> int:
    found = {cache: list(cache.entries()) for cache in _caches(options)}
    every = [entry for entries in found.values() for entry in entries]
    chosen = _chosen(every, Selection.parse(options.names, ""))
    for cache, entries in found.items():
        _ACTIONS[options.action](cache, [entry for entry in entries if entry in chosen])
    return SUCCESS


def _caches(options: argparse.Namespace) -> list[Cache]:
    if options.cache_dir is not None:
        return [Cache(options.cache_dir)]
    folders = dict.fromkeys([user_cache(), launch_settings().cache_folder])
    return [Cache(each) for each in folders if each is not None]


def _chosen(entries: Sequence[CacheEntry], selection: Selection) -> set[CacheEntry]:
    if not entries:
        return set()
    return set(selection.choose(entries, lambda entry: "", _name, "entry"))


def _name(entry: CacheEntry) -> str:
    return entry.name or _DAMAGED


def _list(cache: Cache, entries: Sequence[CacheEntry]) -> None:
    rows = [
        (
            _name(entry),
            f"{entry.compiled} of {entry.dispatches}" if entry.dispatches else "-",
            f"{entry.bytes / 2**10:.1f} KiB",
            datetime.fromtimestamp(entry.used).isoformat(" ", "minutes"),
        )
        for entry in entries
    ]
    if rows:
        header = ("name", "compiled", "size", "last use")
        show(dedent(aligned([header, *rows], width_of(sys.stdout))))
    size, most = sum(entry.bytes for entry in entries), cache.info().max_bytes
    say(f"{cache.folder}: {counted(len(entries), 'entry')}, {size / 2**20:.1f} of {most / 2**20:.0f} MiB")


def _clear(cache: Cache, entries: Sequence[CacheEntry]) -> None:
    print(f"removed {counted(cache.remove(entries), 'entry')} from {cache.folder}")


_ACTIONS = {"list": _list, "clear": _clear}

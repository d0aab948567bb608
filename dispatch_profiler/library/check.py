"""Finds entries of a library that no launch on this machine and no build with this compiler can use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.library.entry import Entry, Hardware
from dispatch_profiler.library.library import Library
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.targets import Target, parse_target

#: Level -> the CPU of it that has the instructions of all others: bf16 and AMX.
_MOST_CAPABLE = {"x86-64-v4": "sapphirerapids"}


@dataclass(frozen=True)
class UnusableEntry:
    """An entry that is never looked up, or that is rejected then, and why. `is_file`: all entries of an unlisted file."""

    name: str
    reason: str
    is_file: bool = False


def unusable_entries(
    library: Library, revision_of: Callable[[Target], str], *, any_cpu: bool = False
) -> Iterator[UnusableEntry]:
    """The damaged entries of `library`, those that the compiler of their target, or this machine's CPU, cannot use, and files
    of entries that the library does not list, as after a merge by hand.

    `revision_of` is the revision of the compiler for a target. With `any_cpu`, an entry is judged for the level of CPUs that
    it is for, not for this machine's CPU.
    """
    for damaged in library.damaged:
        yield UnusableEntry(damaged.name, damaged.reason)
    for path in library.unlisted:
        yield UnusableEntry(str(path), f"{library.file} does not list it", is_file=True)
    for entry in library.sound:
        if reason := _unusable_reason(entry, library, revision_of, any_cpu):
            yield UnusableEntry(entry.title, reason)


def _unusable_reason(
    entry: Entry, library: Library, revision_of: Callable[[Target], str], any_cpu: bool
) -> str:
    name, level = entry.provenance.target, entry.hardware.cpu
    try:
        is_judged_otherwise = any_cpu and level and ":" not in name
        target = _target(f"{name}:{_MOST_CAPABLE.get(level, level)}" if is_judged_otherwise else name)
    except DispatchProfilerError as error:
        return error.message
    here = Hardware.here(target)
    if not any_cpu and not here.runs(entry.hardware):
        return f"it needs instructions of {entry.hardware.cpu}; this CPU has those of {here.cpu}"
    return TunedConfigurations(library, target, revision_of(target), hardware=here).problem_of(entry)


@lru_cache(maxsize=16)
def _target(name: str) -> Target:
    return parse_target(name)

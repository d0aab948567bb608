"""Measures the entries of a library again: which are still faster on this machine, with this compiler?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Entry, KeepRule, Library
from dispatch_profiler.targets import Target, parse_target
from dispatch_profiler.tuner.results.finalists import Benchmark, Contender, benchmarked
from dispatch_profiler.tuner.results.uplift import Judged, judge
from dispatch_profiler.tuner.tunings.problems import TuningProblem


def target_of(library: Library, wanted: Target | None = None, *, option: str = "--recheck") -> Target:
    """The target to measure `library` on: `wanted`, or the target that it was measured on.

    `option` names what the user asked for. Raises UsageError if it has no entries, or entries for other targets.
    """
    names = list(dict.fromkeys(name for name, _ in library.software))
    if not names and library.damaged:
        raise UsageError(
            f"{option}: all entries of the library are damaged; the first: {library.damaged[0].reason}",
            hint="dispatch-profiler library list names the others",
        )
    if not names:
        raise UsageError(f"{option}: the library has no entries", hint="there is nothing to measure again")
    target = wanted or parse_target(names[0])
    others = [entry for entry in library.sound if entry.family != target.family]
    if others and wanted is not None:
        raise UsageError(
            f"{option}: the library is for {', '.join(names)}, not for {wanted.name}",
            hint="leave --target out, or name another library",
        )
    if others:
        raise UsageError(
            f"{option}: the library is for several targets: {', '.join(names)}",
            hint="name a library for one target",
        )
    return target


def rechecked(library: Library, benchmark: Benchmark, rule: KeepRule) -> Iterator[Judged]:
    """The judgement of each entry, packed weights last: kept if it is still faster than the untuned configuration.

    Every entry is compiled with the compiler of `benchmark`, even if it was measured with another one. Raises
    TargetError if the device does not open.
    """
    for _, judged in measured_again(library.entries, benchmark, rule):
        yield judged


def measured_again(
    given: Sequence[Entry], benchmark: Benchmark, rule: KeepRule
) -> Iterator[tuple[Entry, Judged]]:
    """Each entry with its judgement, as `rechecked`."""
    with tempfile.TemporaryDirectory(prefix="dispatch_profiler_") as folder:
        # An operation may have an entry of each kind.
        for packs in (False, True):
            group = [each for each in given if each.packs_weight is packs]
            usable = [_as_measured_with(each, benchmark.compiler.revision) for each in group]
            contenders = [
                Contender(TuningProblem(each.operation.name, each.operation), each) for each in usable
            ]
            finalists = benchmarked(contenders, Library(usable), benchmark, Path(folder, str(packs)))
            for entry, finalist in zip(group, finalists, strict=True):
                yield entry, judge(finalist, rule)


def _as_measured_with(entry: Entry, revision: str) -> Entry:
    """`entry`, marked as measured with the compiler `revision`, so that it can be used with it."""
    if entry.is_of_compiler(revision):
        return entry
    return replace(entry, provenance=replace(entry.provenance, iree=f"compiler {revision}"))

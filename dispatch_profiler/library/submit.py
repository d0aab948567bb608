"""Entries of a library as a patch of the shipped ones, with the evidence for each, for `git apply`.

entry -> why it cannot be submitted, or the shipped library for its hardware
      -> merged there -> the files that change -> evidence and a difference
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library.entry import NO_SPEED, Entry, Estimate, software_text
from dispatch_profiler.library.family_files import file_texts, index_text
from dispatch_profiler.library.library import (
    LIBRARY_FILE,
    Change,
    Library,
    MergeOutcome,
    merge,
    shipped_folder,
    shipped_for_entry,
)

#: Where the shipped libraries are in the repository of this package.
_PLACE = "dispatch_profiler/library/shipped"


@dataclass(frozen=True)
class Submission:
    """A patch, empty without an entry that can be submitted; and for each other entry the reason in a sentence."""

    patch: str
    entries: int
    refused: Sequence[tuple[str, str]]


def submission(library: Library, chosen: Iterable[Entry]) -> Submission:
    """The patch that adds the `chosen` entries of `library` to the shipped libraries for their hardware."""
    refused = [(each.name, each.reason) for each in library.damaged]
    accepted: dict[str, list[Entry]] = {}
    for entry in chosen:
        name = shipped_for_entry(entry)
        if reason := rejection_reason(entry) or _foreign_reason(entry, name):
            refused.append((entry.title, reason))
        else:
            accepted.setdefault(name, []).append(entry)
    patches, count = [], 0
    for name, entries in accepted.items():
        merged = merge(_shipped(name), Library(entries), force=False)
        taken = [each for each in merged.changes if each.outcome is not MergeOutcome.KEPT]
        refused += [
            (each.new.title, _kept_reason(each, name)) for each in merged.changes if each not in taken
        ]
        if taken:
            count += len(taken)
            patches.append(f"{_evidence(name, taken)}\n{_difference(name, merged.library)}")
    return Submission("\n".join(patches), count, refused)


def rejection_reason(entry: Entry) -> str:
    """Why an entry is no evidence that it is faster; empty if it is."""
    origin = entry.provenance
    machine, speedup = origin.machine, entry.speedup
    is_gpu = not entry.hardware.cpu and entry.family != "llvm-cpu"
    checks = (
        (entry.gflops == NO_SPEED, "it has no speed, as after merge --no_eff"),
        (not _is_known(entry.gflops), "the samples do not determine the interval of its speed"),
        (not _is_known(speedup), "the samples do not determine the interval of its speedup"),
        (speedup.low <= 1.0, f"its speedup may be 1: the interval begins at {speedup.low:.3g}"),
        (not (machine.gpu if is_gpu else machine.cpu), "the machine that it was measured on is unknown"),
        (not origin.iree.startswith("compiler "), "the compiler that it was measured with is unknown"),
        (not origin.module_key, "the module that was measured is unknown"),
        (not shipped_for_entry(entry), f"no library is shipped for {entry.hardware.text or origin.target}"),
    )
    return next((reason for is_refused, reason in checks if is_refused), "")


def _is_known(estimate: Estimate) -> bool:
    return estimate.low > 0.0 and math.isfinite(estimate.high)


def _foreign_reason(entry: Entry, name: str) -> str:
    """Why an entry is not one of the compiler, and the target, of the shipped library `name`; empty if it is."""
    known = _shipped(name).software
    if entry.software in known:
        return ""
    return f"it was measured for {software_text([entry.software])}, and {name} is for {software_text(known)}"


def _kept_reason(change: Change, name: str) -> str:
    assert change.known is not None
    speeds = f"{change.known.gflops.value:.4g} GFLOP/s there, {change.new.gflops.value:.4g} here"
    return f"{name} has an entry that is as fast or faster ({speeds})"


@lru_cache(maxsize=4)
def _shipped(name: str) -> Library:
    return Library.load(shipped_folder(name))


# -- evidence --------------------------------------------------------------------------------------


def _evidence(name: str, changes: Sequence[Change]) -> str:
    """What was measured where, with which compiler and result, and how to measure it again."""
    outcomes = Counter(each.outcome for each in changes)
    counts = ", ".join(f"{count} {outcome.value}" for outcome, count in outcomes.items())
    lines = [f"Subject: [PATCH] {name}: {counted(len(changes), 'tuned kernel')} ({counts})", ""]
    for title, values in _origins([each.new for each in changes]).items():
        lines += [f"{title}: {_on_one_line(value)}" for value in values]
    lines += ["", "Speedup over the fastest untuned kernel, with its 95 % interval, and speed:", ""]
    lines += [f"  {line}" for each in changes for line in _lines(each)]
    lines += ["", "To measure all entries for such a machine again, with the patch applied:", ""]
    lines += [f"  dispatch-profiler library check {name} --recheck", ""]
    return "\n".join(lines)


def _on_one_line(value: str) -> str:
    """Text of the submitted library, which may be anybody's: a line of it could pass for a part of the patch."""
    return " ".join("".join(each if each.isprintable() else " " for each in value).split())


def _origins(entries: Sequence[Entry]) -> Mapping[str, Iterable[str]]:
    """Distinct facts about the measurements."""
    days = sorted({each.provenance.when[:10] for each in entries if each.provenance.when})
    return {
        "Machine": dict.fromkeys(each.provenance.machine.text for each in entries),
        "Tuned for": dict.fromkeys(each.hardware.text for each in entries if each.hardware.text),
        "Target": dict.fromkeys(each.provenance.target for each in entries),
        "IREE": dict.fromkeys(each.provenance.iree for each in entries),
        "Measured": [" to ".join(dict.fromkeys((days[0], days[-1])))] if days else [],
    }


def _lines(change: Change) -> Iterator[str]:
    new, known = change.new, change.known
    speedup, speed = new.speedup, new.gflops
    before = (
        ""
        if known is None
        else f"; before: {known.dispatch.configuration.name}, {known.gflops.value:.4g} GFLOP/s"
    )
    yield f"{change.outcome.value}: {new.title}"
    yield (
        f"    {speedup.value:.2f}x ({speedup.low:.2f}-{speedup.high:.2f}), {speed.value:.4g} GFLOP/s "
        f"({speed.low:.4g}-{speed.high:.4g}), {new.dispatch.configuration.name}{before}"
    )


# -- difference ------------------------------------------------------------------------------------


def _difference(name: str, merged: Library) -> str:
    """The changes of the files of the shipped library `name`, as git writes them."""
    folder = shipped_folder(name)
    contents = file_texts(merged.entries)
    contents[LIBRARY_FILE] = index_text(contents)
    parts = (_of_file(f"{_PLACE}/{name}/{file}", folder / file, text) for file, text in contents.items())
    return "".join(filter(None, parts))


def _of_file(place: str, path: Path, text: str) -> str:
    before = path.read_text() if path.exists() else None
    if before == text:
        return ""
    lines = [f"diff --git a/{place} b/{place}\n"]
    if before is None:
        lines.append("new file mode 100644\n")
    old = "/dev/null" if before is None else f"a/{place}"
    lines += difflib.unified_diff(
        (before or "").splitlines(keepends=True), text.splitlines(keepends=True), old, f"b/{place}"
    )
    return "".join(lines)


def check_some(found: Submission, library: str) -> None:
    """Raise UsageError if no entry can be submitted."""
    if not found.entries:
        raise UsageError(
            f"no entry of {library} can be submitted",
            hint="tune on a quiet machine, and submit what is faster there",
        )

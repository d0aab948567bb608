"""Merges two libraries: for each operation, which entry the result has and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dispatch_profiler.errors import UsageError
from dispatch_profiler.library.entry import Entry, Purpose, software_text
from dispatch_profiler.library.library import Library


class MergeOutcome(str, Enum):
    """The outcome of an entry of the incremental library."""

    #: The operation had no entry.
    ADDED = "added"
    #: It is faster than the known entry, or the known entry has no speed.
    REPLACED = "replaced"
    #: It is not faster, and replaced the known entry nevertheless.
    FORCED = "forced"
    #: It is not faster; the known entry stays.
    KEPT = "kept"


def merge_outcome(known: float | None, new: float, *, force: bool) -> MergeOutcome:
    """The outcome for an entry of `new` GFLOP/s; `known` is None without an entry, 0 for an entry without a speed.

    With `force`, every incremental entry replaces the known one.
    """
    if known is None:
        return MergeOutcome.ADDED
    if known == 0.0 or new > known:
        return MergeOutcome.REPLACED
    return MergeOutcome.FORCED if force else MergeOutcome.KEPT


@dataclass(frozen=True)
class Change:
    """One entry of the incremental library, the known entry of its operation, if any, and the outcome."""

    outcome: MergeOutcome
    new: Entry
    known: Entry | None


@dataclass(frozen=True)
class Merged:
    """The merged library, and a change for each entry of the incremental library."""

    library: Library
    changes: tuple[Change, ...]

    def count(self, outcome: MergeOutcome) -> int:
        """How many entries had this outcome."""
        return sum(change.outcome is outcome for change in self.changes)


def merge(
    base: Library,
    incremental: Library,
    *,
    force: bool = True,
    keep_speeds: bool = True,
    allow_mismatch: bool = False,
) -> Merged:
    """Merge `incremental` into `base`; neither is changed.

    Entries of operations that only one side has are taken over. An entry that packs its weight neither
    replaces an entry that does not, nor is replaced by it. Without `keep_speeds`, merged entries have speed
    0, so that any later entry replaces them. Speeds are compared before that.

    Raises UsageError if `incremental` is for a target or an IREE version that `base` is not for, unless
    `allow_mismatch`.
    """
    if not allow_mismatch:
        _check_software(base, incremental)
    entries: dict[Purpose, Entry] = {entry.purpose: entry for entry in base.entries}
    changes = [_change(entries, new, force=force) for new in incremental.entries]
    for change in changes:
        if change.outcome is not MergeOutcome.KEPT:
            entries[change.new.purpose] = change.new if keep_speeds else change.new.without_speed()
    return Merged(Library(entries.values()), tuple(changes))


def _change(entries: Mapping[Purpose, Entry], new: Entry, *, force: bool) -> Change:
    known = entries.get(new.purpose)
    speed = None if known is None else known.gflops.value
    return Change(merge_outcome(speed, new.gflops.value, force=force), new, known)


def _check_software(base: Library, incremental: Library) -> None:
    known = base.software
    foreign = [each for each in incremental.software if each not in known]
    if known and foreign:
        raise UsageError(
            f"ORIGINAL is for {software_text(known)}, but INCREMENTAL has entries for {software_text(foreign)}",
            hint="tune again for the target and the IREE version of ORIGINAL, or add --allow-mismatch",
        )

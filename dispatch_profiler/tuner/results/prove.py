"""Proves the entries of a library again with another compiler, which otherwise ignores all of them.

    entry -> compiled and proven to be configured as asked -> verified -> measured beside the untuned configuration
          -> entry of this compiler, or the reason why it is lost

The library in the output folder is written as entries are proven, so that the next run continues a run that
ended early. Lost entries are kept beside it, in `dropped.json`, whole and with their reasons.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Any

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.json_fields import FieldError, mapping, parse_json, rows, text
from dispatch_profiler.files.regular import read_bounded, write_atomic
from dispatch_profiler.library import DamagedEntry, Entry, KeepRule, Library, library_file
from dispatch_profiler.library.entry import Hardware, Purpose, best_for, for_one_size
from dispatch_profiler.library.entry_rows import exported
from dispatch_profiler.targets import Target, parse_target
from dispatch_profiler.tuner.results.finalists import Bench, Benchmark, Contender, benchmarked, kept_entry
from dispatch_profiler.tuner.results.uplift import Judged, Judgement, judge
from dispatch_profiler.tuner.tunings.problems import TuningProblem

# -- recheck ---------------------------------------------------------------------------------------

# Measures the entries of a library again: which are still faster on this machine, with this compiler?


def targets_of(library: Library, wanted: Target | None = None, *, option: str = "--recheck") -> list[Target]:
    """The targets to measure `library` on: `wanted`, or one of each family that it was measured on.

    `option` names what the user asked for. Raises UsageError if it has no entries, or none for `wanted`.
    """
    names = list(dict.fromkeys(name for name, _ in library.software))
    if not names and library.damaged:
        raise UsageError(
            f"{option}: all entries of the library are damaged; the first: {library.damaged[0].reason}",
            hint="dispatch-profiler library list names the others",
        )
    if not names:
        raise UsageError(f"{option}: the library has no entries", hint="there is nothing to measure again")
    found: dict[str, Target] = {}
    for target in map(parse_target, names):
        found.setdefault(target.family, target)
    if wanted is not None and wanted.family not in found:
        raise UsageError(
            f"{option}: the library is for {', '.join(names)}, not for {wanted.name}",
            hint="leave --target out, or name another library",
        )
    return list(found.values()) if wanted is None else [wanted]


def target_of(library: Library, wanted: Target | None = None, *, option: str) -> Target:
    """The only target to measure `library` on: see `targets_of`. Raises UsageError if it has entries for others."""
    target, *others = targets_of(library, wanted, option=option)
    if others or any(entry.family != target.family for entry in library.sound):
        names = dict.fromkeys(name for name, _ in library.software)
        raise UsageError(
            f"{option}: the library is for several targets: {', '.join(names)}",
            hint="name a library for one target",
        )
    return target


def measured_again(
    given: Sequence[Entry], benchmark: Benchmark, rule: KeepRule
) -> Iterator[tuple[Entry, Judged]]:
    """Each entry with its judgement, packed weights last: kept if it is still faster than the untuned configuration.

    Every entry is compiled with the compiler of `benchmark`, even if it was measured with another one. Raises
    TargetError if the device does not open.
    """
    with (
        tempfile.TemporaryDirectory(prefix="dispatch_profiler_") as folder,
        Bench(replace(benchmark, references=benchmark.references or Path(folder))) as bench,
    ):
        # An operation may have an entry of each kind.
        for packs in (False, True):
            group = [each for each in given if each.packs_weight is packs]
            usable = [_as_measured_with(each, benchmark.compiler.revision) for each in group]
            contenders = [
                Contender(TuningProblem(each.operation.name, each.operation), each) for each in usable
            ]
            finalists = benchmarked(contenders, Library(usable), bench)
            for entry, finalist in zip(group, finalists, strict=True):
                yield entry, judge(finalist, rule)


def _as_measured_with(entry: Entry, revision: str) -> Entry:
    """`entry`, marked as measured with the compiler `revision`, so that it can be used with it."""
    if entry.is_of_compiler(revision):
        return entry
    return replace(entry, provenance=replace(entry.provenance, iree=f"compiler {revision}"))


#: The entries that were lost, in the folder of the output.
DROPPED_FILE = "dropped.json"
_FORMAT, _VERSION = "dispatch_profiler dropped entries", 1
_LARGEST_FILE = 2**28
#: Entries that are compiled before any of them is measured: what Ctrl-C costs at most.
_AT_ONCE = 32
#: A large library takes half a second to write.
_SAVE_SECONDS = 2.0


class ProofOutcome(str, Enum):
    """The result for an entry."""

    PROVEN = "proven"
    #: The entry cannot be used with this compiler, or is slower than the untuned configuration.
    DROPPED = "dropped"
    #: It was not decided: the next run tries again.
    UNDECIDED = "undecided"


_OUTCOMES = {
    Judgement.KEPT: ProofOutcome.PROVEN,
    # Equally fast entries are kept: nothing is slower because of them.
    Judgement.INTERVAL_OVERLAPS: ProofOutcome.PROVEN,
    Judgement.BELOW_THRESHOLD: ProofOutcome.PROVEN,
    Judgement.INCORRECT: ProofOutcome.DROPPED,
    Judgement.IMPLAUSIBLE: ProofOutcome.DROPPED,
    Judgement.NOT_COMPILED: ProofOutcome.DROPPED,
    Judgement.NOT_APPLIED: ProofOutcome.DROPPED,
    Judgement.SLOWER: ProofOutcome.DROPPED,
}


@dataclass(frozen=True)
class Proof:
    """The outcome of an entry. `proven` is the entry for this compiler; None if the entry is lost or undecided."""

    entry: Entry
    judged: Judged
    outcome: ProofOutcome
    proven: Entry | None = None


def prove(entries: Sequence[Entry], benchmark: Benchmark) -> Iterator[Proof]:
    """The outcome of each entry, a few at a time. Raises TargetError if the device does not open."""
    for at in range(0, len(entries), _AT_ONCE):
        for entry, judged in measured_again(entries[at : at + _AT_ONCE], benchmark, KeepRule()):
            yield _proof(entry, judged)


def _proof(entry: Entry, judged: Judged) -> Proof:
    outcome = _OUTCOMES.get(judged.judgement, ProofOutcome.UNDECIDED)
    if outcome is ProofOutcome.DROPPED and judged.finalist.is_transient:
        outcome = ProofOutcome.UNDECIDED
    proven = kept_entry(entry, judged.finalist) if outcome is ProofOutcome.PROVEN else None
    return Proof(entry, judged, outcome, proven)


@dataclass
class ProvenLibrary:
    """The library in `output`, while the entries of another one, or its own, are proven for a compiler.

    `left` are the entries that are still to be proven. `damaged` are entries of the source that cannot be
    read; they are dropped. `others` are entries for hardware that this machine cannot measure: of the entries of an
    operation, the entry for the most similar hardware is proven. Entries for several sizes are among them.
    """

    output: Path
    revision: str
    left: tuple[Entry, ...]
    damaged: tuple[DamagedEntry, ...]
    others: tuple[Entry, ...]
    _kept: dict[Purpose, Entry]
    _dropped: list[dict[str, Any]]
    _saved: float = field(default_factory=monotonic)

    @classmethod
    def open(cls, source: Path, output: Path, revision: str, hardware: Hardware) -> ProvenLibrary:
        """Begin, or continue an earlier run, on `hardware`.

        Raises UsageError for files that are no library, and for an output of other entries.
        """
        library = Library.load(source)
        for each in library.damaged:
            if each.is_file:
                raise UsageError(each.reason, hint="restore the file, or take it out of library.json")
        entries = best_for(for_one_size(library.sound), hardware)
        others = tuple(each for each in library.sound if each not in entries)
        is_own = library_file(source) == library_file(output)
        dropped = _read_dropped(output / DROPPED_FILE)
        known = {(row["name"], row["reason"]) for row in dropped}
        damaged = tuple(each for each in library.damaged if (each.name, each.reason) not in known)
        dropped += [_damaged_row(each, revision) for each in damaged]
        if is_own:
            kept = {each.purpose: each for each in entries}
            left = tuple(each for each in entries if not each.is_of_compiler(revision))
            return cls(output, revision, left, damaged, others, kept, dropped)
        kept = {each.purpose: each for each in entries if each.is_of_compiler(revision)}
        kept |= _earlier(entries, output, revision)
        gone = {(row["name"], row["configuration"]) for row in dropped if row["compiler"] == revision}
        left = tuple(each for each in entries if each.purpose not in kept and _names(each) not in gone)
        # Another library has proven entries only.
        return cls(output, revision, left, damaged, (), kept, dropped)

    def __len__(self) -> int:
        """How many entries are kept."""
        return len(self._kept) + len(self.others)

    def take(self, proof: Proof) -> None:
        """Keep or drop an entry, and write the files unless they were just written."""
        purpose = proof.entry.purpose
        if proof.proven is not None:
            self._kept[purpose] = proof.proven
        elif proof.outcome is ProofOutcome.DROPPED:
            self._kept.pop(purpose, None)
            name, configuration = _names(proof.entry)
            row = {"name": name, "configuration": configuration, "compiler": self.revision}
            reason = f"{proof.judged.judgement.value}: {proof.judged.reason}"
            self._dropped.append({**row, "reason": reason, "entry": exported(proof.entry)})
        if monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the library, and before it the lost entries, so that every entry is in at least one file."""
        if self._dropped:
            data = {"format": _FORMAT, "version": _VERSION, "entries": self._dropped}
            write_atomic(self.output / DROPPED_FILE, json.dumps(data, indent=1) + "\n")
        Library((*self._kept.values(), *self.others)).save(self.output)
        self._saved = monotonic()


def _damaged_row(entry: DamagedEntry, revision: str) -> dict[str, Any]:
    row = {"name": entry.name, "configuration": "", "compiler": revision, "reason": entry.reason}
    return {**row, "entry": entry.row}


def _names(entry: Entry) -> tuple[str, str]:
    return entry.operation.name, entry.dispatch.configuration.name


def _earlier(entries: Sequence[Entry], output: Path, revision: str) -> dict[Purpose, Entry]:
    """The entries that an earlier run proved. Raises UsageError if the output is another library."""
    if not library_file(output).exists():
        return {}
    earlier = {each.purpose: each for each in Library.load(output).entries}
    configurations = {each.purpose: each.dispatch.configuration for each in entries}
    foreign = [
        each
        for purpose, each in earlier.items()
        if configurations.get(purpose) != each.dispatch.configuration or not each.is_of_compiler(revision)
    ]
    if foreign:
        raise UsageError(
            f"--output: {output} has other entries, such as {foreign[0].dispatch.name}",
            hint="name a new folder, and merge the libraries afterwards with dispatch-profiler merge",
        )
    return earlier


def _read_dropped(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier run. Raises UsageError for a damaged file."""
    if not path.exists():
        return []
    try:
        data = mapping(parse_json(read_bounded(path, _LARGEST_FILE)))
        if data.get("format") != _FORMAT or data.get("version") != _VERSION:
            raise FieldError(f'expected "format": "{_FORMAT}", "version": {_VERSION}')
        entries = rows(data, "entries")
        for row in entries:
            for name in ("name", "configuration", "compiler", "reason"):
                text(row, name)
    except FieldError as error:
        raise UsageError(f"{path}: {error}", hint="remove it, or name another folder") from error
    return [dict(row) for row in entries]

"""A library: for each operation, a configuration that is faster than the compiler's default; merges; shipped libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from pathlib import Path

from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.library.entry import (
    Entry,
    Hardware,
    KeepRule,
    Purpose,
    Software,
    best_for,
    choose,
    software_text,
)
from dispatch_profiler.library.entry_rows import in_order, to_text
from dispatch_profiler.library.family_files import DamagedEntry, EntryFile, entry_files, write_folder
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.profiler.records.record import Record, StoredRecord
from dispatch_profiler.targets import CpuTarget, Target, host_cpu

_Key = tuple[Purpose, Hardware]

#: The file in a library's folder that lists the others.
LIBRARY_FILE = "library.json"
#: The tuning spec beside it.
SPEC_FILE = "spec.mlir"
#: Damaged files and entries that a message names.
_MOST_NAMED = 5


class Library:
    """Entries: for each operation and hardware at most one, one that packs its weight at load time, and others for several sizes.

    Read from files, those of a family of operations are read when one of them is looked up, and an entry is constructed and
    checked when it is first used, so that a large library loads quickly. Raises UsageError then if it is damaged.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._files = [EntryFile.of(entries)]
        self._where = "the library"
        #: The file that it was read from, of a folder its index; None if it was made in this process.
        self.file: Path | None = None
        _ = self.entries

    @classmethod
    def from_records(
        cls,
        records: Iterable[Record | StoredRecord],
        dispatches: Iterable[Dispatch] = (),
        rule: KeepRule | None = None,
    ) -> Library:
        """The best verified record of each operation that is faster than the default by its interval.

        See `choose`, which also returns why an operation has no entry.
        """
        choices = choose(records, dispatches, rule or KeepRule())
        return cls(each.entry for each in choices if each.entry is not None)

    @classmethod
    def load(cls, path: Path) -> Library:
        """Read a folder with `library.json`, or one file with entries. Raises UsageError."""
        file = library_file(path)
        library = cls()
        library._where, library.file = str(file), file
        library._files = entry_files(file)
        return library

    def save(self, path: Path) -> Path:
        """Write the folder `path`, or the file `path` with all entries if it is a JSON file; returns `library.json` or the file.

        Files are written atomically, each in turn.
        """
        file = library_file(path)
        if file.name == LIBRARY_FILE:
            write_folder(file, self.entries)
        else:
            write_output(file, to_text(self.entries))
        return file

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it was read from, the index first."""
        every = (self.file, *(each.path for each in self._files))
        return tuple(dict.fromkeys(each for each in every if each is not None))

    @property
    def unlisted(self) -> tuple[Path, ...]:
        """Files like those of the library's folder that its index does not list, so that they are not read."""
        if self.file is None or any(each.path == self.file for each in self._files):
            return ()
        return tuple(path for path in sorted(self.file.parent.glob("*/*.json")) if path not in self.files)

    def find(
        self, operation: Operation, *, packed_weights: bool = False, hardware: Hardware = Hardware()
    ) -> Entry | None:
        """The entry of `operation` for the hardware that is the most similar to `hardware`; None without an entry.

        With `packed_weights`, for a constant weight: the entry that packs the weight, unless the entry that
        does not pack is faster, like some kernels that read the weight as it is stored. Without it: the entry
        that does not pack.
        """
        every = (self._checked(each) for each in self._named(operation))
        own = best_for(
            (entry for entry in every if entry.operation == operation and entry.sizes is None), hardware
        )
        by_packing = {entry.packs_weight: entry for entry in own}
        packed, plain = by_packing.get(True) if packed_weights else None, by_packing.get(False)
        if packed is None or plain is None:
            return packed or plain
        return plain if plain.gflops.value > packed.gflops.value else packed

    def find_for_sizes(self, operation: Operation, hardware: Hardware = Hardware()) -> Entry | None:
        """The entry for several numbers of rows or images, of which `operation` has one; None without an entry.

        Of several, the one for the fewest sizes, by the ratio of the largest to the smallest one. `hardware` is as in `find`.
        Raises UsageError if there is none, but a damaged one, or a file that cannot be read.
        """
        size, every = operation.operands[0].shape[0], list(self._for_several(operation))
        sound = (each for each in every if isinstance(each, Entry))
        entries = ((each.sizes, each) for each in best_for(sound, hardware))
        found = [(sizes.ratio, sizes, each) for sizes, each in entries if sizes is not None and size in sizes]
        if not found:
            for each in every:
                self._checked(each)
        return min(found, key=lambda each: each[:2])[2] if found else None

    def sizes_of(self, operation: Operation) -> tuple[SizeRange, ...]:
        """The sizes of the entries for several sizes of `operation`, whatever size it has, in order.

        Damaged entries do not count. Raises UsageError if a file cannot be read.
        """
        every = (each for each in self._for_several(operation) if isinstance(each, Entry))
        return tuple(sorted({each.sizes for each in every if each.sizes is not None}))

    def _for_several(self, operation: Operation) -> Iterator[Entry | DamagedEntry]:
        for file in self._files:
            if operation.batch_name and file.has(operation.family):
                yield from file.for_several(operation)

    def _named(self, operation: Operation) -> Iterator[Entry | DamagedEntry]:
        for file in self._files:
            if file.has(operation.family):
                yield from file.named(operation.name)

    @staticmethod
    def _checked(entry: Entry | DamagedEntry) -> Entry:
        """Raises UsageError if the entry is damaged."""
        if isinstance(entry, DamagedEntry):
            raise UsageError(entry.reason)
        return entry

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries. Raises UsageError if one is damaged, or if two have the same purpose and hardware."""
        if damaged := self.damaged:
            others = "" if len(damaged) == 1 else f"{len(damaged)} files or entries are damaged: "
            raise UsageError(others + "; ".join(each.reason for each in damaged[:_MOST_NAMED]))
        return self.sound

    @property
    def damaged(self) -> tuple[DamagedEntry, ...]:
        """The entries, and the files, that cannot be read, in order."""
        return tuple(each for file in self._files for each in file.damaged)

    @property
    def sound(self) -> tuple[Entry, ...]:
        """The entries that can be read; of several files in order of names, packed weights and hardware.

        Raises UsageError if two have the same purpose and hardware.
        """
        entries = list(self.readable())
        if len(self._files) > 1:
            entries.sort(key=in_order)
        seen: set[_Key] = set()
        for entry in entries:
            key = entry.purpose, entry.hardware
            if key in seen:
                packed = " with packed weights" if entry.packs_weight else ""
                text = f" for {entry.hardware.text}" if entry.hardware.text else ""
                raise UsageError(f"{self._where}: {entry.title} has two entries{packed}{text}")
            seen.add(key)
        return tuple(entries)

    def readable(self, prefix: str = "", family: str | None = None) -> Iterator[Entry]:
        """The entries that are not damaged, of operations whose names begin with `prefix`; others are not parsed.

        With the `family` of these operations, files of other families are not read.
        """
        for file in self._files:
            if family is None or file.has(family):
                yield from file.readable(prefix)

    @property
    def software(self) -> tuple[Software, ...]:
        """Each (target, IREE version) that entries were measured with; damaged entries do not count."""
        return tuple(dict.fromkeys(entry.software for entry in self.readable()))

    @property
    def machines(self) -> tuple[str, ...]:
        """The names of the machines that entries were measured on; damaged entries do not count."""
        return tuple(dict.fromkeys(entry.provenance.machine.name for entry in self.readable()))

    def __len__(self) -> int:
        """How many entries there are, also damaged ones; those of files that cannot be read are unknown."""
        return sum(map(len, self._files))


def library_file(path: Path) -> Path:
    """`path` if it names a JSON file, otherwise `library.json` in the folder `path`."""
    return path if path.suffix == ".json" and not path.is_dir() else path / LIBRARY_FILE


def spec_file(path: Path) -> Path:
    """The tuning spec beside the library `path`."""
    return library_file(path).with_name(SPEC_FILE)


def old_spec_hint(path: Path) -> str:
    """After a change of the library `path`: how to renew the tuning spec beside it; empty if it has none."""
    spec = spec_file(path)
    return f"hint: {spec} has earlier entries: dispatch-profiler library spec {path}" if spec.exists() else ""


# -- shipped ---------------------------------------------------------------------------------------

# Libraries of tuned kernels that come with the package.


_SHIPPED = Path(str(resources.files("dispatch_profiler.library") / "shipped"))


def _is_host_with_avx512(target: Target) -> bool:
    return target.name == CpuTarget().name and "avx512f" in host_cpu().features


def _has_avx2(target: Target) -> bool:
    return isinstance(target, CpuTarget) and target.level == "x86-64-v3"


#: Name of each library -> whether it was measured on the kind of hardware that a target is for.
_FITS: Mapping[str, Callable[[Target], bool]] = {
    "epyc-avx2": _has_avx2,
    "h200": lambda target: target.name == "cuda:sm_90",
    "xeon-avx512": _is_host_with_avx512,
}


#: Name of each library -> the level of the CPUs, or the target, that its entries are for.
_ENTRIES_FOR: Mapping[str, str] = {
    "epyc-avx2": "x86-64-v3",
    "h200": "cuda:sm_90",
    "xeon-avx512": "x86-64-v4",
}


def shipped_libraries() -> tuple[str, ...]:
    """Their names: the processors that they were measured on."""
    return tuple(sorted(each.name for each in _SHIPPED.iterdir() if each.is_dir()))


def shipped_for(target: Target) -> Path | None:
    """The folder of the shipped library for the hardware of `target`; None if no library is shipped for it."""
    return next((_SHIPPED / name for name, fits in _FITS.items() if fits(target)), None)


def shipped_for_entry(entry: Entry) -> str:
    """The name of the shipped library that has entries for the same hardware; empty if none is shipped for it."""
    hardware = entry.hardware.cpu or entry.provenance.target
    return next((name for name, each in _ENTRIES_FOR.items() if each == hardware), "")


def shipped_folder(name: str) -> Path:
    """The folder of the shipped library `name`, whatever the current folder has."""
    return _SHIPPED / name


def shipped_name(folder: Path) -> str:
    """The name of the shipped library in `folder`; empty for other folders."""
    return folder.name if folder.parent == _SHIPPED else ""


def is_shipped(path: Path) -> bool:
    """Whether `path` is the name of a shipped library, and nothing else has that name."""
    return str(path) in shipped_libraries() and not path.exists()


def find_library(path: Path) -> Path:
    """`path`, or the folder of the shipped library with that name. Raises UsageError if neither exists."""
    if is_shipped(path):
        return _SHIPPED / path
    if not path.exists():
        raise UsageError(
            f"{path}: no such library",
            hint=f"name a folder with a library.json, or a shipped library; {did_you_mean(str(path), shipped_libraries())}",
        )
    if path.is_dir() and not library_file(path).exists():
        inside = sorted(each.parent for each in path.glob(f"*/{library_file(path).name}"))
        hint = f"{inside[0]} has one" if inside else "tune and merge write libraries (docs/library.md)"
        raise UsageError(f"{path} is no library: it has no {library_file(path).name}", hint=hint)
    return path


# -- merge -----------------------------------------------------------------------------------------

# Merges two libraries: for each operation, which entry the result has and why.


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

    Entries of operations that only one side has are taken over. An entry neither replaces, nor is replaced by, an entry
    for other hardware, or one that differs in whether it packs its weight. Without `keep_speeds`, merged entries have speed
    0, so that any later entry replaces them. Speeds are compared before that.

    Raises UsageError if `incremental` is for a target or an IREE version that `base` is not for, unless
    `allow_mismatch`.
    """
    if not allow_mismatch:
        _check_software(base, incremental)
    entries: dict[_Key, Entry] = {(entry.purpose, entry.hardware): entry for entry in base.entries}
    changes = [_change(entries, new, force=force) for new in incremental.entries]
    for change in changes:
        if change.outcome is not MergeOutcome.KEPT:
            new = change.new if keep_speeds else change.new.without_speed()
            if change.known is not None:
                del entries[change.known.purpose, change.known.hardware]
            entries[new.purpose, new.hardware] = new
    return Merged(Library(entries.values()), tuple(changes))


def _change(entries: Mapping[_Key, Entry], new: Entry, *, force: bool) -> Change:
    # In version 1, the CPU is unknown: its entries are replaced as if they were for the same.
    unknown = new.hardware._replace(cpu="")
    known = entries.get((new.purpose, new.hardware)) or entries.get((new.purpose, unknown))
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

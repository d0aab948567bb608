"""A library: for each operation, the configuration that was found to be faster than the compiler's default."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.files.json_fields import FieldError, mapping, parse_json, rows, text
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.library.choice import KeepRule, choose
from dispatch_profiler.library.entry import Entry, Purpose, Software
from dispatch_profiler.library.library_json import check_header, entry_of, origins_of, to_text
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.records.record import Provenance, Record
from dispatch_profiler.profiler.records.record_file import StoredRecord

#: The file in a library's folder that everything else is derived from.
LIBRARY_FILE = "library.json"
#: The tuning spec beside it.
SPEC_FILE = "spec.mlir"
#: Far above any library: ten thousand entries take 8 MB.
_LARGEST_FILE = 2**28


@dataclass(frozen=True)
class DamagedEntry:
    """An entry of a library that cannot be read: `reason` says where and why, `row` is its text in the file."""

    name: str
    reason: str
    row: Mapping[str, Any]


class Library:
    """Entries, at most one for each operation, and one that packs its weight at load time.

    Read from a file, an entry is constructed and checked when it is first used, so that a large library
    loads quickly. Raises UsageError then if it is damaged.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._items: list[Entry | Mapping[str, Any]] = list(entries)
        self._where = "the library"
        #: The file that it was read from; None if it was made in this process.
        self.file: Path | None = None
        self._origins: tuple[Provenance, ...] = ()
        names = (entry.operation.name for entry in self._items if isinstance(entry, Entry))
        self._places = _places(names)
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
        """Read a folder with `library.json`, or such a file. Raises UsageError."""
        file = library_file(path)
        library = cls()
        library._where, library.file = str(file), file
        try:
            content = read_bounded(file, _LARGEST_FILE)
            with _without_collection():
                data = mapping(parse_json(content))
            check_header(data)
            library._origins = origins_of(data)
            items = rows(data, "entries")
            library._items = list(items)
            library._places = _places(text(row, "name") for row in items)
        except FieldError as error:
            raise UsageError(
                f"{file}: not a library ({error})", hint="name a folder with a library.json"
            ) from error
        return library

    def save(self, path: Path) -> Path:
        """Write `library.json` atomically to the folder `path`, or to the file `path`; returns the file."""
        file = library_file(path)
        write_output(file, to_text(self.entries))
        return file

    def find(self, operation: Operation, *, packed_weights: bool = False) -> Entry | None:
        """The entry of `operation`; None without an entry.

        With `packed_weights`, for a constant weight: the entry that packs the weight, unless the entry that
        does not pack is faster, like some kernels that read the weight as it is stored. Without it: the entry
        that does not pack.
        """
        every = (self._entry(at) for at in self._places.get(operation.name, ()))
        by_packing = {entry.packs_weight: entry for entry in every if entry.operation == operation}
        packed, plain = by_packing.get(True) if packed_weights else None, by_packing.get(False)
        if packed is None or plain is None:
            return packed or plain
        return plain if plain.gflops.value > packed.gflops.value else packed

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries. Raises UsageError if one is damaged or if an operation has two that pack alike."""
        for each in self.damaged:
            raise UsageError(each.reason)
        return self.sound

    @property
    def damaged(self) -> tuple[DamagedEntry, ...]:
        """The entries that cannot be read, in order."""
        return tuple(each for each in map(self._read, range(len(self._items))) if not isinstance(each, Entry))

    @property
    def sound(self) -> tuple[Entry, ...]:
        """The entries that can be read. Raises UsageError if an operation has two that pack alike."""
        entries = tuple(self.readable())
        seen: set[Purpose] = set()
        for entry in entries:
            if entry.purpose in seen:
                packed = " with packed weights" if entry.packs_weight else ""
                raise UsageError(f"{self._where}: {entry.operation.name} has two entries{packed}")
            seen.add(entry.purpose)
        return entries

    def readable(self, prefix: str = "") -> Iterator[Entry]:
        """The entries that are not damaged, of operations whose names begin with `prefix`; others are not parsed."""
        places = [at for name, every in self._places.items() if name.startswith(prefix) for at in every]
        for entry in map(self._read, sorted(places)):
            if isinstance(entry, Entry):
                yield entry

    @property
    def software(self) -> tuple[Software, ...]:
        """Each (target, IREE version) that entries were measured with; damaged entries do not count."""
        return tuple(dict.fromkeys(entry.software for entry in self.readable()))

    @property
    def machines(self) -> tuple[str, ...]:
        """The names of the machines that entries were measured on; damaged entries do not count."""
        return tuple(dict.fromkeys(entry.provenance.machine.name for entry in self.readable()))

    def __len__(self) -> int:
        return len(self._items)

    def _entry(self, at: int) -> Entry:
        """Raises UsageError if the entry is damaged."""
        entry = self._read(at)
        if not isinstance(entry, Entry):
            raise UsageError(entry.reason)
        return entry

    def _read(self, at: int) -> Entry | DamagedEntry:
        item = self._items[at]
        if isinstance(item, Entry):
            return item
        try:
            entry = entry_of(item, self._origins)
        except FieldError as error:
            name = " ".join(str(item.get("name"))[:100].split())  # a message is one line
            return DamagedEntry(name, f"{self._where}, entry {at + 1} ({name}): {error}", item)
        self._items[at] = entry
        return entry


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Pause the garbage collector, which would search the objects of a large document several times in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def library_file(path: Path) -> Path:
    """`path` if it names a JSON file, otherwise the library's file in the folder `path`."""
    return path if path.suffix == ".json" and not path.is_dir() else path / LIBRARY_FILE


def spec_file(path: Path) -> Path:
    """The tuning spec beside the library `path`."""
    return library_file(path).with_name(SPEC_FILE)


def old_spec_hint(path: Path) -> str:
    """After a change of the library `path`: how to renew the tuning spec beside it; empty if it has none."""
    spec = spec_file(path)
    return f"hint: {spec} has earlier entries: dispatch-profiler library spec {path}" if spec.exists() else ""


def _places(names: Iterable[str]) -> Mapping[str, Sequence[int]]:
    """Name of an operation -> the indices of its entries."""
    places: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        places.setdefault(name, []).append(at)
    return places

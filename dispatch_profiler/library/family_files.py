"""Where the entries of a library are: in memory, in one file, or in a folder with a file for each device and family.

    tuned/library.json                                      the index: which files there are
    tuned/llvm-cpu-x86-64-v4-16-threads/convolution.json    entries of convolutions, for this level and number of threads
    tuned/llvm-cpu-x86-64-v4-16-threads/product.json        entries of products, for the same

A file is read when an operation of its family is first looked up, and an entry is constructed when it is first used.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dispatch_profiler.errors import OperationError, UsageError
from dispatch_profiler.files.destinations import output_file
from dispatch_profiler.files.json_fields import FieldError, mapping, parse_json, rows, text, texts
from dispatch_profiler.files.regular import atomic_file, read_bounded
from dispatch_profiler.library.entry import Entry, Hardware
from dispatch_profiler.library.entry_rows import VERSION, check_header, entry_of, header, origins_of, to_text
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.size_range import SizeRange

#: Far above any library: ten thousand entries take 8 MB.
_LARGEST_FILE = 2**28
#: A file of an index: a folder and a family. It cannot leave the library's folder.
_FILE = re.compile(r"[A-Za-z0-9_][\w.+-]{0,150}/([a-z0-9_]{1,60})\.json", re.ASCII)
#: What names of folders do not have.
_OTHER = re.compile(r"\W*[^\w.+-]\W*", re.ASCII)
_LONGEST_FOLDER = 100


@dataclass(frozen=True)
class DamagedEntry:
    """An entry that cannot be read: `reason` says where and why, `row` is its text in the file.

    A file that cannot be read is one damaged entry without a text, whose name is that of the file.
    """

    name: str
    reason: str
    row: Mapping[str, Any]

    @property
    def is_file(self) -> bool:
        """Whether it stands for all entries of a file."""
        return not self.row


class EntryFile:
    """The entries of one file, read when they are first used; or of none, which are in memory.

    `family` is the family that all operations of the file have; empty for a file with any operation.
    """

    def __init__(self, where: str, path: Path | None = None, family: str = "") -> None:
        self._where = where
        self.path = path
        self.family = family
        self._items: list[Entry | Mapping[str, Any]] | None = None
        self._origins = origins_of({"origins": []})
        self._places: Mapping[str, Sequence[int]] = {}
        self._sizes: tuple[SizeRange, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> EntryFile:
        """Entries in memory."""
        made = cls("the library")
        made._hold(list(entries), (), {})
        return made

    def take(self, data: Mapping[str, Any]) -> None:
        """Take the content of the file. Raises FieldError."""
        check_header(data)
        items = rows(data, "entries")
        self._hold(items, [text(row, "name") for row in items], data)

    def _hold(self, items: Sequence[Any], names: Sequence[str], data: Mapping[str, Any]) -> None:
        names = names or [each.operation.name for each in items]
        places: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            places.setdefault(name, []).append(at)
        self._origins = origins_of(data or {"origins": []})
        self._places, self._items = places, list(items)
        self._sizes = tuple(_sizes_of(items))

    def has(self, family: str) -> bool:
        """Whether operations of this family may be here."""
        return self.family in ("", family)

    def named(self, name: str) -> Iterator[Entry | DamagedEntry]:
        """The entries of the operation with this name. Raises UsageError if the file cannot be read."""
        items = self._loaded()
        yield from (self._read(items, at) for at in self._places.get(name, ()))

    def for_several(self, operation: Operation) -> Iterator[Entry | DamagedEntry]:
        """The entries for several sizes of `operation`, whatever size it has. Raises UsageError if the file cannot be read."""
        self._loaded()
        for sizes in self._sizes:
            largest = operation.with_batch(sizes.most)
            if largest is None or operation.batch_name != sizes.dimension:
                continue
            for each in self.named(largest.name):
                if isinstance(each, DamagedEntry) or (each.sizes == sizes and each.operation == largest):
                    yield each

    def readable(self, prefix: str = "") -> Iterator[Entry]:
        """The entries that are not damaged, of operations whose names begin with `prefix`; others are not parsed."""
        try:
            items = self._loaded()
        except UsageError:
            return
        places = [at for name, every in self._places.items() if name.startswith(prefix) for at in every]
        for entry in (self._read(items, at) for at in sorted(places)):
            if isinstance(entry, Entry):
                yield entry

    @property
    def damaged(self) -> Iterator[DamagedEntry]:
        """The entries that cannot be read, in order; or the file."""
        try:
            items = self._loaded()
        except UsageError as error:
            yield DamagedEntry(self._where, error.message, {})
            return
        for each in (self._read(items, at) for at in range(len(items))):
            if not isinstance(each, Entry):
                yield each

    def __len__(self) -> int:
        try:
            return len(self._loaded())
        except UsageError:
            return 0

    def _loaded(self) -> list[Entry | Mapping[str, Any]]:
        if self._items is None:
            assert self.path is not None  # entries in memory are there
            with _named(self.path):
                self.take(read_file(self.path))
        assert self._items is not None
        return self._items

    def _read(self, items: list[Entry | Mapping[str, Any]], at: int) -> Entry | DamagedEntry:
        item = items[at]
        if isinstance(item, Entry):
            return item
        try:
            entry = entry_of(item, self._origins)
            if not self.has(entry.operation.family):
                raise FieldError(f"it belongs into {entry.operation.family}.json")
        except FieldError as error:
            name = " ".join(str(item.get("name"))[:100].split())  # a message is one line
            return DamagedEntry(name, f"{self._where}, entry {at + 1} ({name}): {error}", item)
        items[at] = entry
        return entry


def _sizes_of(items: Iterable[Any]) -> Iterator[SizeRange]:
    """The sizes of entries for several, each once; what is damaged is found when its entry is read."""
    found = dict.fromkeys(
        (each.sizes and each.sizes.text) if isinstance(each, Entry) else each.get("sizes") for each in items
    )
    for each in found:
        if isinstance(each, str):
            with contextlib.suppress(OperationError):
                yield SizeRange.parse(each)


def entry_files(file: Path) -> list[EntryFile]:
    """The files with the entries of the library in `file`, which has them itself or is an index. Raises UsageError."""
    with _named(file):
        data = read_file(file)
        check_header(data)
        if "files" not in data:
            own = EntryFile(str(file), file)
            own.take(data)
            return [own]
        return [_listed(file.parent, name) for name in texts(data, "files")]


def _listed(folder: Path, name: str) -> EntryFile:
    """A file that an index lists. Raises FieldError."""
    found = _FILE.fullmatch(name)
    if found is None:
        raise FieldError(f"files: expected FOLDER/FAMILY.json, but got {name[:100]!r}")
    return EntryFile(str(folder / name), folder / name, found[1])


@contextlib.contextmanager
def _named(file: Path) -> Iterator[None]:
    """Turn a FieldError into a UsageError that names the file."""
    try:
        yield
    except FieldError as error:
        raise UsageError(
            f"{file}: not a library ({error})", hint="name a folder with a library.json"
        ) from error


def read_file(file: Path) -> Mapping[str, Any]:
    """The content of a file of a library. Raises UsageError and FieldError."""
    content = read_bounded(file, _LARGEST_FILE)
    with _without_collection():
        return mapping(parse_json(content))


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


# -- writing ---------------------------------------------------------------------------------------


def file_texts(entries: Iterable[Entry]) -> dict[str, str]:
    """The files of a folder, by their place in it, without the index -> their texts."""
    groups: dict[str, list[Entry]] = {}
    for each in entries:
        folder = folder_name(each.provenance.target, each.hardware)
        groups.setdefault(f"{folder}/{each.operation.family}.json", []).append(each)
    return {name: to_text(groups[name]) for name in sorted(groups)}


def folder_name(target: str, hardware: Hardware) -> str:
    """`llvm-cpu-x86-64-v4-16-threads`, `cuda-sm_90`: the folder of entries that were measured with this target and hardware."""
    if hardware.cpu and hardware.cpu in target:
        hardware = hardware._replace(cpu="")
    return _OTHER.sub("-", f"{target} {hardware.text}").strip("-.")[:_LONGEST_FOLDER]


def index_text(names: Iterable[str]) -> str:
    """The text of an index of these files."""
    return f'{{{header(VERSION)}, "files": {json.dumps(sorted(names), indent=0)}}}\n'


def write_folder(index: Path, entries: Iterable[Entry]) -> None:
    """Write the files of a library beside the file `index`, then the index, and remove files that it no longer lists.

    A file is written only if its text changes. Nothing is replaced before everything is written, so that a full disk costs
    nothing. The index is always written, so that its time says when the library was.
    """
    folder, contents, earlier = index.parent, file_texts(entries), _earlier(index)
    with contextlib.ExitStack() as replaced:
        # What is opened first appears last.
        _write(replaced.enter_context(output_file(index)), index_text(contents))
        for name, content in contents.items():
            if not _has(folder / name, content):
                _write(replaced.enter_context(atomic_file(folder / name)), content)
    for name in earlier - set(contents):
        (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files are there
            (folder / name).parent.rmdir()


def _write(file: BinaryIO, content: str) -> None:
    file.write(content.encode())
    file.flush()


def _earlier(index: Path) -> set[str]:
    """The files that an index listed; none if it cannot be read."""
    try:
        return {
            each.path.relative_to(index.parent).as_posix()
            for each in entry_files(index)
            if each.family and each.path
        }
    except UsageError:
        return set()


def _has(path: Path, content: str) -> bool:
    try:
        return path.read_text() == content
    except (OSError, ValueError):
        return False

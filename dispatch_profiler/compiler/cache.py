"""A cache of compiled modules for all generated trees and launches of a user, keyed by the content of the inputs.

An entry is one file: the SHA-256 of the rest in hexadecimal, the length of a JSON header, the header, then
the data. The header of a build has its key, label, outcomes, launch program and origin, and the data are both
vmfbs, or one if they are equal. Failures are kept, too, but only failures that the compiler would repeat:
with the time limit if a dispatch exceeded it, and never after a lack of memory, processes or disk space or a
signal from outside. Texts that take long to compute are kept beside the builds that they name: their header
has key and label, and the data are the text. An entry is written atomically and checked when read; a damaged
one, or one with another key, is a miss and is removed. A cache that another user may write to is not used,
because its entries are executed. When the cache exceeds its size limit, the least recently used entries are
removed first. Several processes may use one cache at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dispatch_profiler.compiler._base import BuildOutcome, Built
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import UsageError, reason_of
from dispatch_profiler.files.json_fields import flag, mapping, parse_json, text, text_values, texts, whole
from dispatch_profiler.files.private_files import (
    NotPrivate,
    is_private,
    make_private_folder,
    others_reason,
    read_private,
    warn_once,
    write_private,
)
from dispatch_profiler.files.regular import (
    locked,
    open_regular,
    read_bounded,
    remove_leftovers,
    sha256,
)

Value = TypeVar("Value")
DEFAULT_BYTES = 5 * 2**30
_DIGEST = 64
_LENGTH = 16
_SUFFIX = ".built"
_HINT = (
    "remove it or its write permissions, or name another folder: --cache-dir, or BOO_CACHE_DIR for launches"
)
_SIZE = "size"
#: Far above the vmfbs of any module.
_LARGEST_ENTRY = 2**33
#: Far above any header, which has the compiler's diagnostics.
_LARGEST_HEADER = 2**26
#: Far above the notes of any entry.
_LARGEST_NOTES = 2**16
#: Digits of the number of bytes in the cache.
_LONGEST_SIZE = 20


@dataclass(frozen=True)
class Origin:
    """For people: the revision of the compiler, and the target with its CPU. The key has both, too."""

    compiler: str = ""
    target: str = ""


@dataclass(frozen=True)
class CacheInfo:
    """The folder and the size of a cache."""

    folder: Path
    entries: int
    bytes: int
    max_bytes: int


@dataclass(frozen=True)
class CacheEntry:
    """An entry in a list of the cache.

    `name` is the label that it was stored with, or the name of its first dispatch; empty if its header is
    damaged. `outcomes` has the outcome of each dispatch by its name; a text has no outcomes. `used` is the
    time of its last use, in seconds since the epoch.
    """

    path: Path
    name: str
    outcomes: Mapping[str, BuildOutcome] = field(compare=False)
    origin: Origin
    bytes: int
    used: float

    @property
    def dispatches(self) -> int:
        """The number of dispatches of a build."""
        return len(self.outcomes)

    @property
    def compiled(self) -> int:
        """The number of dispatches in its vmfbs."""
        return len(self.outcomes) - len(self.failures)

    @property
    def failures(self) -> dict[str, BuildOutcome]:
        """The dispatches that did not compile, or not as requested."""
        return {name: each for name, each in self.outcomes.items() if each.state is not State.COMPILED}


class Cache:
    """Builds, and texts, by key. File system errors make it slower, never wrong."""

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        # The next entries to evict, as of the last scan.
        self._oldest: deque[tuple[float, int, Path]] = deque()

    @property
    def folder(self) -> Path:
        """The folder of the entries, which need not exist."""
        return self._folder

    def check_writable(self) -> None:
        """Raise UsageError if the folder can keep no entries: NotPrivate if another user may write to it."""
        if (reason := others_reason(self._folder)) is not None:
            raise NotPrivate(f"the cache {self._folder} is not used: {reason}", hint=_HINT)
        try:
            make_private_folder(self._folder)
            with locked(self._folder / ".lock"):
                write_private(self._folder / _SIZE, str(self._recorded_size()), scratch=self._scratch)
        except OSError as error:
            raise UsageError(
                f"cannot write to the cache {self._folder}: {reason_of(error)}",
                hint="name another folder: --cache-dir, or BOO_CACHE_DIR for launches",
            ) from error

    def __contains__(self, key: object) -> bool:
        """Whether the folder has an entry for `key`, which may be damaged; False if the folder may not be searched."""
        return os.path.exists(self._path(str(key)))  # Path.exists raises where the folder may not be searched

    def get(self, key: str, seconds: float = 0.0) -> Built | None:
        """The build under `key`; None if it is missing or damaged, or if a dispatch ran out of less time than `seconds`."""
        found = self._read(key, _built)
        limits = [each.seconds for each in found.outcomes.values() if each.seconds] if found else []
        return None if any(limit < seconds for limit in limits) else found

    def get_text(self, key: str) -> str | None:
        """The text under `key`; None if it is missing or damaged."""
        return self._read(key, _text)

    def _read(self, key: str, parse: Callable[[Mapping[str, object], bytes], Value]) -> Value | None:
        """The header and the data of an entry, parsed by `parse`, which raises ValueError if it cannot read them."""
        path = self._path(key)
        if not self._is_private(path.parent):
            return None
        try:
            found = parse(*_unpack(read_private(path, _LARGEST_ENTRY), key))
        except NotPrivate as error:
            warn_once(f"an entry of the cache {self._folder} is not used: {error}; {_HINT}")
            return None
        except (UsageError, ValueError) as error:
            # Missing, unreadable, or not written by this package.
            if not isinstance(error.__cause__, FileNotFoundError):
                _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # mark as recently used
        return found

    def put(self, key: str, built: Built, label: str = "", origin: Origin = Origin()) -> None:
        """Store `built`, unless an outcome is not deterministic.

        `label` is a name for people, in `entries`; it identifies nothing.
        """
        if all(outcome.is_deterministic for outcome in built.outcomes.values()):
            self._write(key, _pack_built(built, key, label, origin))

    def put_text(self, key: str, text_: str, label: str) -> None:
        """Store a text. `label` is a name for people, as in `put`."""
        self._write(key, _pack({"key": key, "label": label}, text_.encode()))

    def _write(self, key: str, data: bytes) -> None:
        path = self._path(key)
        if len(data) > self._max_bytes or not all(map(self._is_private, (path.parent, self._scratch))):
            return
        with contextlib.suppress(OSError):
            make_private_folder(self._folder)
            remove_leftovers(self._scratch)
            with locked(self._folder / ".lock"):
                self._remove_old(path)
                self._make_room(len(data))
                write_private(path, data, scratch=self._scratch)

    def notes(self, key: str) -> dict[str, str]:
        """The notes that `add_note` added to the entry of `key`; empty if they are damaged."""
        path = self._path(key)
        if not self._is_private(path.parent):
            return {}
        try:
            data = {"notes": parse_json(read_private(_notes_of(path), _LARGEST_NOTES))}
            return text_values(data, "notes")
        except (UsageError, ValueError):
            return {}

    def add_note(self, key: str, name: str, value: str) -> None:
        """Add a short text to the entry of `key`, if the entry exists; the text is removed with the entry.

        If several processes add notes at once, some may be lost.
        """
        path = self._path(key)
        with contextlib.suppress(OSError):
            if path.exists() and self._is_private(path.parent):
                notes = json.dumps({**self.notes(key), name: value})
                write_private(_notes_of(path), notes, scratch=self._scratch)

    def info(self) -> CacheInfo:
        """The current number of entries and bytes."""
        sizes = [size for _, size, _ in self._files()]
        return CacheInfo(self._folder, len(sizes), sum(sizes), self._max_bytes)

    def entries(self) -> Iterator[CacheEntry]:
        """Every entry, the most recently used first. Only headers are read, so damage elsewhere is not noticed."""
        for used, size, path in reversed(self._files()):
            try:
                header = _read_header(path)
                outcomes = _outcomes(header.get("outcomes", {}))
                name = text(header, "label", "") or next(iter(outcomes), "")
                origin = Origin(text(header, "compiler", ""), text(header, "target", ""))
            except (UsageError, ValueError):
                name, outcomes, origin = "", {}, Origin()
            yield CacheEntry(path, name, outcomes, origin, size, used)

    def remove(self, entries: Iterable[CacheEntry]) -> int:
        """Remove these entries. Returns their number."""
        return self._remove_all([entry.path for entry in entries])

    def clear(self) -> int:
        """Remove every entry. Returns their number."""
        return self._remove_all([path for _, _, path in self._files()])

    def _remove_all(self, paths: list[Path]) -> int:
        for path in paths:
            _remove(path)
        if self._is_private(self._folder):
            (self._folder / _SIZE).unlink(missing_ok=True)
        return len(paths)

    @property
    def _scratch(self) -> Path:
        """The folder for temporary files, which are then renamed."""
        return self._folder / "unfinished"

    def _is_private(self, folder: Path) -> bool:
        """Whether no other user may write to the cache and this folder of it; otherwise warns once."""
        folders = dict.fromkeys([self._folder, folder])
        return all(is_private(each, f"the cache {self._folder}", _HINT) for each in folders)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}{_SUFFIX}"

    def _files(self) -> list[tuple[float, int, Path]]:
        """(last use, size, path) of every entry, the least recently used first."""
        found: list[tuple[float, int, Path]] = []
        if not self._is_private(self._folder):
            return found
        for path in self._folder.glob(f"??/*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return sorted(found)

    def _remove_old(self, path: Path) -> None:
        """Remove the entry that is about to be replaced. Call with the lock held."""
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            _remove(path)
            self._record_size(self._recorded_size() - size)

    def _make_room(self, size: int) -> None:
        """Evict entries until `size` more bytes are within the limit. Call with the lock held."""
        total = self._recorded_size() + size
        for _ in range(2):  # entries of the last scan, then of a new one
            if total <= self._max_bytes:
                break
            if not self._oldest:
                self._oldest.extend(self._files())
                total = sum(bytes_ for _, bytes_, _ in self._oldest) + size
            total -= self._evict(total - self._max_bytes)
        self._record_size(total)

    def _evict(self, wanted: int) -> int:
        """Remove the least recently used known entries, `wanted` bytes or more. Returns bytes removed."""
        freed = 0
        while freed < wanted and self._oldest:
            used, size, path = self._oldest.popleft()
            with contextlib.suppress(OSError):
                if path.stat().st_mtime == used:  # otherwise used since then, or gone
                    _remove(path)
                    freed += size
        return freed

    def _recorded_size(self) -> int:
        """Bytes in the cache, as recorded by the last writer: counting a full cache takes seconds."""
        try:
            return int(read_bounded(self._folder / _SIZE, _LONGEST_SIZE))
        except (UsageError, ValueError):
            return sum(size for _, size, _ in self._files())

    def _record_size(self, size: int) -> None:
        write_private(self._folder / _SIZE, str(size), scratch=self._scratch)


def _notes_of(path: Path) -> Path:
    """The notes beside the entry at `path`."""
    return path.with_suffix(".notes")


def _remove(path: Path) -> None:
    """Remove whatever is at the path of an entry, and its notes, if possible."""
    with contextlib.suppress(OSError):
        _notes_of(path).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _pack_built(built: Built, key: str, label: str, origin: Origin) -> bytes:
    outcomes = {name: _row(outcome) for name, outcome in built.outcomes.items()}
    has_profile = built.profile != built.verify
    header = {
        "key": key,
        "label": label,
        "compiler": origin.compiler,
        "target": origin.target,
        "verify": len(built.verify),
        "has_profile": has_profile,
        "outcomes": outcomes,
        "diagnostics": built.diagnostics,
        "program": built.program,
    }
    return _pack(header, built.verify + (built.profile if has_profile else b""))


def _pack(header: Mapping[str, object], data: bytes) -> bytes:
    head = json.dumps(header).encode()
    body = f"{len(head):0{_LENGTH}d}".encode() + head + data
    return sha256(body).encode() + body


def _unpack(entry: bytes, key: str) -> tuple[Mapping[str, object], bytes]:
    """The header and the data. Raises ValueError if `entry` is damaged or has another key."""
    body = entry[_DIGEST:]
    if sha256(body).encode() != entry[:_DIGEST]:
        raise ValueError("damaged")
    start = _LENGTH + int(body[:_LENGTH])
    header = mapping(parse_json(body[_LENGTH:start]))
    if text(header, "key") != key:
        raise ValueError("another key")
    return header, body[start:]


def _built(header: Mapping[str, object], data: bytes) -> Built:
    """Raises ValueError if the entry has no build."""
    middle = whole(header, "verify", most=len(data))
    outcomes = _outcomes(header.get("outcomes"))
    verify = data[:middle]
    profile = data[middle:] if flag(header, "has_profile") else verify
    return Built(verify, profile, outcomes, text(header, "diagnostics"), text(header, "program"))


def _text(header: Mapping[str, object], data: bytes) -> str:
    """Raises ValueError if the entry has no text."""
    if "outcomes" in header:
        raise ValueError("a build")
    return data.decode()


def _read_header(path: Path) -> dict[str, object]:
    """The header of an entry, unchecked. Raises UsageError or ValueError if it cannot be read."""
    with open_regular(path) as file:
        try:
            length = int(file.read(_DIGEST + _LENGTH)[_DIGEST:])
            return dict(mapping(parse_json(file.read(min(max(length, 0), _LARGEST_HEADER)))))
        except OSError as error:
            raise ValueError(f"cannot read {path}") from error


def _outcomes(header: object) -> dict[str, BuildOutcome]:
    found = mapping(header, "outcomes")
    return {name: _outcome(texts(found, name)) for name in found}


def _outcome(row: tuple[str, ...]) -> BuildOutcome:
    """Inverse of `_row`. Raises ValueError."""
    state, reason, applied, kernel, *later = row
    is_transient, seconds = later or ("", "0")  # earlier versions kept no transient failures
    return BuildOutcome(
        State(state), reason, applied, kernel, is_transient=bool(is_transient), seconds=float(seconds)
    )


def _row(of: BuildOutcome) -> list[str]:
    return [
        of.state.value,
        of.reason,
        of.applied,
        of.kernel,
        "transient" * of.is_transient,
        f"{of.seconds!r}",
    ]

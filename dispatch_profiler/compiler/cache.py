"""What was compiled once, for every generated tree of a user: by the content of all that went in.

An entry is one file: the SHA-256 of the rest in hexadecimal, the length of a JSON header, the
header (outcomes), then both vmfbs. It is written whole or not at all and checked when read; one
that is damaged is a miss and is removed. The least recently used entries go first when the cache
grows beyond its bound. Several processes may use one cache at once.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.compiler._base import Built, Outcome
from dispatch_profiler.files import locked, sha256, write_atomic
from dispatch_profiler.generator import State

DEFAULT_BYTES = 5 * 2**30
_DIGEST = 64
_LENGTH = 16
_SUFFIX = ".built"


@dataclass(frozen=True)
class CacheInfo:
    """Where the cache lies, and how much it holds."""

    folder: Path
    entries: int
    bytes: int
    max_bytes: int


class Cache:
    """Builds by key. Errors of the file system make it slower, never wrong."""

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def get(self, key: str) -> Built | None:
        """What was built under `key`; None if it is not here, or not whole."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        built = _unpack(data)
        with contextlib.suppress(OSError):
            if built is None:
                path.unlink()
            else:
                os.utime(path)  # used now: among the last to go
        return built

    def put(self, key: str, built: Built) -> None:
        """Keep `built`, unless some outcome may be another next time (a time limit, a crash)."""
        if any(outcome.is_transient for outcome in built.outcomes.values()):
            return
        with contextlib.suppress(OSError):
            write_atomic(self._path(key), _pack(built))
            self._evict()

    def info(self) -> CacheInfo:
        """Count entries and bytes."""
        sizes = [size for _, size, _ in self._files()]
        return CacheInfo(self._folder, len(sizes), sum(sizes), self._max_bytes)

    def clear(self) -> int:
        """Remove every entry; how many there were."""
        files = self._files()
        for _, _, path in files:
            path.unlink(missing_ok=True)
        return len(files)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}{_SUFFIX}"

    def _files(self) -> list[tuple[float, int, Path]]:
        """(last use, size, path) of every entry, the longest unused first."""
        found = []
        for path in self._folder.glob(f"??/*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return sorted(found)

    def _evict(self) -> None:
        with locked(self._folder / ".lock"):
            files = self._files()
            excess = sum(size for _, size, _ in files) - self._max_bytes
            for _, size, path in files:
                if excess <= 0:
                    return
                path.unlink(missing_ok=True)
                excess -= size


def _pack(built: Built) -> bytes:
    outcomes = {name: [o.state.value, o.reason, o.applied] for name, o in built.outcomes.items()}
    header = json.dumps(
        {"verify": len(built.verify), "outcomes": outcomes, "diagnostics": built.diagnostics}
    ).encode()
    body = f"{len(header):0{_LENGTH}d}".encode() + header + built.verify + built.profile
    return sha256(body).encode() + body


def _unpack(data: bytes) -> Built | None:
    body = data[_DIGEST:]
    if sha256(body).encode() != data[:_DIGEST]:
        return None
    start = _LENGTH + int(body[:_LENGTH])
    header = json.loads(body[_LENGTH:start])
    middle = start + header["verify"]
    outcomes = {
        name: Outcome(State(state), reason, applied)
        for name, (state, reason, applied) in header["outcomes"].items()
    }
    return Built(body[start:middle], body[middle:], outcomes, header["diagnostics"])

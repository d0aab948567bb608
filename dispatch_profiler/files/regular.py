"""Atomic writes, bounded reads, hashes and locks of files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from dispatch_profiler.errors import UsageError, nearest, reason_of

#: Bytes per read from a file that grows meanwhile.
_CHUNK = 2**20
#: How many files are looked at for one that was meant, and how similar its name is.
_LISTED, _SIMILAR = 1000, 0.8
#: Mode of files: readable by all users who share a tree.
_MODE = 0o666
#: Suffix of temporary files.
_UNFINISHED = ".tmp"
#: Folders of an IREE build or install tree that may contain its tools.
_PLACES = ("", "tools", "bin", "install/bin")


def find_tools(build_dir: Path, names: Sequence[str]) -> list[Path]:
    """The tools called `names`, all from the same folder of `build_dir`.

    Raises UsageError, with the folders searched.
    """
    for place in _PLACES:
        tools = [build_dir / place / name for name in names]
        if all(tool.is_file() for tool in tools):
            return tools
    looked = ", ".join(str(build_dir / place) for place in _PLACES)
    raise UsageError(
        f"{build_dir} does not contain {' and '.join(names)}",
        hint=f"searched {looked}; remove --build-dir to use the installed wheels",
    )


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def hash_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a regular file, however large. Never blocks, and raises UsageError, as `read_bounded`."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        try:
            while part := file.read(_CHUNK):
                digest.update(part)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {reason_of(error)}") from error
    return digest.hexdigest()


def read_bounded(
    path: Path, limit: int, check: Callable[[os.stat_result], None] = lambda status: None
) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Never blocks: named pipes, devices and directories are rejected without reading from them. `check` gets the status
    of the opened file, and raises an error if it must not be read.

    Raises UsageError, with the path and the reason.
    """
    with open_regular(path) as file:
        check(os.fstat(file.fileno()))
        try:
            # Not `limit + 1` bytes at once: Python would allocate them.
            data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)
            while len(data) <= limit and (more := file.read(_CHUNK)):
                data += more
        except OSError as error:
            raise UsageError(f"cannot read {path}: {reason_of(error)}") from error
    if len(data) > limit:
        raise UsageError(f"cannot read {path}: it is larger than {limit} bytes")
    return data


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Like `read_bounded`, never blocks and raises UsageError.
    """
    try:
        # O_NONBLOCK: without it, opening a named pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        mode = os.fstat(handle).st_mode
        if stat.S_ISREG(mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
    except FileNotFoundError as error:
        raise UsageError(f"cannot read {path}: {reason_of(error)}", hint=nearest_file(path)) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UsageError(f"cannot read {path}: {reason_of(error)}") from error
    raise UsageError(f"cannot read {path}: it is {_file_kind(mode)}, not a regular file")


def nearest_file(path: Path) -> str:
    """A hint at the file beside `path` whose name is the most similar, of the first `_LISTED`; empty if none is similar."""
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        files = [each.name for each in itertools.islice(entries, _LISTED) if each.is_file()]
        if near := nearest(path.name, files, cutoff=_SIMILAR):
            return f"did you mean {str(path.with_name(near))!r}?"
    return ""


def _file_kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a named pipe" if stat.S_ISFIFO(mode) else "a device"


def write_atomic(path: Path, data: bytes | str, *, scratch: Path | None = None, mode: int = _MODE) -> None:
    """Write `data` to `path` with `atomic_file`.

    Text is encoded as UTF-8; lone surrogates, for example from file names, are escaped: `\\udcff`.
    """
    with atomic_file(path, scratch=scratch, mode=mode) as file:
        file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)


@contextlib.contextmanager
def atomic_file(path: Path, *, scratch: Path | None = None, mode: int = _MODE) -> Iterator[BinaryIO]:
    """A file that appears at `path` once it is complete, or not at all.

    Until then it is a temporary file, beside `path` or in the folder `scratch` on the same file system. The
    writing process holds a lock on it (see `remove_leftovers`). Creates missing folders. `mode` is the mode
    of the file, from which the umask's bits are removed.
    """
    folder = scratch or path.parent
    for each in {folder, path.parent}:
        each.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{path.name[:40]}.{secrets.token_hex(8)}{_UNFINISHED}"
    try:
        with _locked_file(temporary, mode) as file:
            yield file
            file.flush()
            os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # unlike an error of opening, an error of writing lacks the path
        raise


def _locked_file(path: Path, mode: int = _MODE) -> BinaryIO:
    """A new file, locked until it is closed, so that `remove_leftovers` keeps it."""
    while True:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        file = os.fdopen(handle, "wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return file
        file.close()  # another process removed it before it was locked


def remove_empty(path: Path) -> None:
    """Remove the file `path` if nothing was written to it."""
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of writers that were killed, which therefore are not locked."""
    for path in folder.glob(f".*{_UNFINISHED}"):
        with contextlib.suppress(OSError, UsageError), open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


@contextlib.contextmanager
def locked(path: Path, *, removes: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on `path` between processes; the system releases it if the process dies.

    The empty file stays, unless it `removes` the file: for a lock that is seldom needed, beside files of the user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _locked_handle(path)
    try:
        yield
    finally:
        if removes:
            path.unlink(missing_ok=True)
        os.close(handle)  # which unlocks it


def _locked_handle(path: Path) -> int:
    while True:
        # O_NONBLOCK and O_RDWR: a named pipe in its place is opened without waiting for the other end.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:
                return handle
        except BaseException:  # Ctrl-C while it waits, too
            os.close(handle)
            raise
        os.close(handle)  # its holder removed it before it was locked

"""Opens Optuna's storages, and turns the errors of their libraries into one sentence."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatch_profiler.errors import DispatchProfilerError, MissingDependency, StorageError, reason_of
from dispatch_profiler.files.regular import locked, read_bounded, remove_leftovers
from dispatch_profiler.tuner.packages import import_optuna

#: Suffixes of files by their kind.
_SQLITE, _JOURNAL = (".db", ".sqlite", ".sqlite3"), (".log", ".journal")
#: Seconds to wait for a file that another process is writing.
LOCK_SECONDS = 10.0
#: An evaluation takes 20 kB.
_LARGEST_JOURNAL = 2**32
#: The tables of Optuna, in an SQLite file.
_TABLES = ("studies", "version_info")


@dataclass(frozen=True)
class StudyStorage:
    """Optuna's storage. `lock` is held while an attribute is changed, unless a database does that atomically.

    A write to a database waits `lock_seconds` for another program that has locked it.
    """

    storage: Any
    lock: Path | None = None
    lock_seconds: float = LOCK_SECONDS


def open_backend(where: str, lock_seconds: float) -> StudyStorage:
    """The storage in a file or at a URL. See `open_storage`."""
    scheme, separator, rest = where.partition("://")
    if not separator:
        return _of_file(Path(where), lock_seconds)
    if scheme == "journal":
        return _journal(where, Path(rest.removeprefix("/")))
    if scheme == "sqlite":
        return _sqlite(where, Path(rest.removeprefix("/")), lock_seconds)
    _optuna()
    with translated_errors(where):
        return StudyStorage(_rdb(where))


def _of_file(path: Path, lock_seconds: float) -> StudyStorage:
    if path.suffix in _SQLITE:
        return _sqlite(str(path), path, lock_seconds)
    if path.suffix in _JOURNAL:
        return _journal(str(path), path)
    raise StorageError(
        f"{path}: the suffix does not say what kind of storage this is",
        hint="name a file *.db (SQLite) or *.log (journal), or give a URL such as postgresql://host/database",
    )


def _optuna() -> Any:
    return import_optuna("the storage of a search")


# -- SQLite ----------------------------------------------------------------------------------------


def _sqlite(where: str, path: Path, lock_seconds: float) -> StudyStorage:
    """The database in the file `path`; a new one appears complete."""
    _optuna()
    with translated_errors(where):
        if not _is_sqlite_of_optuna(where, path):
            _create_sqlite(path)
        database = _rdb(f"sqlite:///{path}", connect_args={"timeout": lock_seconds})
        return StudyStorage(database, lock_seconds=lock_seconds)


def _is_sqlite_of_optuna(where: str, path: Path) -> bool:
    """Whether `path` has Optuna's tables; False if there is no file. Raises StorageError for other files."""
    if not path.exists():
        return False
    _check_regular(where, path)
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
    if not tables.issuperset(_TABLES):
        raise StorageError(
            f"{where}: an SQLite database of another program", hint="name another file for the search"
        )
    return True


def _check_regular(where: str, path: Path) -> None:
    if path.exists() and not path.is_file():
        raise StorageError(f"{where}: not a regular file", hint="name another file")


def _create_sqlite(path: Path) -> None:
    """Create a database with Optuna's tables beside `path`, and rename it: creating them is not atomic."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return  # another process was faster
        new = path.with_name(f".{path.name}.tmp")
        remove_leftovers(path.parent)
        new.unlink(missing_ok=True)
        created = _rdb(f"sqlite:///{new}")
        created.remove_session()
        created.engine.dispose()
        new.rename(path)


def _rdb(url: str, **engine: Any) -> Any:
    optuna = _optuna()
    return optuna.storages.RDBStorage(url, engine_kwargs=engine or None)


# -- journal -----------------------------------------------------------------------------------------


class _FileLock:
    """The lock of a journal for Optuna, which the system releases if its holder is killed."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f".{path.name}.lock")
        self._handle = -1

    def acquire(self) -> bool:
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self._handle)


def _journal(where: str, path: Path) -> StudyStorage:
    """The journal in the file `path`, without a last line that its writer did not finish."""
    optuna = _optuna()
    journal = optuna.storages.journal
    with translated_errors(where):
        _check_regular(where, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path = Path(os.path.realpath(path))  # all links to a journal have one lock
        lock = _FileLock(path)
        lock.acquire()
        try:
            _drop_unfinished_line(path)
        finally:
            lock.release()
        storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path), lock_obj=lock))
        # Not the file of `lock`, which every change locks.
        return StudyStorage(storage, path.with_name(f".{path.name}.owner.lock"))


def _drop_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    data = read_bounded(path, _LARGEST_JOURNAL)
    end = data.rfind(b"\n") + 1
    if data[:1] not in (b"", b"{") or b"\0" in data[:100]:
        raise ValueError("it does not consist of lines of JSON")
    if end < len(data):
        os.truncate(path, end)


# -- errors ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def translated_errors(where: str, lock_seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Raise StorageError, with one sentence, for errors that Optuna and its libraries raise inside; see `StudyStorage`."""
    try:
        yield
    except DispatchProfilerError:
        raise
    except Exception as error:  # of Optuna, SQLAlchemy, database drivers and sockets
        cause, shown = _root_cause(error), re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", where)
        if isinstance(cause, ModuleNotFoundError):
            raise MissingDependency(
                f"{shown} needs the package {cause.name}", hint=f"python -m pip install {cause.name}"
            ) from error
        raise _storage_error(shown, cause, lock_seconds) from error


def _storage_error(where: str, cause: Exception, lock_seconds: float) -> StorageError:
    message = reason_of(cause).split("\n")[0]
    if "locked" in message:
        return StorageError(
            f"{where}: another program has locked it for more than {lock_seconds:g} s",
            hint="close the program that writes to it, and start the search again: it continues",
        )
    # A journal that is not one raises ValueError, or KeyError for a missing field.
    if isinstance(cause, (ValueError, KeyError)) or "not a database" in message or "malformed" in message:
        return StorageError(
            f"{where}: damaged, or not a storage of Optuna: {message}",
            hint="restore the file, or name another one; nothing was changed",
        )
    if "no longer compatible" in message or "version" in message:
        return StorageError(
            f"{where}: written by another version of Optuna: {message}",
            hint="use that version, or name another storage",
        )
    return StorageError(f"{where}: {message}", hint="check the address, the permissions and the disk")


def _root_cause(error: BaseException) -> Exception:
    """The innermost error: Optuna and SQLAlchemy wrap the database's error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error if isinstance(error, Exception) else Exception(str(error))

"""Storages of searches: an Optuna database or journal with a study for each search and a trial for each evaluation.

    with open_storage("search.db") as storage, storage.study(key) as study:
        study.evaluations
        study.add(evaluation)

`search.db` is an SQLite file, `search.log` a journal; any other storage is a URL such as
`postgresql://host/tuning`. A trial is stored in one transaction: after a crash it is either complete or
absent. Optuna's own tools, such as optuna-dashboard, can read it: its value is the time in milliseconds, and its parameters
are the fields of the configuration (`parameters`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dispatch_profiler.errors import DispatchProfilerError, MissingDependency, StorageError, reason_of
from dispatch_profiler.files.json_fields import FieldError, mapping
from dispatch_profiler.files.regular import locked, read_bounded, remove_empty, remove_leftovers, sha256
from dispatch_profiler.operations import Operation
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation, from_attributes, to_attributes
from dispatch_profiler.tuner.packages import import_optuna
from dispatch_profiler.tuner.storage.owners import Owner, this_process
from dispatch_profiler.tuner.storage.parameters import ParameterSpace, StudyParameters

# -- backends --------------------------------------------------------------------------------------

# Opens Optuna's storages, and turns the errors of their libraries into one sentence.


#: Suffix of a file -> the kind of its storage.
_KINDS = {
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "sqlite"),
    **dict.fromkeys((".log", ".journal"), "journal"),
}
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
    scheme, is_url, rest = where.partition("://")
    path = Path(rest.removeprefix("/") if is_url else where)
    where = where if is_url else str(path)
    kind = scheme if is_url else _KINDS.get(path.suffix)
    if kind == "journal":
        return _journal(where, path)
    if kind == "sqlite":
        return _sqlite(where, path, lock_seconds)
    if not is_url:
        raise StorageError(
            f"{path}: the suffix does not say what kind of storage this is",
            hint="name a file *.db (SQLite) or *.log (journal), or give a URL such as postgresql://host/database",
        )
    _optuna()
    with translated_errors(where):
        return StudyStorage(_rdb(where))


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
    with locked(path.with_name(f".{path.name}.lock"), removes=True):
        if path.exists():
            return  # another process was faster
        new = path.with_name(f".{path.name}.tmp")
        remove_leftovers(path.parent)
        new.unlink(missing_ok=True)
        try:
            created = _rdb(f"sqlite:///{new}")
            created.remove_session()
            created.engine.dispose()
        except BaseException:  # Ctrl-C, too: half a database is of no use
            new.unlink(missing_ok=True)
            raise
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


#: Attributes of a study: its format, and the process that searches.
_FORMAT, _OWNER = "dispatch_profiler", "owner"
_VERSION = 2


@dataclass(frozen=True)
class SearchKey:
    """What determines the evaluations of a search; each is a study of its own.

    `content` has everything besides the operation: target, compiler, machine, space, strategy and seed.
    """

    operation: Operation
    content: Mapping[str, str]

    @property
    def study(self) -> str:
        """The name of the study: the operation's, and a hash of everything."""
        text = json.dumps([self.operation.to_dict(), dict(self.content)], sort_keys=True, default=repr)
        return f"{self.operation.name} {sha256(text.encode())[:16]}"


class Storage(contextlib.AbstractContextManager["Storage"]):
    """An open storage. Use as a context manager."""

    def __init__(self, where: str, backend: StudyStorage, alive_seconds: float) -> None:
        self._where = where
        self._backend = backend
        self._alive_seconds = alive_seconds

    def study(self, key: SearchKey, space: ParameterSpace = ParameterSpace()) -> Study:
        """The study of a search, created if it is new, and reserved for this process until it is closed.

        Its trials have the parameters of `space`.
        Raises StorageError if another process has it, or if it is damaged or of another program.
        """
        import optuna

        with translated_errors(self._where, self._backend.lock_seconds):
            try:
                opened = optuna.load_study(study_name=key.study, storage=self._backend.storage)
            except KeyError:
                opened = _created(optuna, key, self._backend.storage)
        parameters = StudyParameters(self._backend.storage, space)
        return Study(self._where, self._backend, opened, key, parameters, self._alive_seconds)

    def close(self) -> None:
        """Close connections."""
        storage = self._backend.storage
        storage.remove_session()
        engine = getattr(storage, "engine", None)  # a journal has none
        if engine is not None:
            engine.dispose()
        else:
            remove_empty(
                Path(os.path.realpath(self._where))
            )  # Optuna creates the file before there is a study

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_storage(
    where: str | Path, *, lock_seconds: float = LOCK_SECONDS, alive_seconds: float = 30.0
) -> Storage:
    """Open or create a storage: a file `*.db` (SQLite) or `*.log` (journal), or a URL.

    A write waits `lock_seconds` for a program that has locked the SQLite file. A search tells others every
    `alive_seconds` that it is alive. Raises StorageError if the storage is locked, damaged or of another program,
    MissingDependency without Optuna.
    """
    return Storage(str(where), open_backend(str(where), lock_seconds), alive_seconds)


def _created(optuna: Any, key: SearchKey, storage: Any) -> Any:
    before = optuna.logging.get_verbosity()
    # Optuna reports each new study on standard error.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        opened = optuna.create_study(
            study_name=key.study, storage=storage, direction="minimize", load_if_exists=True
        )
    finally:
        optuna.logging.set_verbosity(before)
    opened.set_user_attr(_FORMAT, _VERSION)
    opened.set_user_attr("search", {"operation": key.operation.to_dict(), **key.content})
    return opened


class Study(contextlib.AbstractContextManager["Study"]):
    """The evaluations of one search, in the order in which they were stored. Use as a context manager."""

    def __init__(
        self,
        where: str,
        backend: StudyStorage,
        study: Any,
        key: SearchKey,
        parameters: StudyParameters,
        alive_seconds: float,
    ) -> None:
        self._parameters = parameters
        self._alive_seconds = alive_seconds
        self._where = where
        self._backend = backend
        self._study = study
        self._operation = key.operation
        self._name = key.study
        self._owner = this_process()
        self._next_refresh = 0.0
        with translated_errors(where, backend.lock_seconds):
            self._check_format()
            self._claim()
            self._evaluations = self._read()

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations so far: the first evaluation of each configuration."""
        return tuple(self._evaluations.values())

    def add(self, evaluation: Evaluation) -> None:
        """Store an evaluation. Raises StorageError if that fails, or if another process took the study over."""
        import optuna

        milliseconds = evaluation.milliseconds
        states = optuna.trial.TrialState
        trial = optuna.trial.create_trial(
            state=states.FAIL if milliseconds is None else states.COMPLETE,
            value=milliseconds,
            user_attrs=dict(to_attributes(evaluation)),
            **self._parameters.of_new(evaluation.configuration),
        )
        with translated_errors(self._where, self._backend.lock_seconds):
            self.keep_alive()
            number = self._backend.storage.create_new_trial(self._study._study_id, trial)
            self._parameters.wrote(number, evaluation.configuration)
        self._evaluations.setdefault(evaluation.configuration, evaluation)

    def keep_alive(self) -> None:
        """`refresh`, if the last time is some seconds ago."""
        if time.monotonic() >= self._next_refresh:
            self.refresh()

    def refresh(self) -> None:
        """Tell other machines that this process is alive. Raises StorageError if one took the study over."""

        def still_ours(stored: Any) -> dict[str, Any]:
            owner = _owner(stored)
            if owner is None or owner.token != self._owner.token:
                raise StorageError(
                    f"{self._where}: another search took over {self._name}"
                    + (f" ({owner.text})" if owner else ""),
                    hint="the evaluations of this search are stored; wait for the other search, or use another storage",
                )
            return asdict(self._owner)

        self._sign(still_ours)
        self._flush()

    def _flush(self) -> None:
        with translated_errors(self._where, self._backend.lock_seconds):
            self._parameters.flush()

    def close(self) -> None:
        """Write what is left, and release the study for other processes."""
        self._flush()

        def released(stored: Any) -> Any:
            owner = _owner(stored)
            return None if owner is not None and owner.token == self._owner.token else stored

        self._exchange(released)

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- opening ------------------------------------------------------------------------------

    def _check_format(self) -> None:
        stored = self._study.user_attrs.get(_FORMAT)
        if stored is None and not self._study.get_trials(deepcopy=False):
            # The process that created the study was killed before it could write the format.
            self._study.set_user_attr(_FORMAT, _VERSION)
        elif stored != _VERSION:
            raise StorageError(
                f"{self._where}: the study {self._name} was not written by this version of dispatch_profiler",
                hint="use another storage",
            )

    def _claim(self) -> None:
        """Reserve the study for this process. Raises StorageError if another one that may be alive has it."""

        def claimed(stored: Any) -> dict[str, Any]:
            owner = _owner(stored)
            if owner is not None and owner.may_be_alive:
                raise StorageError(
                    f"{self._where}: {owner.text} is searching {self._operation.name} with the same options",
                    hint=owner.remedy,
                )
            return asdict(self._owner)

        self._sign(claimed)

    def _sign(self, change: Change) -> None:
        self._owner = self._owner.now()
        self._exchange(change)
        self._next_refresh = time.monotonic() + self._alive_seconds

    def _exchange(self, change: Change) -> None:
        with translated_errors(self._where, self._backend.lock_seconds):
            exchange(self._backend, self._study._study_id, _OWNER, change)

    def _read(self) -> dict[Any, Evaluation]:
        evaluations: dict[Any, Evaluation] = {}
        for trial in self._study.get_trials(deepcopy=False):
            try:
                evaluation = from_attributes(self._operation, mapping(trial.user_attrs))
            except FieldError as error:
                raise StorageError(
                    f"{self._where}: trial {trial.number} of {self._name} is not an evaluation ({error})",
                    hint="use another storage; this one keeps its other evaluations",
                ) from error
            evaluations.setdefault(evaluation.configuration, evaluation)
            self._parameters.learn(trial, evaluation.configuration)
        return evaluations


def _owner(stored: Any) -> Owner | None:
    return None if stored is None else Owner.parse(stored)


# -- exchange --------------------------------------------------------------------------------------

# Changes of an attribute of a study that no other process can interrupt. Optuna itself only overwrites attributes.


#: The current value, None if the attribute is missing -> the new value. If it raises, nothing is changed.
Change = Callable[[Any], Any]


def exchange(backend: StudyStorage, study: int, key: str, change: Change) -> None:
    """Replace the attribute `key` of a study by `change` of its value, atomically between threads, processes and machines.

    `change` is called again if another process was faster.
    """
    if backend.lock is not None:
        with locked(backend.lock):
            old = backend.storage.get_study_user_attrs(study).get(key)
            new = change(old)
            if new != old:
                backend.storage.set_study_user_attr(study, key, new)
        return
    while not _exchanged(backend.storage.engine, study, key, change):
        pass


def _exchanged(engine: Any, study: int, key: str, change: Change) -> bool:
    """Compare and swap: write only if the row still has the value that `change` was given. Returns whether it did."""
    import sqlalchemy
    from optuna.storages._rdb.models import StudyUserAttributeModel as Row

    is_row = (Row.study_id == study, Row.key == key)
    with engine.connect() as connection:
        old = connection.execute(sqlalchemy.select(Row.value_json).where(*is_row)).scalar_one_or_none()
    value = None if old is None else json.loads(old)
    new = change(value)
    if new == value:
        return True
    text = json.dumps(new)
    if old is None:
        with contextlib.suppress(sqlalchemy.exc.IntegrityError), engine.begin() as connection:
            connection.execute(sqlalchemy.insert(Row).values(study_id=study, key=key, value_json=text))
            return True
        return False  # another process has inserted the row
    with engine.begin() as connection:
        changed = sqlalchemy.update(Row).where(*is_row, Row.value_json == old).values(value_json=text)
        return bool(connection.execute(changed).rowcount == 1)

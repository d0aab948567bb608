"""Storages of searches: an Optuna database or journal with a study for each search and a trial for each evaluation.

    with open_storage("search.db") as storage, storage.study(key) as study:
        study.evaluations
        study.add(evaluation)

`search.db` is an SQLite file, `search.log` a journal; any other storage is a URL such as
`postgresql://host/tuning`. A trial is stored in one transaction: after a crash it is either complete or
absent. Optuna's own tools, such as optuna-dashboard, can read it; its value is the time in milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

from dispatch_profiler.errors import StorageError
from dispatch_profiler.files.json_fields import FieldError, mapping, text, whole
from dispatch_profiler.files.regular import locked, sha256
from dispatch_profiler.operations import Operation
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation, from_attributes, to_attributes
from dispatch_profiler.tuner.storage.backends import (
    LOCK_SECONDS,
    StudyStorage,
    open_backend,
    translated_errors,
)

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


class Storage:
    """An open storage. Use as a context manager."""

    def __init__(self, where: str, backend: StudyStorage, alive_seconds: float) -> None:
        self._where = where
        self._backend = backend
        self._alive_seconds = alive_seconds

    def study(self, key: SearchKey) -> Study:
        """The study of a search, created if it is new, and reserved for this process until it is closed.

        Raises StorageError if another process has it, or if it is damaged or of another program.
        """
        import optuna

        with translated_errors(self._where, self._backend.lock_seconds):
            try:
                opened = optuna.load_study(study_name=key.study, storage=self._backend.storage)
            except KeyError:
                opened = _created(optuna, key, self._backend.storage)
        return Study(self._where, self._backend, opened, key, self._alive_seconds)

    def close(self) -> None:
        """Close connections."""
        storage = self._backend.storage
        storage.remove_session()
        engine = getattr(storage, "engine", None)  # a journal has none
        if engine is not None:
            engine.dispose()

    def __enter__(self) -> Storage:
        return self

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


class Study:
    """The evaluations of one search, in the order in which they were stored. Use as a context manager."""

    def __init__(
        self, where: str, backend: StudyStorage, study: Any, key: SearchKey, alive_seconds: float
    ) -> None:
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
        )
        with translated_errors(self._where, self._backend.lock_seconds):
            self.keep_alive()
            self._study.add_trial(trial)
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

    def close(self) -> None:
        """Release the study for other processes."""

        def released(stored: Any) -> Any:
            owner = _owner(stored)
            return None if owner is not None and owner.token == self._owner.token else stored

        self._exchange(released)

    def __enter__(self) -> Study:
        return self

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


# -- ownership -------------------------------------------------------------------------------------

# Which process a search belongs to, and whether the process may still be alive.


#: A process of another machine that showed no sign of life for this long counts as dead. Each evaluation is
#: one; compiling a round, with time limits, takes minutes.
_LEASE = timedelta(minutes=30)


@dataclass(frozen=True)
class Owner:
    """A process: its machine, its number, and when the system started it, because numbers are used again.

    `token` tells searches of one process apart. `seen` is its last sign of life, in ISO 8601.
    """

    host: str
    process: int
    started: str
    token: str
    seen: str = ""

    @classmethod
    def parse(cls, value: object) -> Owner:
        """Read the fields of an owner. Raises StorageError."""
        try:
            row = mapping(value, "owner")
            names = ("host", "started", "token", "seen")
            return cls(process=whole(row, "process"), **{name: text(row, name) for name in names})
        except FieldError as error:
            raise StorageError(
                f"the owner of a search is damaged ({error})", hint="use another storage"
            ) from error

    def now(self) -> Owner:
        """With a sign of life."""
        return replace(self, seen=datetime.now(timezone.utc).isoformat(timespec="seconds"))

    @property
    def text(self) -> str:
        """`process 1234 on node7`"""
        return f"process {self.process} on {self.host}"

    @property
    def may_be_alive(self) -> bool:
        """Whether it may still search: known on its own machine, assumed for a while on others."""
        if self.host == _host():
            return _start_of(self.process) == self.started
        return datetime.now(timezone.utc) < self._lease_end()

    @property
    def remedy(self) -> str:
        """What to do while it may be alive."""
        if self.host == _host():
            return "wait for it, end it, or use another storage"
        return (
            "wait for it, or use another storage; if that machine has failed, "
            f"the search continues here after {self._lease_end():%Y-%m-%d %H:%M} UTC"
        )

    def _lease_end(self) -> datetime:
        try:
            seen = datetime.fromisoformat(self.seen)
        except ValueError:
            return datetime.now(timezone.utc)
        return (seen if seen.tzinfo else seen.replace(tzinfo=timezone.utc)) + _LEASE


def this_process() -> Owner:
    """A new owner for this process."""
    return Owner(_host(), os.getpid(), _start_of(os.getpid()), secrets.token_hex(8))


@cache
def _host() -> str:
    return platform.node()


def _start_of(process: int) -> str:
    """When the system started a process, in its clock's ticks since it booted; empty if it is not running."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The command before the last parenthesis may contain anything; the start is the 22nd field in all.
    state, *fields = status.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]

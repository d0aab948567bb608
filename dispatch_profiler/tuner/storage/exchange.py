"""Changes of an attribute of a study that no other process can interrupt. Optuna itself only overwrites attributes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from dispatch_profiler.files.regular import locked
from dispatch_profiler.tuner.storage.backends import StudyStorage

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

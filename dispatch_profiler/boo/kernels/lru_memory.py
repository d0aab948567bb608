"""A cache of the process: keeps the most recently used values, and makes each only once for all threads."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memory(Generic[Key, Value]):
    """Key -> value for at most `limit` values. Drops the least recently used value first. Lives as long as the process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._reset_locks()
        # A thread that does not exist in a forked process may hold a lock.
        os.register_at_fork(after_in_child=self._reset_locks)

    def _reset_locks(self) -> None:
        self._lock = threading.Lock()
        self._making: dict[Key, threading.Lock] = {}

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of `key`, from `make` if it is missing. An error of `make` is raised, and nothing is kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._values:
                    return self._values[key]
            try:
                value = make()
                with self._lock:
                    self._values[key] = value
                    self._drop_oldest()
                return value
            finally:
                with self._lock:
                    self._making.pop(key, None)

    def find(self, key: Key) -> Value | None:
        """The value of `key`; None if it is missing."""
        with self._lock:
            return self._values.get(key)

    def values(self) -> list[Value]:
        """All values, the most recently used one last."""
        with self._lock:
            return list(self._values.values())

    def put(self, key: Key, value: Value) -> None:
        """Replace the value of `key`, as the most recently used one."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            self._drop_oldest()

    def drop(self, is_dropped: Callable[[Key], bool]) -> None:
        """Drop the values whose keys fulfil a condition."""
        with self._lock:
            for key in [each for each in self._values if is_dropped(each)]:
                del self._values[key]

    def _drop_oldest(self) -> None:
        while len(self._values) > self._limit:
            self._values.popitem(last=False)

    def clear(self) -> None:
        """Drop every value."""
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)

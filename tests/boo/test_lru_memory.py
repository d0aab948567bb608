"""A value is made once, however many threads want it, and the least recently used is dropped."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from dispatch_profiler.boo.kernels import Memory

THREADS = 8


def test_threads_that_want_the_same_value_at_once_make_it_once():
    memory: Memory[str, object] = Memory(4)
    barrier, made = threading.Barrier(THREADS), []

    def make() -> object:
        made.append(object())
        return made[-1]

    def get(_: int) -> object:
        barrier.wait()
        return memory.get("key", make)

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(get, range(THREADS)))

    assert len(made) == 1
    assert set(map(id, found)) == {id(made[0])}


def test_making_one_value_does_not_keep_others_waiting():
    memory: Memory[str, str] = Memory(4)
    started, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        go_on.wait()
        return "slow"

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(memory.get, "slow", slow)
        started.wait()
        assert memory.get("fast", lambda: "fast") == "fast"
        go_on.set()
        assert waiting.result() == "slow"


def test_the_least_recently_used_value_is_dropped():
    memory: Memory[int, int] = Memory(2)
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return key

    for key in (1, 2, 1, 3, 1, 3, 2):
        assert memory.get(key, partial(make, key)) == key
    assert (made, len(memory)) == ([1, 2, 3, 2], 2)


def test_a_failure_is_raised_and_not_kept():
    memory: Memory[str, int] = Memory(2)

    def fail() -> int:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            memory.get("key", fail)
    assert memory.get("key", lambda: 1) == 1


def test_a_process_forked_while_a_value_is_made_can_make_it():
    """The thread that makes it does not exist there, so it must not be waited for."""
    memory: Memory[str, int] = Memory(2)

    def fork() -> int:
        if (child := os.fork()) == 0:
            os._exit(memory.get("key", lambda: 3))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert memory.get("key", fork) == 3

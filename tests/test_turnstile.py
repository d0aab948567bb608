"""Tests marked `alone` run while no other test does."""

from __future__ import annotations

import fcntl
import random
import threading
from pathlib import Path

import pytest
from turnstile import turn


def is_free(path: Path, kind: int) -> bool:
    """Could another process take this lock now?"""
    with path.open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_test_that_is_alone_keeps_every_other_out(tmp_path: Path):
    with turn(tmp_path, alone=True):
        assert not is_free(tmp_path / "turnstile.lock", fcntl.LOCK_SH)
        assert not is_free(tmp_path / "running.lock", fcntl.LOCK_SH)


def test_other_tests_run_side_by_side_and_keep_one_that_is_alone_out(tmp_path: Path):
    with turn(tmp_path, alone=False), turn(tmp_path, alone=False):
        assert is_free(tmp_path / "turnstile.lock", fcntl.LOCK_SH)
        assert not is_free(tmp_path / "running.lock", fcntl.LOCK_EX)


@pytest.mark.parametrize("alone", [True, False])
def test_a_test_that_fails_gives_its_turn_back(tmp_path: Path, alone: bool):
    with pytest.raises(RuntimeError), turn(tmp_path, alone=alone):
        raise RuntimeError

    assert is_free(tmp_path / "turnstile.lock", fcntl.LOCK_EX)
    assert is_free(tmp_path / "running.lock", fcntl.LOCK_EX)


def test_no_test_starts_before_one_that_waits_to_be_alone(tmp_path: Path):
    ran = threading.Event()

    def be_alone() -> None:
        with turn(tmp_path, alone=True):
            ran.set()

    with turn(tmp_path, alone=False):
        waits = threading.Thread(target=be_alone)
        waits.start()
        while is_free(tmp_path / "turnstile.lock", fcntl.LOCK_SH):
            assert not ran.is_set()
        assert not ran.is_set()
    waits.join()

    assert ran.is_set()


def test_many_turns_of_both_kinds(tmp_path: Path):
    """Locks of two open files exclude each other in one process as in two."""
    inside: set[int] = set()
    wrong: list[str] = []
    together = threading.Barrier(2, timeout=60)

    def take_turns(number: int) -> None:
        for alone in random.Random(number).choices([True, False], k=50):
            with turn(tmp_path, alone=alone):
                inside.add(number)
                if alone and inside != {number}:
                    wrong.append(f"{number} is not alone: {inside}")
                inside.discard(number)
        together.wait()  # none wants to be alone any more
        with turn(tmp_path, alone=False):
            together.wait()  # neither leaves before the other is in

    threads = [threading.Thread(target=take_turns, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert not together.broken


def test_tests_that_run_alone_are_the_first(request: pytest.FixtureRequest):
    """Otherwise they would wait for long ones."""
    alone = [item.get_closest_marker("alone") is not None for item in request.session.items]
    assert alone == sorted(alone, reverse=True)

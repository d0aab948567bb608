"""A storage keeps every evaluation; what it cannot read or write, it says in one sentence and leaves as it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import optuna
import pytest
from search_samples import OPERATION, TILES, change_owner, evaluation, failure

from dispatch_profiler.configurations import Default
from dispatch_profiler.errors import MissingDependency, StorageError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.tuner.storage import storage
from dispatch_profiler.tuner.storage.storage import (
    Change,
    SearchKey,
    exchange,
    open_backend,
    open_storage,
    this_process,
)

KEY = SearchKey(OPERATION, {"target": "null", "seed": "0"})
EVERY = (
    evaluation(Default(), 1.0, "abc"),
    failure(TILES[0], Verdict.FAILED, "3 of 64 elements differ"),
    evaluation(TILES[1], 0.25),
)
FILES = ("search.db", "search.log", "sqlite:///search.db", "journal:///search.log")


def store(where: str | Path, *evaluations: object, key: SearchKey = KEY) -> None:
    with open_storage(where) as opened, opened.study(key) as study:
        for each in evaluations:
            study.add(each)


def stored_in(where: str | Path, key: SearchKey = KEY) -> tuple[object, ...]:
    with open_storage(where) as opened, opened.study(key) as study:
        return study.evaluations


@pytest.mark.some(2)
@pytest.mark.parametrize("where", FILES)
def test_evaluations_come_back_in_order(where):
    """As they were, failures too, from an SQLite file, a journal and their URLs; others are of other searches."""
    store(where, *EVERY[:2])
    store(where, EVERY[2])
    store(where, evaluation(), key=replace(KEY, content={"target": "null", "seed": "1"}))

    assert stored_in(where) == EVERY
    assert [each.milliseconds for each in EVERY] == [1.0, None, 0.25]
    assert EVERY[1].reason == "FAILED: 3 of 64 elements differ"
    assert len(stored_in(where, replace(KEY, content={"target": "null", "seed": "1"}))) == 1
    assert stored_in(where, replace(KEY, operation=Matmul(1, 1, 1))) == ()


@pytest.mark.slow
def test_of_two_evaluations_of_a_configuration_the_first_counts():
    """Two machines may have measured it at the same time."""
    store("search.db", EVERY[0], evaluation(Default(), 9.0))
    assert stored_in("search.db") == EVERY[:1]


@pytest.mark.slow
def test_other_programs_can_read_it():
    """Optuna's own functions find the time of each trial, and its failures."""
    store("search.db", *EVERY)
    (summary,) = optuna.get_all_study_summaries("sqlite:///search.db")
    study = optuna.load_study(study_name=summary.study_name, storage="sqlite:///search.db")
    assert summary.study_name.startswith(f"{OPERATION.name} ")
    assert study.best_value == 0.25
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_nothing_of_the_host_changes(capfd):
    """Optuna is neither silenced nor heard."""
    before = optuna.logging.get_verbosity()
    store("search.db", *EVERY)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


# -- two searches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", FILES[:2])
def test_a_second_search_is_told_who_searches(where):
    with open_storage(where) as one, one.study(KEY), open_storage(where) as other:
        with pytest.raises(
            StorageError, match=rf"process {os.getpid()} on .* is searching {OPERATION.name}"
        ) as raised:
            other.study(KEY)
        assert raised.value.hint == "wait for it, end it, or use another storage"
        other.study(replace(KEY, operation=Matmul(1, 1, 1))).close()
    store(where, *EVERY)
    assert stored_in(where) == EVERY


@pytest.mark.parametrize("where", FILES[:2])
def test_another_search_between_reading_the_owner_and_writing_it(where, monkeypatch):
    """One of the two gets the study, and the other is told so, whichever is faster."""
    store(where)
    got: list[str] = []

    def claim(name: str) -> None:
        with open_storage(where) as opened:
            try:
                opened.study(KEY)
                got.append(name)
            except StorageError as error:
                assert "is searching" in str(error)

    other = threading.Thread(target=claim, args=("other",))

    def interrupted(backend: object, study: int, name: str, change: Change) -> None:
        def changed(stored: object) -> object:
            if threading.current_thread() is not other and not other.ident:
                other.start()
                other.join(timeout=1.0)  # with a journal, it waits for this thread
            return change(stored)

        exchange(backend, study, name, changed)

    monkeypatch.setattr(storage, "exchange", interrupted)
    claim("this")
    other.join()
    assert len(got) == 1


@pytest.mark.parametrize("where", FILES[:2])
def test_of_searches_that_start_together_one_gets_the_study(where):
    keys = [replace(KEY, content={"seed": str(at)}) for at in range(8)]
    with open_storage(where) as opened:
        for key in keys[:4]:  # the owner of the others has never been written
            opened.study(key).close()
    start, winners = threading.Barrier(3), []

    def search() -> None:
        with open_storage(where) as opened:
            for key in keys:
                start.wait()
                with contextlib.suppress(StorageError):
                    opened.study(key)
                    winners.append(key)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(winners, key=keys.index) == keys


@pytest.mark.parametrize("name", ["search.db", "search.log"])
def test_a_storage_under_two_names_is_one(name):
    store(name)
    link = Path("link").with_suffix(Path(name).suffix)
    link.symlink_to(name)
    assert open_backend(name, 1.0).lock == open_backend(str(link), 1.0).lock
    with (
        open_storage(name) as one,
        open_storage(link) as other,
        one.study(KEY),
        pytest.raises(StorageError, match="is searching"),
    ):
        other.study(KEY)


@pytest.mark.parametrize("where", FILES[:2])
def test_a_search_that_was_replaced_does_not_release_the_study(where):
    """Closing it leaves the owner as it is."""
    with open_storage(where) as opened:
        with opened.study(KEY):
            taken = change_owner(where, token="another")
        assert change_owner(where) == taken


DIES = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from test_storage import EVERY, KEY
from dispatch_profiler.tuner.storage.storage import open_storage
study = open_storage(sys.argv[1]).study(KEY)
for each in EVERY[:2]:
    study.add(each)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", FILES[:2])
def test_a_killed_search_keeps_what_it_stored_and_gives_way(where):
    """Its process is known to be dead, although it could not say so."""
    died = subprocess.run(
        [sys.executable, "-c", DIES, where, *map(str, Path(__file__).parents[:2])], check=False
    )
    assert died.returncode == -signal.SIGKILL
    assert stored_in(where) == EVERY[:2]
    store(where, EVERY[2])
    assert stored_in(where) == EVERY


def test_a_search_of_another_machine_gives_way_after_half_an_hour():
    """Until then the message says when; afterwards its process notices, and stores nothing more."""
    with open_storage("search.db") as opened, opened.study(KEY) as study:
        study.add(EVERY[0])
        change_owner("search.db", host="node7")
        with open_storage("search.db") as other:
            with pytest.raises(StorageError, match=r"process \d+ on node7 is searching") as raised:
                other.study(KEY)
            assert "if that machine has failed, the search continues here after 20" in raised.value.hint

            seen = datetime.now(timezone.utc) - timedelta(minutes=31)
            change_owner("search.db", seen=seen.isoformat(timespec="seconds"))
            with other.study(KEY) as taken:
                assert taken.evaluations == EVERY[:1]
                with pytest.raises(StorageError, match="another search took over"):
                    study.refresh()


def test_the_number_of_a_process_may_be_used_again():
    ours = this_process()
    assert ours.may_be_alive
    assert not replace(ours, started="1").may_be_alive
    assert not replace(ours, process=2**22 + 1).may_be_alive


# -- what is not a storage ---------------------------------------------------------------------------


def other_program(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table tunes (name text)")
    database.close()


def damaged(path: Path) -> None:
    store(path, *EVERY)
    data = bytearray(path.read_bytes())
    data[100:4096] = bytes(3996)
    path.write_bytes(data)


def other_optuna(path: Path) -> None:
    store(path, *EVERY)
    with sqlite3.connect(path) as database:
        database.execute("update alembic_version set version_num = 'v99'")
        database.execute("update version_info set schema_version = 99")
    database.close()


def damaged_record(path: Path) -> None:
    store(path, *EVERY)
    with sqlite3.connect(path) as database:
        database.execute("update trial_user_attributes set value_json = '\"{}\"' where key = 'record'")
    database.close()


def other_study(path: Path) -> None:
    store(path, *EVERY)
    with sqlite3.connect(path) as database:
        database.execute("delete from study_user_attributes where key = 'dispatch_profiler'")
    database.close()


BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a text": ("a.db", lambda path: path.write_text("hello " * 1000), "damaged, or not a storage of Optuna"),
    "another database": ("a.db", other_program, "an SQLite database of another program"),
    "a damaged database": ("a.db", damaged, "damaged, or not a storage of Optuna"),
    "another version of Optuna": ("a.db", other_optuna, "written by another version of Optuna"),
    "a record that is none": ("a.db", damaged_record, "trial 0 of .* is not an evaluation"),
    "a study of others": ("a.db", other_study, "was not written by this version of dispatch_profiler"),
    "a folder": ("a.db", lambda path: path.mkdir(), "not a regular file"),
    "a text as journal": (
        "a.log",
        lambda path: path.write_text("hello\n"),
        "damaged, or not a storage of Optuna",
    ),
    "a damaged journal": (
        "a.log",
        lambda path: path.write_text('{"op_code":0,"worker_id":"x","study\n{}\n'),
        "damaged, or not a storage of Optuna",
    ),
    "a folder as journal": ("a.log", lambda path: path.mkdir(), "not a regular file"),
    "an unknown suffix": ("a.txt", lambda path: None, "the suffix does not say what kind of storage this is"),
}


@pytest.mark.parametrize(("name", "make", "message"), BAD.values(), ids=BAD)
def test_what_is_not_a_storage_is_named_and_left_alone(name, make, message):
    path = Path(name).absolute()
    make(path)
    before = sha256(path.read_bytes()) if path.is_file() else ""

    with pytest.raises((StorageError, Exception), match=message) as raised:
        store(path, *EVERY)

    assert type(raised.value).__module__ == "dispatch_profiler.errors"
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.hint
    if before and make not in (damaged_record,):
        assert sha256(path.read_bytes()) == before


def test_a_locked_database_is_named(monkeypatch):
    """After a time limit; the search can be started again."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # Optuna waits seconds between its attempts
    with open_storage("search.db", lock_seconds=0.01) as opened, opened.study(KEY) as study:
        study.add(EVERY[0])
        holder = sqlite3.connect("search.db", isolation_level=None)
        holder.execute("begin exclusive")
        with pytest.raises(
            StorageError, match=r"search.db: another program has locked it for more than 0\.01 s"
        ):
            study.add(EVERY[1])
        holder.execute("rollback")
        holder.close()
        study.add(EVERY[2])
    assert stored_in("search.db") == (EVERY[0], EVERY[2])


def test_an_unfinished_line_of_a_journal_is_dropped():
    """Its writer was killed; everything before it is kept, and what follows is readable."""
    store("search.log", *EVERY[:2])
    with Path("search.log").open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"1","stu')
    store("search.log", EVERY[2])
    assert stored_in("search.log") == EVERY


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingDependency, match="requires Optuna") as raised:
        open_storage("search.db")
    assert raised.value.hint == "python -m pip install 'optuna>=4.0,<5'"


def test_a_missing_driver_of_a_database_is_named_without_the_password(monkeypatch):
    for driver in ("psycopg", "psycopg2"):  # SQLAlchemy's choice depends on its version
        monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(
        MissingDependency, match=r"^postgresql://me:\*\*\*@host/tuning needs the package psycopg\d?$"
    ):
        open_storage("postgresql://me:secret@host/tuning")


# -- PostgreSQL --------------------------------------------------------------------------------------


@pytest.fixture
def postgresql() -> Iterator[str]:
    """The URL of a database of a server of its own, where PostgreSQL and its driver are installed."""
    pytest.importorskip("psycopg")
    tools = shutil.which("initdb")
    if tools is None:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tools).resolve().parent
    # The server refuses to run as root.
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    def run(tool: str, *arguments: str) -> None:
        subprocess.run(
            [*user, str(folder / tool), *arguments], check=True, stdout=subprocess.DEVNULL, cwd="/"
        )

    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        if user:
            shutil.chown(place, "postgres")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        data, options = f"{place}/data", f"-p {port} -k {place} -c listen_addresses=127.0.0.1"
        run("initdb", "-D", data, "-A", "trust", "-U", "tuner")
        run("pg_ctl", "-D", data, "-o", options, "-l", f"{place}/log", "-w", "start")
        try:
            yield f"postgresql://tuner@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "fast", "stop")


@pytest.mark.slow
def test_evaluations_are_kept_in_postgresql(postgresql):
    """Also after a kill; two searches exclude each other; a server that does not answer is named."""
    died = subprocess.run(
        [sys.executable, "-c", DIES, postgresql, *map(str, Path(__file__).parents[:2])], check=False
    )
    assert died.returncode == -signal.SIGKILL
    store(postgresql, EVERY[2])
    assert stored_in(postgresql) == EVERY
    with (
        open_storage(postgresql) as one,
        one.study(KEY),
        open_storage(postgresql) as other,
        pytest.raises(StorageError, match="is searching"),
    ):
        other.study(KEY)
    with pytest.raises(StorageError, match="Connection refused"):
        open_storage("postgresql://tuner:secret@127.0.0.1:1/postgres")

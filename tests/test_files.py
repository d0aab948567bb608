"""Files are whole or not there, and a lock keeps processes apart."""

from __future__ import annotations

import fcntl
import hashlib
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import (
    atomic_file,
    hash_file,
    locked,
    read_bounded,
    remove_leftovers,
    sha256,
    write_atomic,
)

ROOT = Path(__file__).parents[1]


def test_sha256_is_that_of_the_bytes():
    """As any other tool computes it."""
    assert sha256(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert sha256(b"").startswith("e3b0c44298fc1c149afbf4c8996fb924")


def test_an_error_of_a_write_names_the_file(tmp_path):
    """As on a full disk; the file stays as it was."""
    path = tmp_path / "folder" / "kept"
    write_atomic(path, "before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            write_atomic(path, b"x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path)
    assert [each.read_text() for each in path.parent.iterdir()] == ["before"]


@pytest.mark.parametrize("data", ["tile → wave", b"\x00\xff"], ids=["text", "bytes"])
def test_a_file_is_written_with_its_folders(tmp_path, data):
    """Text as UTF-8, bytes as they are."""
    path = tmp_path / "a" / "b" / "c.txt"
    write_atomic(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)


def test_text_that_utf_8_cannot_hold_is_escaped(tmp_path):
    """A byte of a file name that is no text."""
    write_atomic(tmp_path / "x", os.fsdecode(b"a\xff"))
    assert (tmp_path / "x").read_text() == r"a\udcff"


def test_a_file_is_replaced(tmp_path):
    """Nothing of what was there stays, and nothing lies beside it."""
    path = tmp_path / "folder" / "x"
    write_atomic(path, "a long text")
    write_atomic(path, "short")
    assert path.read_text() == "short"
    assert os.listdir(path.parent) == ["x"]


@pytest.mark.parametrize("broken", ["fdopen", "replace"])
def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path, monkeypatch, broken):
    """Whichever step fails, the old content stays and no temporary file is left."""
    folder = tmp_path / "folder"
    write_atomic(folder / "x", "old")
    monkeypatch.setattr(os, broken, lambda *_, **__: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        write_atomic(folder / "x", "new")
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [("x", "old")]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    """Ctrl-C too."""
    folder = tmp_path / "folder"
    write_atomic(folder / "x", "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomic(folder / "x", "new")
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [("x", "old")]


def test_a_folder_in_the_way_is_an_error(tmp_path):
    """It is not replaced, and nothing is left beside it."""
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "folder" / "x", "new")
    assert os.listdir(tmp_path / "folder") == ["x"]


def test_whoever_shares_the_tree_can_read_it(tmp_path):
    """The mode is what the umask leaves, not that of a temporary file; the umask stays as it is."""
    before = os.umask(0o027)
    write_atomic(tmp_path / "x", "")
    assert os.umask(before) == 0o027
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_long_name_fits(tmp_path):
    """The temporary name is shorter than the limit of the file system for the name itself."""
    path = tmp_path / ("x" * 250)
    write_atomic(path, "text")
    assert path.read_text() == "text"


# -- reading ---------------------------------------------------------------------------------------


def test_a_file_is_read_up_to_its_limit(tmp_path):
    """The limit itself is allowed, one byte more is not."""
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(UsageError, match=f"cannot read {path}: it is larger than 4 bytes"):
        read_bounded(path, 4)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "it is a directory, not a regular file"),
        (lambda path: os.mkfifo(path), "it is a named pipe, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: None, "No such file or directory"),
    ],
    ids=["directory", "FIFO", "device", "loop", "missing"],
)
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_rejected_without_waiting(tmp_path, make, reason):
    """The pipe has no writer: opening it as an ordinary file would wait forever."""
    path = tmp_path / "x"
    make(path)
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UsageError) as caught:
        read_bounded(path, 5)
    assert str(caught.value) == f"cannot read {path}: {reason}"
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_file_is_hashed_in_parts(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 2**13)  # two parts of 1 MiB
    assert hash_file(path) == sha256(path.read_bytes())


@pytest.mark.timeout(20)
def test_a_pipe_is_not_hashed(tmp_path):
    os.mkfifo(tmp_path / "x")
    with pytest.raises(UsageError, match="it is a named pipe, not a regular file"):
        hash_file(tmp_path / "x")


def test_a_path_that_no_file_can_have_is_rejected():
    with pytest.raises(UsageError, match="cannot read a\0b: embedded null byte"):
        read_bounded(Path("a\0b"), 5)


# -- locks -----------------------------------------------------------------------------------------


def other_process(path: Path, then: str = "") -> subprocess.Popen[str]:
    """A process that locks `path`, prints `held`, and goes on with `then`."""
    program = (
        "import os, sys, pathlib; from dispatch_profiler.files.regular import locked\n"
        f"with locked(pathlib.Path({str(path)!r})): print('held', flush=True); {then or 'pass'}"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def is_held(path: Path) -> bool:
    """Does another open file hold the lock on `path`?"""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_lock_is_held_inside_and_free_outside(tmp_path):
    """The folder is made if it is missing."""
    path = tmp_path / "new" / "lock"
    with locked(path):
        assert is_held(path)
    assert not is_held(path)


def test_a_lock_is_free_after_an_error(tmp_path):
    """What fails inside does not keep others out."""
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        raise ZeroDivisionError
    assert not is_held(tmp_path / "lock")


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_lock_is_one(tmp_path):
    """No writer and no reader is waited for, and it locks as a file does."""
    os.mkfifo(tmp_path / "lock")
    with locked(tmp_path / "lock"):
        handle = os.open(tmp_path / "lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


def test_a_lock_waits_for_another_process(tmp_path):
    """The other one comes in when we go out, and not before."""
    path, done = tmp_path / "lock", tmp_path / "done"
    with locked(path):
        other = other_process(path, f"print(os.path.exists({str(done)!r}))")
        done.touch()
    with other:
        assert other.stdout.read() == "held\nTrue\n"


def test_a_process_that_dies_holds_no_lock(tmp_path):
    """The system lets go, however it died."""
    with other_process(tmp_path / "lock", "sys.stdin.read()") as other:
        assert other.stdout.readline() == "held\n"
        assert is_held(tmp_path / "lock")
        other.kill()
    assert not is_held(tmp_path / "lock")


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_stays(tmp_path):
    killed = (
        "import os, sys; from pathlib import Path; from dispatch_profiler.files.regular import write_atomic\n"
    )
    killed += "os.replace = lambda *_: os._exit(9); write_atomic(Path(sys.argv[1]), 'half')"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "x")], cwd=ROOT, check=False)
    (left,) = (path.name for path in tmp_path.glob(".*"))
    with atomic_file(tmp_path / "busy") as busy:
        busy.write(b"whole")
        remove_leftovers(tmp_path)
        assert left.endswith(".tmp")
        assert len(list(tmp_path.glob(".busy.*.tmp"))) == len(list(tmp_path.glob(".*"))) == 1

    assert (tmp_path / "busy").read_bytes() == b"whole"
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.timeout(20)
def test_a_pipe_among_unfinished_files_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / ".x.tmp")
    remove_leftovers(tmp_path)
    assert (tmp_path / ".x.tmp").is_fifo()


def test_a_file_that_was_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    """The one moment at which a writer's file looks like one that was left."""
    lock, calls = fcntl.flock, []

    def removed_once(file, mode):
        if not calls:
            os.unlink(next(tmp_path.glob(".x.*.tmp")))
        calls.append(mode)
        return lock(file, mode)

    monkeypatch.setattr(fcntl, "flock", removed_once)
    write_atomic(tmp_path / "x", "text")
    assert len(calls) == 2
    assert (tmp_path / "x").read_text() == "text"


def test_a_large_limit_costs_no_memory(tmp_path: Path):
    """Python allocates as many bytes as `read` is asked for."""
    (tmp_path / "a").write_bytes(b"abc")
    assert read_bounded(tmp_path / "a", 2**60) == b"abc"

"""Files are whole or not there, locks keep processes apart, and results reach devices, pipes and the targets of links."""

from __future__ import annotations

import fcntl
import hashlib
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch_profiler.__main__ import main
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.destinations import destination, output_file, write_output
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


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("data.json", "did you mean '{folder}/data.jsonl'?"), ("other.csv", ""), ("none/data.jsonl", "")],
)
def test_the_name_of_a_missing_file_is_compared_with_its_neighbours(tmp_path: Path, typed: str, hint: str):
    (tmp_path / "data.jsonl").touch()
    (tmp_path / "data.jso").mkdir()

    with pytest.raises(UsageError, match="No such file") as raised:
        read_bounded(tmp_path / typed, 4)

    assert raised.value.hint == hint.format(folder=tmp_path)


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


def reading(path: Path) -> Callable[[], bytes]:
    """Start to read a named pipe; returns what waits for all of it."""
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    reader.start()

    def result() -> bytes:
        reader.join(timeout=60.0)
        return found[0]

    return result


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(ValueError, match="planted"), output_file(path) as file:
        file.write(b"half")
        raise ValueError("planted")
    assert path.read_text() == "before"
    write_output(path, "after")
    assert path.read_text() == "after"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_link_stays_and_its_target_gets_the_content(tmp_path: Path, is_missing: bool) -> None:
    """Also through another link, and where the target does not exist yet."""
    target, link, first = tmp_path / "elsewhere" / "real", tmp_path / "link", tmp_path / "first"
    target.parent.mkdir()
    if not is_missing:
        target.write_text("before")
    link.symlink_to(Path("elsewhere") / "real")
    first.symlink_to("link")
    write_output(first, "content")
    assert (first.is_symlink(), link.is_symlink()) == (True, True)
    assert target.read_text() == "content"
    assert list(target.parent.iterdir()) == [target]


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_output(tmp_path / "a", "content")
    assert (tmp_path / "a").is_symlink()


def test_a_named_pipe_gets_the_complete_content(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    result = reading(path)
    with pytest.raises(ValueError, match="planted"), output_file(path) as file:
        file.write(b"half")
        raise ValueError("planted")
    write_output(path, "whole")
    assert result() == b"whole"
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_stays(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    for path in (Path(os.devnull), link):
        write_output(path, "content")
        assert destination(path) is None
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert link.is_symlink()


@pytest.mark.parametrize(
    "name", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/{pid}/fd/{}", "/proc/thread-self/fd/{}"]
)
def test_an_open_descriptor_is_written_into(tmp_path: Path, name: str) -> None:
    """Where it stands: what was written before it stays."""
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"before ")
        file.flush()
        link = tmp_path / "link"
        link.symlink_to(name.format(file.fileno(), pid=os.getpid()))
        write_output(link, "and after")
    assert (tmp_path / "file").read_text() == "before and after"


def test_what_was_printed_before_standard_output_comes_first(tmp_path: Path) -> None:
    script = "from pathlib import Path; from dispatch_profiler.files.destinations import write_output\n"
    script += "print('one'); write_output(Path('/dev/stdout'), 'two\\n'); print('three')"
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "one\ntwo\nthree\n"


def test_the_descriptor_of_another_process_is_none_of_ours(tmp_path: Path) -> None:
    """The file that it has open is replaced, as under its own name."""
    with (tmp_path / "file").open("w") as out:
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=out)
        write_output(Path(f"/proc/{other.pid}/fd/1"), "content")
        other.communicate(b"\n")
    assert (tmp_path / "file").read_text() == "content"


def test_a_link_into_a_missing_folder_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    Path("link").symlink_to("nowhere/file")
    assert main(["library", "export", "xeon-avx512", "--output=link"]) == UsageError.exit_status
    assert "there is no folder" in capsys.readouterr().err


# -- every command -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled tree for the null target, with records."""
    folder = tmp_path_factory.mktemp("tree")
    generated = f"--generated-dir={folder}"
    assert main(["generate", generated, "--target=null", "--m=16", "--lhs=f32", "--default-config=only"]) == 0
    assert main(["compile", generated, "--no-cache"]) == 0
    assert main(["profile", generated, "--budget=0.01", f"--output={folder / 'run.csv'}"]) == 0
    return folder


#: The arguments of each command, and how its output begins.
COMMANDS: dict[str, tuple[str, bytes]] = {
    "report": ("report {tree}/run.jsonl -o {path}", b"<!"),
    "report markdown": ("report {tree}/run.jsonl -o {other} --markdown={path}", b""),
    "library": ("library export xeon-avx512 --format=json -o {path}", b"["),
    "compare": ("compare {tree}/run.jsonl {tree}/run.jsonl --output {path}", b""),
    "bundle": ("compile --no-cache --generated-dir={tree} --bundle={path}", b"PK"),
    "profile": ("profile --generated-dir={tree} --budget=0.01 --output={path}", b""),
    "markdown": ("profile --generated-dir={tree} --budget=0.01 --markdown={path}", b""),
    "junit": ("profile --generated-dir={tree} --budget=0.01 --junit={path}", b"<?xml"),
    "join": ("join {tree}/run.jsonl {tree}/run.jsonl -o {path}", b""),
    "workload": ("generate --target=null --m=16 --lhs=f32 --save-workload={path}", b""),
}


def _run(name: str, tree: Path, path: Path) -> None:
    text, _ = COMMANDS[name]
    arguments = [each.format(tree=tree, path=path, other=path.with_name("other")) for each in text.split()]
    assert main(arguments) == 0, arguments


@pytest.mark.some(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_writes_through_links_and_into_pipes(name: str, tree: Path, tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "real", tmp_path / "link.csv", tmp_path / "pipe.csv"
    link.symlink_to("real")
    _run(name, tree, link)
    content = read_bounded(target, 2**26)
    assert link.is_symlink()
    assert content

    os.mkfifo(pipe)
    result = reading(pipe)
    _run(name, tree, pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert result()[:4] == content[:4]
    _, start = COMMANDS[name]
    assert content.startswith(start)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_leaves_a_device(name: str, tree: Path, tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    _run(name, tree, link)
    assert stat.S_ISCHR(link.stat().st_mode)
    assert not (tmp_path / "null.jsonl").exists()


def test_rows_for_a_pipe_come_with_a_message_about_no_samples(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run("join", tree, Path(os.devnull))
    assert capsys.readouterr().err.endswith(f"to {os.devnull}\n")

"""Results reach devices, pipes, descriptors and the targets of links, none of which is replaced."""

from __future__ import annotations

import os
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
from dispatch_profiler.files.regular import read_bounded


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

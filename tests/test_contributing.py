"""CONTRIBUTING.md names files and names that exist, and what it shows runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
#: A path has a folder, or the suffix of a file of this project; `<kind>` stands for a name that a reader chooses.
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?|[\w-]+\.(?:py|md|yaml|txt|cfg|j2)")
#: `NAME` in, of, to, ... `file`, on one line.
NAME = re.compile(r"`(_?[A-Z][A-Z_]{2,})` of `([\w/.]+)`")
#: Where a path may begin.
FOLDERS = (ROOT, ROOT / "dispatch_profiler", ROOT / "tests")


def named_paths(text: str) -> set[str]:
    """The paths among the code in `text`."""
    quoted = re.findall(r"`([^`\n]+)`", text)
    return {each.rstrip("/") for each in quoted if PATH.fullmatch(each)}


def found(path: str) -> list[Path]:
    """Where `path` is: from a folder of `FOLDERS`, or, without a folder of its own, anywhere."""
    if "/" in path:
        return [folder / path for folder in FOLDERS if (folder / path).exists()]
    return files_by_name().get(path, [])


@cache
def files_by_name() -> dict[str, list[Path]]:
    """Those of the project, without virtual environments, which have a hundred times as many."""
    places: dict[str, list[Path]] = {}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [each for each in folders if not each.startswith((".venv", ".git"))]
        for name in (*folders, *names):
            places.setdefault(name, []).append(Path(folder) / name)
    return places


def test_every_path_exists():
    paths = named_paths(TEXT)
    assert len(paths) > 80
    assert sorted(path for path in paths if not found(path) and path not in ("sys.argv", "/dev/full")) == []


def test_a_path_that_does_not_exist_is_found():
    assert named_paths("`a/b.py` and `make test`, `c.py`, `<kind>.py`, `name`") == {"a/b.py", "c.py"}
    assert found("operations/no_such.py") == found("no_such.py") == []


def test_every_registry_is_in_the_file_that_is_named():
    pairs = NAME.findall(TEXT)
    assert len(pairs) > 8
    missing = [
        (name, path) for name, path in pairs if name not in "".join(p.read_text() for p in found(path))
    ]
    assert missing == []


def console(heading: str) -> list[str]:
    section = TEXT.split(f"### {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = re.search(r"```console\n(.*?)```", section, flags=re.S)
    assert lines is not None
    return [line.removeprefix("$ ") for line in lines[1].splitlines()]


@pytest.mark.slow
def test_the_commands_about_the_ir_show_the_tiles_of_a_kernel(tmp_path: Path):
    shutil.copy(ROOT / "generator.py", tmp_path)
    (tmp_path / "dispatch_profiler").symlink_to(ROOT / "dispatch_profiler")
    (tmp_path / ".venv-test").symlink_to(sys.prefix)
    outputs = [
        subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for line in console("See the IR of one kernel")
    ]

    assert "linalg.matmul" in outputs[1]
    assert "lowering_config" not in outputs[1]
    assert "lowering_config" in outputs[2]


@pytest.mark.parametrize("line", console("Run one test"))
def test_tests_that_are_named_exist(line: str):
    assert line.startswith(".venv-test/bin/python -m pytest ")
    names = [word for word in line.split() if word.startswith("tests/")]
    assert names
    assert all((ROOT / name).exists() for name in names)

"""A run of tests that was stopped goes on with the tests that have not passed yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os

def test_passes(): pass
def test_fails(): assert os.path.exists("mended")
def test_has_passed(): raise AssertionError
"""


def run(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "resumed", "-p", "no:cacheprovider", *options]
    ran = subprocess.run(
        [*command, "--resume=noted.txt", "test_some.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parent), "PATH": ""},
        check=False,
    )
    return ran.stdout


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_tests_that_passed_are_left_out(tmp_path: Path, options: tuple[str, ...]):
    (tmp_path / "test_some.py").write_text(TESTS)
    noted = tmp_path / "noted.txt"
    noted.write_text("test_some.py::test_has_passed\n")
    assert "1 failed, 1 passed" in run(tmp_path, *options)
    assert set(noted.read_text().splitlines()) == {
        "test_some.py::test_has_passed",
        "test_some.py::test_passes",
    }
    (tmp_path / "mended").touch()
    assert "1 passed" in run(tmp_path, *options)
    assert "test_some.py::test_fails" in noted.read_text()

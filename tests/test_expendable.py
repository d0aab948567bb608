"""Tests on the compiler's IR run in a pytest of their own, with the options of the one that asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
from hypothesis import settings

settings.register_profile("few", max_examples=7)
pytest_plugins = ("expendable",)

def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "works_on_ir")
"""
TEST = """
import os

import pytest
from hypothesis import settings

@pytest.mark.works_on_ir
def test_it():
    assert os.getpid() != int(os.environ["ASKING"]) and settings.default.max_examples == 7
"""
RUN = "import os, pytest, sys; os.environ['ASKING'] = str(os.getpid()); sys.exit(pytest.main(sys.argv[1:]))"


def test_the_profile_of_hypothesis_is_passed_on(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_ir.py").write_text(TEST)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": ""}

    ran = subprocess.run(
        [sys.executable, "-c", RUN, f"--rootdir={tmp_path}", "--hypothesis-profile=few", "test_ir.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout

"""The wheel holds all of the package, and runs where there is no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the checkout, by the setuptools of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "dispatch_profiler", source / "dispatch_profiler", ignore=shutil.ignore_patterns("__pycache__")
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", f"--wheel-dir={folder}", str(source)], check=True)
    (made,) = folder.glob("*.whl")
    return made


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path):
    package = ROOT / "dispatch_profiler"
    files = {
        str(path.relative_to(ROOT)) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }

    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert packed == files


def test_an_installed_wheel_runs_without_a_checkout(wheel: Path, tmp_path: Path, monkeypatch):
    """Alone it prints its help, and names what is missing; with the packages of the tests it generates."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        "env",
        "install",
        "--quiet",
    ]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)

    def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"env/bin/{command[0]}", *command[1:]],
            env={**os.environ, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    shown = run("dispatch-profiler", "--help")
    bare = run("dispatch-profiler", "generate", "--help")
    import numpy

    packages = str(Path(numpy.__file__).parents[1])
    small = ("--target=null", "--problem-m=8", "--problem-n=8", "--problem-k=8", "--lhs=f32")
    generated = run("dispatch-profiler", "generate", *small, PYTHONPATH=packages)
    compiled = run("dispatch-compile", "-j1", PYTHONPATH=packages)

    assert (shown.returncode, "generate" in shown.stdout) == (0, True), shown.stderr
    assert bare.returncode == 2
    assert "error: numpy is not installed; run: " in bare.stderr
    assert "pip install 'numpy>=1.26'" in bare.stderr
    assert generated.returncode == compiled.returncode == 0, generated.stderr + compiled.stderr
    assert list(Path("generated").rglob("*_verify.vmfb"))


@pytest.mark.slow
def test_make_wheel_in_a_fresh_clone(tmp_path: Path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)

    done = subprocess.run(["make", "wheel"], cwd=clone, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1].endswith("-py3-none-any.whl")

"""The wheel and the sdist hold what they should, and what is installed from either runs without a checkout."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatch_profiler import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dispatch_profiler"
WHEEL = f"dispatch_profiler-{__version__}-py3-none-any.whl"
SDIST = f"dispatch_profiler-{__version__}.tar.gz"
#: The wheel is copied to machines that measure, with each bundle. What needs more belongs in a package of its own.
LARGEST_WHEEL = 4_000_000
#: Prefix of each name in the sdist.
TOP = f"dispatch_profiler-{__version__}/"
#: What setuptools adds to the sdist.
MADE = ("dispatch_profiler.egg-info/", "PKG-INFO")
#: What the sdist has besides the package.
BESIDE_THE_PACKAGE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "compile.py",
    "generator.py",
    "profiler.py",
    "pyproject.toml",
    "setup.cfg",
)


def files_of(folder: Path) -> set[str]:
    """Relative to the checkout, without bytecode."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.fixture(scope="module")
def distributions(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """A folder with both, built by the first worker that needs them."""
    return made_once("distributions", make_distributions)


def make_distributions(folder: Path) -> None:
    """From a copy of the checkout, by the setuptools of the tests, without a network."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in BESIDE_THE_PACKAGE:
        shutil.copy(ROOT / name, source)
    for name in ("dispatch_profiler", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tests").mkdir()
    shutil.copy(Path(__file__), source / "tests")
    build = "from setuptools import build_meta as build; build.build_sdist('..'); build.build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    shutil.rmtree(source)


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(distributions: Path):
    with zipfile.ZipFile(distributions / WHEEL) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert packed == files_of(PACKAGE)


def test_the_sdist_has_the_package_its_documents_and_the_scripts(distributions: Path):
    with tarfile.open(distributions / SDIST) as archive:
        packed = {each.name.removeprefix(TOP) for each in archive.getmembers() if each.isfile()}

    own = {name for name in packed if not name.startswith(MADE)}
    assert own == {*BESIDE_THE_PACKAGE, *files_of(PACKAGE), *files_of(ROOT / "docs")}


def largest_files(wheel: Path, count: int = 12) -> Iterator[str]:
    """Lines with packed sizes in bytes, the largest file first."""
    with zipfile.ZipFile(wheel) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: -entry.compress_size)
    return (f"{entry.compress_size:>9,}  {entry.filename}" for entry in entries[:count])


def megabytes(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return float(found[1])


def test_the_wheel_stays_small(distributions: Path):
    wheel = distributions / WHEEL
    size = wheel.stat().st_size
    document = (ROOT / "docs/bundles.md").read_text()

    assert size <= LARGEST_WHEEL, "\n".join(
        [
            f"the wheel has {size:,} bytes; at most {LARGEST_WHEEL:,} are allowed, because each machine that measures",
            "gets a copy. Move large files out of the package, or raise LARGEST_WHEEL and say why. Packed sizes:",
            *largest_files(wheel),
        ]
    )
    assert megabytes(r"at most ([\d.]+) MB", document) == LARGEST_WHEEL / 1e6
    assert megabytes(r"The wheel has ([\d.]+) MB", document) == pytest.approx(size / 1e6, abs=0.25)


def test_the_files_of_a_wheel_that_is_too_large_are_named(distributions: Path):
    first, second, *_ = largest_files(distributions / WHEEL)

    assert first.endswith("dispatch_profiler/tuner/strategies/priors/llvm-cpu.npz")
    assert second.endswith("dispatch_profiler/templates/plotly/plotly-cartesian.min.js")


#: Prints which files of the package can be read where it is installed, and where that is.
_LIST = """
import dispatch_profiler, pathlib
folder = pathlib.Path(dispatch_profiler.__file__).parent
print(folder)
for path in folder.rglob("*"):
    if path.is_file() and path.suffix != ".pyc":
        print(path.relative_to(folder.parent).as_posix())
"""


@pytest.mark.parametrize(
    "name", [pytest.param(WHEEL, id="wheel"), pytest.param(SDIST, id="sdist", marks=pytest.mark.slow)]
)
def test_an_installed_distribution_runs_without_a_checkout(
    name: str, distributions: Path, monkeypatch: pytest.MonkeyPatch
):
    """Alone it prints its help, and names what is missing; with the libraries of the tests, all stages run."""
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
    # What builds the sdist is setuptools, which the environment does not have.
    libraries = os.pathsep.join(path for path in sys.path if Path(path).name.endswith("-packages"))
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--no-build-isolation", str(distributions / name)],
        env={**os.environ, "PYTHONPATH": libraries},
        check=True,
    )

    def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"env/bin/{command[0]}", *command[1:]],
            env={**os.environ, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def succeeds(*command: str) -> str:
        done = run(*command, PYTHONPATH=libraries)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = run("dispatch-profiler", "--help")
    assert (shown.returncode, "generate" in shown.stdout) == (0, True), shown.stderr
    bare = run("dispatch-profiler", "generate", "--help")
    assert bare.returncode == 2
    assert "error: numpy is not installed; run: " in bare.stderr
    assert "pip install 'numpy>=1.26'" in bare.stderr
    folder, *installed = run("python", "-c", _LIST).stdout.splitlines()
    assert Path(folder).is_relative_to(Path("env").resolve())
    assert set(installed) == files_of(PACKAGE)
    assert succeeds("dispatch-profiler", "--version").startswith(f"dispatch_profiler {__version__}\n")
    small = ("--m=8", "--n=8", "--k=8", "--lhs=f32", "--configurations=llvm-cpu", "--default-config=only")
    succeeds("dispatch-generator", *small)
    succeeds("dispatch-compile", "-j1")
    assert len(list(Path("generated").rglob("*.vmfb"))) == 2
    assert {line.split()[0] for line in succeeds("dispatch-profiler", "library", "list").splitlines()} == {
        "epyc-avx2",
        "h200",
        "xeon-avx512",
    }


def test_the_version_is_stated_once():
    """The documents name the wheel, as the command that makes it does."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["version"] == "attr: dispatch_profiler.version.__version__"
    named = {
        name
        for document in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"dispatch_profiler-[\w.-]+\.whl", document.read_text())
    }
    assert named == {WHEEL}
    assert re.search(
        rf"^## {re.escape(__version__)} - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


@pytest.mark.slow
def test_both_are_made_in_a_fresh_clone(tmp_path: Path):
    """The sdist makes the same wheel."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)

    for target, name in (("wheel", WHEEL), ("sdist", SDIST)):
        done = subprocess.run(
            ["make", "--no-print-directory", target], cwd=clone, capture_output=True, text=True, check=False
        )

        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().splitlines()[-1] == f"dist/{name}"


@pytest.mark.slow
def test_the_wheel_holds_no_module_of_an_earlier_build(tmp_path: Path):
    """setuptools leaves a folder `build`, and packs all of it again."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    stale = clone / "build/lib/dispatch_profiler/moved.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")

    subprocess.run(["make", "wheel"], cwd=clone, check=True, capture_output=True)

    with zipfile.ZipFile(clone / "dist" / WHEEL) as archive:
        assert "dispatch_profiler/moved.py" not in archive.namelist()

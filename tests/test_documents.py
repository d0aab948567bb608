"""Every command line and program of README.md and docs/ is run as it stands."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    "README.md",
    "docs/null.md",
    "docs/targets.md",
    "docs/measurement.md",
    "docs/compare.md",
    "docs/report.md",
    "docs/bundles.md",
]
#: `make` is run by the slow test below and by CI itself.
OURS = "python "


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


def commands(document: str) -> list[str]:
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the project's files, as after a clone, but nothing generated."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("generator.py", "compile.py", "profiler.py", "dispatch_profiler", "docs"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    # `python` is the interpreter of the tests, wherever that lies.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_line_runs_as_it_stands(document: str, checkout: Path):
    ours = [line for line in commands(document) if line.startswith(OURS)]
    assert ours

    for line in ours:
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr}"


def test_the_cluster_of_the_documents_compiles(checkout: Path):
    """Its commands in their order, on this machine and a free port; those of Dask in the background."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    background = []
    try:
        for line in commands("docs/cluster.md"):
            here = line.replace("8786", port).replace("tcp://head", "tcp://127.0.0.1")
            if line.startswith("dask "):
                background.append(subprocess.Popen(["sh", "-c", f"exec {here} >{len(background)}.log 2>&1"]))
                continue
            done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=False)
            # A scheduler that is up may not have its workers yet.
            while "has no workers" in done.stderr or "no scheduler answers" in done.stderr:
                assert all(process.poll() is None for process in background)
                done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    finally:
        for process in background:
            process.terminate()
            process.wait()
    assert len(background) == 3
    assert len(list(checkout.rglob("*_verify.vmfb"))) >= 2


def test_no_command_line_is_left_untested():
    every = [line for document in DOCUMENTS for line in commands(document)]

    assert {line.split()[0] for line in every} <= {"python", "make"}
    assert sorted(line.split()[1] for line in every if line.startswith("make")) == ["quickstart", "test"]


def test_the_program_of_the_readme_runs(checkout: Path):
    (program,) = blocks("README.md", "python")

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "matmul_256x256x256_f32t_f32t_f32t_tile_config_64x128_8x32x4 SUCCESS" in done.stdout


def test_the_configurations_of_the_documents_load():
    from dispatch_profiler.configurations import load_configurations, shipped_configurations

    (text,) = blocks("docs/configurations.md", "yaml")
    Path("own.yaml").write_text(text)

    rows = yaml.safe_load(text)["configurations"]
    expected = sum(len(shipped_configurations(row["list"])) if "list" in row else 1 for row in rows)
    assert len(load_configurations(Path("own.yaml"))) == expected


def test_the_space_of_the_documents_is_drawn_from(checkout: Path):
    (program,) = blocks("docs/configurations.md", "python")

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\ntile_config_") == 3


def test_the_faults_of_the_documents_are_those_of_the_file():
    (text,) = blocks("docs/null.md", "yaml")

    assert text == (ROOT / "docs/faults.yaml").read_text()


def test_every_link_of_the_documents_leads_somewhere():
    for document in [*DOCUMENTS, "docs/cluster.md", "CONTRIBUTING.md"]:
        folder = (ROOT / document).parent
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text()):
            assert (folder / link).exists(), f"{document}: {link}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quickstart_in_a_fresh_clone(tmp_path: Path):
    """With an empty home and no virtual environment: it sets itself up and leaves data.csv."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)

    done = subprocess.run(["make", "quickstart"], cwd=clone, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "vs default" in done.stdout
    assert len((clone / "data.csv").read_text().splitlines()) > 30

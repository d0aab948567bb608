"""CI, `make lint` and pre-commit check the same things, on every Python that the package supports."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def recipe(target: str) -> list[str]:
    """Commands of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.M)
    assert found is not None
    return [line.strip() for line in found.group(1).splitlines()]


def test_pre_commit_runs_the_linters_of_make_lint():
    configuration = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in configuration["repos"] for hook in repository["hooks"]]

    # pre-commit adds the files that `.` stands for.
    assert [hook["entry"] for hook in hooks] == [line.removesuffix(" .") for line in recipe("lint")]


def test_every_linter_comes_with_the_lint_extra():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extra = setup["options.extras_require"]["lint"]

    assert {line.split()[0] for line in extra.split("\n") if line} >= {"ruff", "mypy", "import-linter"}


def test_the_workflow_runs_ci_on_every_supported_python():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    test = workflow["jobs"]["test"]

    assert test["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert {".ci/run", "make test-dist"} <= {step.get("run") for step in test["steps"]}
    assert recipe("test-dist")[-1].endswith(".ci/test-dist")
    assert all(os.access(ROOT / name, os.X_OK) for name in (".ci/run", ".ci/test-dist"))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["python_requires"] == ">=3.10"
    classifiers = re.findall(r"Python :: (3\.\d+)$", setup["metadata"]["classifiers"], flags=re.M)
    assert classifiers == test["strategy"]["matrix"]["python"]
    assert "Python 3.10 to 3.14" in (ROOT / "README.md").read_text()


def test_the_workflow_runs_the_tests_of_torch_from_the_oldest_supported_version():
    """`make test` has the newest one, which tests/constraints.txt pins."""
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["torch"]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")

    versions = [tuple(map(int, each.split("."))) for each in job["strategy"]["matrix"]["torch"]]
    oldest = re.search(r"torch >=(\d+)\.(\d+)", setup["options.extras_require"]["torch"])
    newest = re.search(r"torch==([\d.]+)", (ROOT / "tests/constraints.txt").read_text())
    assert oldest is not None and newest is not None
    assert versions[0] == (*map(int, oldest.groups()), 0)
    assert versions == sorted(versions) and versions[-1] < tuple(map(int, newest[1].split(".")))
    assert job["steps"][-1]["run"] == "make test-torch TORCH=${{ matrix.torch }}"
    assert any("torch==$(TORCH)" in line for line in recipe("test-torch"))


def test_ci_lints_builds_the_site_and_runs_the_suite():
    commands = (ROOT / ".ci/run").read_text().splitlines()

    assert commands[-4:] == ["make lint", "make libraries", "make docs", "make test"]
    assert "--fail-on-warning" in recipe("docs")[0]


def test_the_readme_and_make_help_state_one_time_of_the_suite():
    stated = [
        re.search(r"the test suite \((.+ on 2 cores)\)", (ROOT / name).read_text())
        for name in ("README.md", "Makefile")
    ]
    assert stated[0] and stated[1]
    assert stated[0][1] == stated[1][1]


def test_no_two_test_files_share_a_name():
    """pytest imports them by their names alone, so it rejects the second one."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))

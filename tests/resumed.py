"""`--resume=FILE`: goes on where an earlier run with this file was stopped. A whole run with slow tests takes hours.

Each test that passes is noted in the file at once; a later run leaves out what is noted. Delete the file to begin again,
for example after a change of what the tests test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--resume", type=Path, metavar="FILE", help="leave out the tests that FILE notes; note what passes"
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("resume")
    if file is not None:
        given = getattr(config, "workerinput", None)
        # Workers collect the same tests, whatever has been noted meanwhile.
        passed = frozenset(_noted(file) if given is None else given["resumed"])
        config.pluginmanager.register(_Resumed(file, passed, is_worker=given is not None), "resumed_tests")


def _noted(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


class _Resumed:
    """Notes the tests that pass, and leaves out those that have passed."""

    def __init__(self, file: Path, passed: frozenset[str], *, is_worker: bool) -> None:
        self._file, self._passed, self._is_worker = file, passed, is_worker
        self._failed = set[str]()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the passed tests to a worker of pytest-xdist."""
        node.workerinput["resumed"] = sorted(self._passed)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left = [each for each in items if each.nodeid not in self._passed]
        config.hook.pytest_deselected(items=[each for each in items if each.nodeid in self._passed])
        items[:] = left

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")

"""Runs tests that are marked `works_on_ir` in a process that an abort of the compiler may end.

A plugin of pytest, which `conftest.py` loads. The IR of the compiler cannot leave a process, so these tests compile in
their own, which is not that of pytest: another pytest, which has collected their files, runs the tests that it is asked
for and sends their reports back. After an abort, the test fails with the compiler's last line, and the next one gets a
new process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Generator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from run_of_pytest import folder_of_session, is_expendable

from dispatch_profiler.outside_causes import crash_of

_MARK = "works_on_ir"
#: Plugins that would note the tests of one file as those of the whole run.
_NOTING = ("lfplugin", "nfplugin", "stepwiseplugin")
#: Options of plugins that decide what a test does.
_FORWARDED = ("--hypothesis-profile",)
_PROCESS = pytest.StashKey["Process"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("expendable", "for the process of tests that work on the compiler's IR")
    group.addoption("--asked-through", type=int, metavar="FD", help="run the tests that arrive on this pipe")
    group.addoption("--session-folder", type=Path, metavar="DIR", help="the folder of the run that asks")


class Process:
    """A pytest that runs tests of `files` when it is asked to."""

    def __init__(self, config: pytest.Config, files: Collection[Path]) -> None:
        self.files = files
        folder = folder_of_session(config)
        self._connection, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        options = (
            *(f"--asked-through={theirs.fileno()}", f"--session-folder={folder}"),
            f"--basetemp={tempfile.mkdtemp(prefix='ir-', dir=folder)}",
            *("--override-ini=addopts=--strict-markers", "--capture=sys"),
            *(part for plugin in config.getoption("plugins") for part in ("-p", plugin)),
            *(part for rule in config.getoption("pythonwarnings") or () for part in ("-W", rule)),
            *(f"{option}={value}" for option in _FORWARDED if (value := config.getoption(option, None))),
            *(["--update-golden"] if config.getoption("update_golden") else []),
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *map(str, files), f"--rootdir={config.rootpath}", *options],
            cwd=config.rootpath,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C goes to the process that asks, which ends this one
        )
        theirs.close()

    def run(self, nodeid: str) -> list[dict[str, Any]] | str:
        """The reports of a test, serialized; or why there are none."""
        self._said.seek(0, os.SEEK_END)
        start = self._said.tell()
        try:
            self._connection.send(nodeid)
            reports: list[dict[str, Any]] = self._connection.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait()
            self._said.seek(start)
            said = self._said.read().decode(errors="replace")
            return f"the process of this test: {crash_of(code, said)}\n{said[-4000:]}"
        return reports

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """Let the process end, so that what it covered is written."""
        self._connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._said.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


# -- in the process that asks ----------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run a test that works on IR elsewhere, and report what is reported there."""
    if item.get_closest_marker(_MARK) is None or is_expendable(item.config):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)
    return True


def _reports(item: pytest.Item) -> Sequence[pytest.TestReport]:
    process = _process_of(item)
    try:
        found = process.run(item.nodeid)
    except pytest.fail.Exception as error:  # of pytest-timeout
        process.kill()
        found = str(error)
    except BaseException:
        process.kill()
        raise
    if isinstance(found, str):
        return [_failure(item, found)]
    hook = item.config.hook
    return [hook.pytest_report_from_serializable(config=item.config, data=report) for report in found]


def _process_of(item: pytest.Item) -> Process:
    """The process of all such tests of this session, in place of one that has ended: starting one for each file takes
    longer than most of their tests."""
    process = item.config.stash.get(_PROCESS, None)
    if process is not None and (item.path not in process.files or process.has_ended):
        process.close()
        process = None
    if process is None:
        marked = (each.path for each in item.session.items if each.get_closest_marker(_MARK) is not None)
        process = item.config.stash[_PROCESS] = Process(item.config, sorted({item.path, *marked}))
    return process


def _failure(item: pytest.Item, reason: str) -> pytest.TestReport:
    call = pytest.CallInfo.from_call(lambda: pytest.fail(reason, pytrace=False), "call")
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    process = config.stash.get(_PROCESS, None)
    if process is not None:
        process.close()


# -- in the process that is asked ------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    if is_expendable(config):
        for name in _NOTING:
            config.pluginmanager.unregister(name=name)
        config.pluginmanager.register(_Asked(Connection(config.getoption("asked_through"))))


class _Asked:
    """Runs the tests that it is asked for, and sends their reports."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reports: list[dict[str, Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run tests until the other process closes the pipe."""
        places = {item.nodeid: place for place, item in enumerate(session.items)}
        while True:
            try:
                place = places[self._connection.recv()]
            except EOFError:
                return True
            item = session.items[place]
            self._reports = []
            # Fixtures of the file stay, until a test of another file is asked for: any test of it may be the next.
            session._setupstate.teardown_exact(item)
            # Fixtures of the session stay in any case.
            others = [each for each in session.items if each is not item]
            of_file = (each for each in others if each.path == item.path)
            follows = next(of_file, others[0] if others else None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=follows)
            self._connection.send(self._reports)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note a report for the process that asks."""
        report = yield
        self._reports.append(
            item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        )
        return report

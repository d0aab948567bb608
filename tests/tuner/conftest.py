"""Fixtures that run the tuner's commands in this process."""

from __future__ import annotations

import pytest
from ran import Ran, Run
from worker_helpers import InProcessWorker

from dispatch_profiler.__main__ import main
from dispatch_profiler.profiler.compare import live


@pytest.fixture
def quick_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker processes, except where IREE compiles."""
    if request.node.get_closest_marker("slow") is None:
        request.getfixturevalue("in_process")
        monkeypatch.setattr(live, "Worker", InProcessWorker)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Run:
    """`command("optimize", "tunings")`"""

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        status = main(list(arguments))
        found = capsys.readouterr()
        return Ran(status, found.out, found.err)

    return call

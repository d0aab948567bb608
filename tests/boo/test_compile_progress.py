"""What a compile says of itself: how many kernels, and nothing where the cache has them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from dispatch_profiler.boo import progress
from dispatch_profiler.boo.driver.preload import CachePopulator
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.progress import CompileProgress, compiling, current
from dispatch_profiler.boo.session import SESSION

CONV = "conv -n 1 -c 4 -H 8 -W 8 -k 4 -y 3 -x 3 -p 1 -q 1 -F "


class Told(CompileProgress):
    """Records the messages."""

    def __init__(self) -> None:
        super().__init__("told")
        self.phases: list[str] = []
        self.begun = 0

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def begin(self) -> None:
        self.begun += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    made = Told()
    monkeypatch.setattr(progress, "CompileProgress", lambda *_, **__: made)
    SESSION.clear("kernels")
    with compiling("test"):
        yield made
    SESSION.clear("kernels")


@pytest.mark.usefixtures("in_process")
def test_kernels_are_counted_and_those_of_the_cache_are_not(told: Told):
    def preload(*directions: str) -> None:
        CachePopulator(devices=["null"], commands=[CONV + each for each in directions]).run()

    preload("1", "2")
    assert told.phases == ["0 of 2 kernels compiled", "1 of 2 kernels compiled", "2 of 2 kernels compiled"]
    told.phases.clear()
    preload("1", "2", "4")
    assert told.phases == ["0 of 1 kernel compiled", "1 of 1 kernel compiled"]
    told.phases.clear()
    preload("1", "2", "4")
    assert not told.phases and told.begun == 2


def test_the_line_has_the_seconds_since_the_compile_began():
    now = [10.0]
    shown = CompileProgress("iree_boo", clock=lambda: now[0])
    shown.phase("12 of 40 kernels compiled")
    now[0] += 23.4
    assert shown.text == "[iree_boo]: 12 of 40 kernels compiled, 23 s"


def test_a_compile_that_is_part_of_another_one_is_counted_there():
    assert current() is not current()  # they are not shown
    with compiling("outer", is_shown=False) as outer:
        with compiling("inner") as inner:
            assert inner is outer and current() is outer
        assert current() is outer
    assert current() is not outer


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.delenv("BOO_PROGRESS", raising=False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a compile says that takes until it has said something."""
    with compiling("test") as shown:
        shown.phase("1 of 2 kernels compiled")
        shown.begin()
        said = ""
        while not said and shown.is_shown:
            said += capsys.readouterr().err
        shown.summarize("2 regions: 2 predicted")
    return (said + capsys.readouterr().err).splitlines()


@pytest.mark.usefixtures("brief")
def test_a_summary_follows_a_line_that_was_shown(capsys: pytest.CaptureFixture[str]):
    first, *_, last = lines(capsys)
    assert first == "[test]: 1 of 2 kernels compiled, 0 s" and last == "[test]: 2 regions: 2 predicted"


@pytest.mark.usefixtures("brief")
def test_the_environment_turns_it_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOO_PROGRESS", "0")
    assert lines(capsys) == []


@pytest.mark.usefixtures("brief")
def test_summaries_are_messages_of_level_info(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    """Then they are not shown twice."""
    with caplog.at_level(logging.INFO, LOGGER):
        assert not any("regions" in each for each in lines(capsys))
    assert caplog.messages == ["2 regions: 2 predicted"]

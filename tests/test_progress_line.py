"""A line of progress: nothing of short tasks, one line of a terminal, and lines in a log."""

from __future__ import annotations

import io
import threading

import pytest

from dispatch_profiler.console import progress_line
from dispatch_profiler.console.progress_line import ProgressLine


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines and updates follow each other at once."""
    monkeypatch.setattr(progress_line, "LOG_SECONDS", 0.001)
    monkeypatch.setattr(progress_line, "SCREEN_SECONDS", 0.001)


class Steps:
    """The text of a task, which the test waits for."""

    def __init__(self, count: int, text: str = "") -> None:
        self._left, self._text, self.done = count, text, threading.Event()

    def __call__(self) -> str:
        self._left -= 1
        if self._left <= 0:
            self.done.set()
        return self._text or f"{max(0, self._left)} left"


@pytest.mark.usefixtures("brief")
def test_a_log_has_lines_until_the_task_ends():
    said: list[str] = []
    text = Steps(3)
    with ProgressLine(text, say=said.append) as line:
        assert not line.was_shown
        line.begin()
        line.begin()  # changes nothing
        assert text.done.wait(60)
    assert line.was_shown and said[:3] == ["2 left", "1 left", "0 left"]
    count = len(said)
    line.begin()  # it has ended
    assert len(said) == count


@pytest.mark.parametrize("begins", [False, True])
def test_a_short_task_shows_nothing(begins: bool):
    """It ends before `patience`, or is never begun; the end does not wait."""
    said: list[str] = []
    with ProgressLine(lambda: "never", patience=1e6, say=said.append) as line:
        if begins:
            line.begin()
    assert not said and not line.was_shown


@pytest.mark.usefixtures("brief")
def test_a_terminal_has_one_line_which_is_erased_at_the_end(monkeypatch: pytest.MonkeyPatch):
    """Cut to the width, without control characters; other output begins at its start."""
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "20")
    text = Steps(2, "compiling\x1b[2J " + 50 * "x")
    with ProgressLine(text) as line:
        line.begin()
        assert text.done.wait(60)
    *drawn, last, end = screen.getvalue().split("\r")
    assert drawn and set(drawn) == {"compiling\\x1b[2J xx\x1b[K"} and (last, end) == ("\x1b[K", "")
    assert "\n" not in screen.getvalue()


@pytest.mark.usefixtures("brief")
def test_a_terminal_may_have_the_lines_of_a_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stderr", Screen())
    said: list[str] = []
    text = Steps(2)
    with ProgressLine(text, say=said.append, updates=False) as line:
        line.begin()
        assert text.done.wait(60)
    assert said[:2] == ["1 left", "0 left"]


def test_a_closed_stream_ends_the_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressLine(lambda: "never") as line:
        line.begin()

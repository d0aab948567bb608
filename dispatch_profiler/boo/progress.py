"""How far the compile of a model has come: a line on standard error, once compiling and measuring take some seconds.

    with compiling("iree_boo") as progress:    the outermost of nested blocks shows the line
        current().phase(...), current().begin()

`BOO_PROGRESS=0` turns it off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dispatch_profiler.boo.environment import LOGGER, shows_progress
from dispatch_profiler.console.progress_line import ProgressLine

#: Seconds of compiling and measuring after which the line is shown.
PATIENCE = 5.0
_log = logging.getLogger(LOGGER)


class CompileProgress:
    """What a compile does now. Nothing is shown until `begin`: where everything comes from a cache, it is not called."""

    def __init__(
        self, title: str = "", *, is_shown: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._clock, self._start = title, clock, clock()
        self._phase = ""
        self._line = ProgressLine(lambda: self.text, patience=PATIENCE) if is_shown else None
        self._summaries: list[str] = []

    @property
    def text(self) -> str:
        """`[iree_boo]: 12 of 40 kernels compiled, 23 s`"""
        return f"[{self._title}]: {self._phase}, {self._clock() - self._start:.0f} s"

    @property
    def is_shown(self) -> bool:
        """Whether the line is shown if this takes long."""
        return self._line is not None

    def phase(self, text: str) -> None:
        """`text` says what is done from now on, or how much of it."""
        self._phase = text

    def begin(self) -> None:
        """Something is compiled or measured that no cache has."""
        if self._line is not None:
            self._line.begin()

    def summarize(self, text: str) -> None:
        """Log what was compiled, and show it if the line was shown."""
        _log.info("%s", text)
        # A program that shows this level has seen it.
        if not _log.isEnabledFor(logging.INFO):
            self._summaries.append(text)

    def close(self) -> None:
        """The end: erases the line of a terminal."""
        if self._line is not None:
            self._line.close()
            for each in self._summaries if self._line.was_shown else ():
                self._line.say(f"[{self._title}]: {each}")


_current: ContextVar[CompileProgress | None] = ContextVar("dispatch_profiler_compile", default=None)


def current() -> CompileProgress:
    """The progress of the compile that runs in this thread; without one, an object that shows nothing."""
    return _current.get() or CompileProgress()


@contextmanager
def compiling(title: str, *, is_shown: bool | None = None) -> Iterator[CompileProgress]:
    """A compile, called `title` in its line. Part of another one, it is counted there.

    `is_shown` None leaves it to the environment, and to `--quiet` in commands.
    """
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    progress = CompileProgress(title, is_shown=_is_shown() if is_shown is None else is_shown)
    token = _current.set(progress)
    try:
        yield progress
    finally:
        _current.reset(token)
        progress.close()


def _is_shown() -> bool:
    from dispatch_profiler.command import is_quiet  # imported here: it is slow to import

    return shows_progress() and not is_quiet()

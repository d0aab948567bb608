"""One line that says how far a long task has come: updated on a terminal, repeated every 10 s in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable

from dispatch_profiler.closing import Closing
from dispatch_profiler.console.streams import printable, width_of

#: Seconds between lines of a log, and between updates of a line on a terminal.
LOG_SECONDS, SCREEN_SECONDS = 10.0, 0.5
#: Erases what is behind the cursor.
_ERASE = "\x1b[K"


class ProgressLine(Closing):
    """Shows what `text` returns on standard error, from `patience` seconds after `begin` until it is closed.

    `say` prints a line of a log. A terminal has one line, which is erased at the end; unless `updates` is False: then it has
    the lines of a log, too.
    """

    def __init__(
        self,
        text: Callable[[], str],
        *,
        patience: float = 0.0,
        say: Callable[[str], None] | None = None,
        updates: bool = True,
    ) -> None:
        self._text, self._patience, self.say = text, patience, say or _print
        self._updates = updates
        self._ended, self._shown = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """The task has begun; later calls change nothing."""
        if self._thread is None and not self._ended.is_set():
            self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
            self._thread.start()

    @property
    def was_shown(self) -> bool:
        """Whether anything was shown so far."""
        return self._shown.is_set()

    def close(self) -> None:
        """Show nothing more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        if self._ended.wait(self._patience):
            return
        # A program may close its standard error.
        with contextlib.suppress(OSError, ValueError):
            is_screen = self._updates and width_of(sys.stderr) is not None
            while not self._ended.is_set():
                self._shown.set()
                if is_screen:
                    _replace_line(self._text())
                else:
                    self.say(self._text())
                self._ended.wait(SCREEN_SECONDS if is_screen else LOG_SECONDS)
            if is_screen:
                _replace_line("")


def _print(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def _replace_line(text: str) -> None:
    """Show `text` in the current line. The cursor stays at its beginning, so that other output replaces it."""
    width = width_of(sys.stderr) or 0
    sys.stderr.write(f"{printable(text)[: max(0, width - 1)]}{_ERASE}\r")
    sys.stderr.flush()

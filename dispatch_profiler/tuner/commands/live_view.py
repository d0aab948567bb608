"""Shows a search while it runs: on a terminal a view that is drawn again every second, elsewhere a line every 10 s."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dispatch_profiler.command import say, say_table, shows_live
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.progress_line import ProgressLine
from dispatch_profiler.tuner.commands.arguments import RECORDS_FILE
from dispatch_profiler.tuner.search.events import Compiling, Event
from dispatch_profiler.tuner.search.progress import SearchProgress, announcement

#: Improvements that a view shows, and reasons of failures that are listed at the end.
_ROWS, _REASONS = 8, 5


@contextmanager
def shown(progress: SearchProgress) -> Iterator[Callable[[Event], None]]:
    """Show `progress` while the block runs; it has a listener for the events of the search."""
    # Another thread draws while events arrive.
    lock = threading.Lock()

    def listen(event: Event) -> None:
        with lock:
            progress.add(event)
        if text := announcement(event):
            say(text)
        if isinstance(event, Compiling):
            lines.begin()

    def heading() -> Sequence[str]:
        with lock:
            return f"Searching {progress.phase}".rstrip(), f"  {progress.figures}"

    def rows() -> Sequence[Sequence[str]]:
        with lock:
            latest = list(progress.improvements.values())[-_ROWS:]
        return [("  " + progress.label(each.operation), *each.texts) for each in latest]

    def line() -> str:
        with lock:
            return progress.line

    lines = ProgressLine(line, say=say, updates=False)
    if shows_live():
        from dispatch_profiler.console.terminal import live

        lines.close()  # the view has the same
        with live(heading, rows):
            yield listen
    else:
        with lines:
            yield listen
    _list_failures(progress)


def _list_failures(progress: SearchProgress) -> None:
    """Say how many candidates failed, with the most frequent reasons."""
    if not progress.failures:
        return
    say(f"{counted(sum(progress.failures.values()), 'candidate')} failed; the search went on without them:")
    common = progress.failures.most_common(_REASONS)
    rows = [(f"{count} x", reason) for reason, count in common]
    if more := len(progress.failures) - len(common):
        rows.append(("", f"and {counted(more, 'other reason')}: {RECORDS_FILE} has them all"))
    say_table(rows)

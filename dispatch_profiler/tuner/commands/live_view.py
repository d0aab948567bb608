"""Shows a search while it runs: on a terminal a view that is drawn again every second, elsewhere a line every 10 s."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dispatch_profiler.command import say, say_table, shows_live
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.operations.short_names import short_name
from dispatch_profiler.tuner.commands.arguments import RECORDS_FILE
from dispatch_profiler.tuner.search.events import Compiling, Event
from dispatch_profiler.tuner.search.progress import SearchProgress, announcement

#: Seconds between lines of a log.
LINE_SECONDS = 10.0
#: Improvements that a view shows, and reasons of failures that are listed at the end.
_ROWS, _REASONS = 8, 5


@contextmanager
def shown(progress: SearchProgress) -> Iterator[Callable[[Event], None]]:
    """Show `progress` while the block runs; it has a listener for the events of the search."""
    # Another thread draws while events arrive.
    lock = threading.Lock()
    begun = threading.Event()

    def listen(event: Event) -> None:
        with lock:
            progress.add(event)
        if text := announcement(event):
            say(text)
        if isinstance(event, Compiling):
            begun.set()

    def heading() -> Sequence[str]:
        with lock:
            return f"Searching {progress.phase}".rstrip(), f"  {progress.figures}"

    def rows() -> Sequence[Sequence[str]]:
        with lock:
            latest = list(progress.improvements.values())[-_ROWS:]
        return [("  " + short_name(each.operation), *each.texts) for each in latest]

    def line() -> str:
        with lock:
            return progress.line

    if shows_live():
        from dispatch_profiler.console.terminal import live

        with live(heading, rows):
            yield listen
    else:
        with _lines(line, begun):
            yield listen
    _list_failures(progress)


@contextmanager
def _lines(line: Callable[[], str], begun: threading.Event) -> Iterator[None]:
    """Print `line` when the search has `begun`, and then every `LINE_SECONDS`, until the block ends."""
    ended = threading.Event()

    def print_lines() -> None:
        begun.wait()
        while not ended.is_set():
            say(line())
            ended.wait(LINE_SECONDS)

    thread = threading.Thread(target=print_lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        begun.set()
        thread.join()


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

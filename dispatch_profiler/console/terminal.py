"""Terminal output with rich: a progress bar, a live view, and aligned columns.

Imported on demand, because profiling a bundle does not require rich.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from dispatch_profiler.console.streams import WIDEST, fold

Item = TypeVar("Item")
#: Width at which lines are not folded.
_UNFOLDED = 1000
#: The narrowest last column of a table.
_LEAST_LAST = 16
#: Blanks between columns, and the columns of a live view that are shown on any terminal.
_GAP, _FEWEST_COLUMNS = 2, 2


class _Note(TextColumn):
    """Text that is truncated on a narrow terminal, so that the count remains visible."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class _Left(ProgressColumn):
    """The remaining time, from an estimate more accurate than the rate of the last steps."""

    def __init__(self, left: Callable[[], str]) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._left = left

    def render(self, task: Task) -> Text:
        return Text("0:00:00" if task.finished else self._left(), style="progress.remaining")


def _console() -> Console:
    """Standard error, at most 120 columns wide."""
    console = Console(stderr=True)
    return console if console.width <= WIDEST else Console(stderr=True, width=WIDEST)


def bar(
    items: Iterable[Item],
    total: int,
    label: str,
    *,
    prints: bool,
    size: Callable[[Item], int],
    note: Callable[[], str],
    left: Callable[[], str] | None,
) -> Iterator[Item]:
    """Yield `items` with a progress bar on standard error. See `command.track` for the arguments."""
    columns = (
        TextColumn(label),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _Note("{task.fields[note]}", table_column=Column()),
        TimeRemainingColumn(table_column=Column(no_wrap=True)) if left is None else _Left(left),
    )
    hides = prints and sys.stdout.isatty()
    with Progress(
        *columns,
        console=_console(),
        transient=True,
        expand=True,
        refresh_per_second=2,  # drawing takes time from what is measured
        redirect_stdout=False,  # rich would send data to standard error
    ) as shown:
        task = shown.add_task(label, total=total, note=note())
        for item in items:
            if hides:
                shown.stop()
            yield item
            shown.update(task, advance=size(item), note=note())
            if hides:
                shown.start()


@contextmanager
def live(lines: Callable[[], Sequence[str]], rows: Callable[[], Sequence[Sequence[str]]]) -> Iterator[None]:
    """Show `lines`, and `rows` in aligned columns below, on standard error, and again every second, until the block ends.

    Each line is cut to the width of the terminal. The last columns of rows are left out where the first would be cut.
    What the block prints to standard error appears above.
    """
    console = _console()

    def view() -> Group:
        texts = [Text(each, no_wrap=True, overflow="ellipsis") for each in lines()]
        shown = fitting(rows(), console.width)
        columns = max(map(len, shown), default=1)
        ratios = [Column(no_wrap=True, overflow="ellipsis", ratio=None if at else 1) for at in range(columns)]
        table = Table.grid(*ratios, padding=(0, _GAP), expand=True)
        for row in shown:
            table.add_row(*map(Text, row))
        return Group(*texts, table)

    # Drawing takes time from what is measured.
    with Live(
        console=console, get_renderable=view, refresh_per_second=1, transient=True, redirect_stdout=False
    ):
        yield


def fitting(rows: Sequence[Sequence[str]], width: int) -> list[Sequence[str]]:
    """`rows` without the last columns that do not fit in `width`; the first two columns stay."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    while len(widths) > _FEWEST_COLUMNS and sum(widths) + _GAP * (len(widths) - 1) > width:
        widths.pop()
    return [row[: len(widths)] for row in rows]


def aligned(rows: Iterable[Sequence[str]], width: int | None) -> str:
    """Format rows as aligned columns; folds the last column to lines of `width` columns, unless None.

    If too little is left for the last column, each row is folded as a whole.
    """
    rows = [tuple(row) for row in rows]
    if width is not None and _is_too_narrow(rows, width):
        return fold("\n".join("  " + "  ".join(filter(None, row)) for row in rows), width)
    console = Console(stderr=True)
    # Reasons may contain [brackets], which are not markup.
    texts = [[Text(), *map(Text, row)] for row in rows]
    columns = max(map(len, texts), default=1)
    table = Table.grid(
        *(Column(no_wrap=True) for _ in range(columns - 1)), Column(overflow="fold"), padding=(0, 2)
    )
    for row in texts:
        table.add_row(*row)
    # Do not wrap lines that go to a file.
    console.width = _UNFOLDED if width is None else width
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _is_too_narrow(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether the last column would get neither `_LEAST_LAST` columns nor its full width."""
    count = max(map(len, rows), default=1)
    lasts = [len(row[-1]) for row in rows if len(row) == count]
    others = (max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(count - 1))
    return width - sum(2 + each for each in others) - 2 < min(_LEAST_LAST, max(lasts, default=0))

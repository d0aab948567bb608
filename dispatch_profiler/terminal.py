"""What is drawn on a terminal, by rich: a bar that counts, and aligned columns.

Imported only where something is drawn: a machine that profiles a bundle need not have rich.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
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

from dispatch_profiler.streams import WIDEST

Item = TypeVar("Item")
#: Columns of a line that is to stay whole.
_UNFOLDED = 1000


class _Note(TextColumn):
    """What a narrow terminal cuts short, so that the count stays whole."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class _Left(ProgressColumn):
    """The time left, from an estimate that is better than the rate of the last steps."""

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
    """`items`, with a bar on standard error while they last; arguments as `command.track` has them."""
    columns = (
        TextColumn(label),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _Note("{task.fields[note]}", table_column=Column()),
        TimeRemainingColumn(table_column=Column(no_wrap=True)) if left is None else _Left(left),
    )
    gives_way = prints and sys.stdout.isatty()
    with Progress(
        *columns,
        console=_console(),
        transient=True,
        expand=True,
        refresh_per_second=2,  # it takes time from what is measured
        redirect_stdout=False,  # which is for data: rich would send it to standard error
    ) as shown:
        task = shown.add_task(label, total=total, note=note())
        for item in items:
            if gives_way:
                shown.stop()
            yield item
            shown.update(task, advance=size(item), note=note())
            if gives_way:
                shown.start()


def aligned(rows: Iterable[Sequence[str]], width: int | None) -> str:
    """Rows as aligned columns; the last one is folded to lines of `width` columns, unless that is None."""
    console = Console(stderr=True)
    # A reason may hold [brackets], which are no markup.
    texts = [[Text(), *map(Text, row)] for row in rows]
    columns = max(map(len, texts), default=1)
    table = Table.grid(
        *(Column(no_wrap=True) for _ in range(columns - 1)), Column(overflow="fold"), padding=(0, 2)
    )
    for row in texts:
        table.add_row(*row)
    # A file has no width: do not wrap its lines.
    console.width = _UNFOLDED if width is None else width
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())

"""Output of `compile.py`: a line for each module or a progress bar, then a summary."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dispatch_profiler.command import FAILED, SUCCESS, line_width, on_terminal, say, track, warn_table
from dispatch_profiler.compiler._base import TRUST
from dispatch_profiler.compiler.tree import Progress
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.remaining_time import RemainingTime, time_text
from dispatch_profiler.dispatches import DispatchEntry, State

#: Maximum failure reasons in the summary.
_REASONS = 10
#: Maximum reasons in the summary that --retry may resolve.
_RETRIED = 3
#: Minimum columns for the name of an operation.
_SHORTEST_NAME = 12


@dataclass
class CompileTally:
    """Counts the outcomes of `total` dispatches; `clock` returns seconds."""

    total: int
    clock: Callable[[], float] = time.monotonic
    entries: list[DispatchEntry] = field(default_factory=list)
    kept: int = 0
    cached: int = 0

    #: In halves of dispatches: a dispatch that is being compiled counts as half done.
    _remaining: RemainingTime = field(init=False)

    def __post_init__(self) -> None:
        self._remaining = RemainingTime([None] * (2 * self.total), self.clock())

    def add(self, done: Progress) -> None:
        """Count a finished module."""
        count = len(done.entries)
        self.entries.extend(done.entries)
        self.kept += count if done.kept else 0
        self.cached += count if done.cached else 0
        half_done = 2 * self.compiled + done.in_flight if self.compiled else 0
        self._remaining.advance(half_done, 2 * (self.kept + self.cached), self.clock())

    @property
    def failed(self) -> list[DispatchEntry]:
        return [entry for entry in self.entries if entry.state is not State.COMPILED]

    @property
    def compiled(self) -> int:
        """Dispatches that were neither up to date nor cached."""
        return len(self.entries) - self.kept - self.cached

    @property
    def rate(self) -> float:
        """Compiled dispatches per second, without dispatches that were up to date or cached."""
        return self.compiled / max(1e-3, self.clock() - self._remaining.started)

    def note(self) -> str:
        """Text beside the progress bar."""
        return f"{len(self.failed)} failed, {self.cached} cached, {self.rate:.1f}/s"

    def left(self) -> str:
        """`0:01:30`; `-:--:--` without an estimate."""
        return time_text(self._remaining.left(self.clock()))

    def line(self, done: Progress, width: int | None) -> str:
        """The outcome of one module; the operation's name is shortened to fit into `width` columns."""
        states = Counter(entry.state for entry in done.entries)
        counts = ", ".join(f"{count} {state.value}" for state, count in states.items())
        flow = f" ({done.module})" if done.module else ""
        where = f"{len(self.entries)} of {self.total}, {self.rate:.1f}/s, {self.left()} left"
        before, after = "[Compiling]: ", f"{flow}: {counts}  [{where}]"
        room = None if width is None else max(_SHORTEST_NAME, width - len(before) - len(after))
        return f"{before}{_shortened(done.operation.name, room)}{after}"


def _shortened(name: str, room: int | None) -> str:
    """`conv2d_1x56x56...p1x1_d1x1_g1`: keeps both ends, where names differ."""
    if room is None or len(name) <= room:
        return name
    head = (room - 2) // 2
    return f"{name[:head]}...{name[len(name) - (room - 3 - head) :]}"


def report(results: Iterable[Progress], tally: CompileTally) -> int:
    """Print `results` as they come, then the summary; returns the exit status."""
    shows_bar = on_terminal()
    tracked = track(
        results, tally.total, "Compiling", size=lambda p: len(p.entries), note=tally.note, left=tally.left
    )
    try:
        for done in tracked:
            tally.add(done)
            is_new = not (done.kept or done.cached)
            # With a progress bar, only failures need a line.
            if is_new and not (shows_bar and all(e.state is State.COMPILED for e in done.entries)):
                say(tally.line(done, line_width()))
    except KeyboardInterrupt:
        say(f"done: {len(tally.entries)} of {counted(tally.total, 'dispatch')}")
        raise
    return _summarize(tally)


def _summarize(tally: CompileTally) -> int:
    states = Counter(entry.state for entry in tally.entries)
    counts = ", ".join(f"{states[state]} {state.value}" for state in State if states[state])
    from_cache = f", {tally.cached} from the cache" if tally.cached else ""
    count = counted(tally.total, "dispatch")
    say(f"{count}: {counts}; {tally.kept} {'was' if tally.kept == 1 else 'were'} up to date{from_cache}")
    if not tally.failed:
        return SUCCESS
    reasons = Counter((entry.state.value, entry.reason) for entry in tally.failed)
    warn_table((f"{n} x", state, reason) for (state, reason), n in reasons.most_common(_REASONS))
    if len(reasons) > _REASONS:
        others = counted(len(reasons) - _REASONS, "other reason")
        say(f"and {others}; manifest.json holds the reason of each dispatch")
    again: dict[str, Counter[str]] = {"--trust": Counter(), "--retry": Counter(), "the next run": Counter()}
    for entry in tally.failed:
        if entry.is_transient:
            again[_tried_again_by(entry)][entry.reason] += 1
    for who, failed in again.items():
        if failed:
            _say_wrapped(f"{who} compiles {failed.total()} of these again: {_most_frequent(failed)}")
    return FAILED


def _tried_again_by(entry: DispatchEntry) -> str:
    """The option, or the run, that compiles a failed dispatch again."""
    if TRUST in entry.reason:
        return "--trust"
    return "the next run" if entry.is_tried_again else "--retry"


def _say_wrapped(text: str) -> None:
    width = line_width()
    say(text if width is None else textwrap.fill(text, width, subsequent_indent="  "))


def _most_frequent(reasons: Counter[str]) -> str:
    """`2 x killed by SIGABRT; 1 x ...`, the most frequent first."""
    listed = [f"{count} x {reason}" for reason, count in reasons.most_common(_RETRIED)]
    more = len(reasons) - len(listed)
    return "; ".join([*listed, *([counted(more, "other reason")] if more else [])])

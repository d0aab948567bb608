"""What a search has done so far, from its events: for a live view on a terminal, and for lines in a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.console.remaining_time import time_text
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.short_names import label
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.search.events import (
    Compiling,
    DeviceJoined,
    DeviceLost,
    Evaluated,
    Event,
    Following,
    Measuring,
    Resumed,
    SearchEnded,
    Sharing,
    Warned,
)
from dispatch_profiler.tuner.search.operation_search import ROUND_SIZE
from dispatch_profiler.tuner.search.remaining_rounds import RemainingRounds

#: After how many evaluations searches of the recorded sweeps in `benchmarks/sweeps` expect less than 2 % more.
_USUAL_ENDS = (16, 24, 24, 24, 24, 32, 32, 32, 32, 32, 40)


def _usual_end(done: int) -> int:
    """After how many evaluations a search usually ends that has done so many. It ends with a round."""
    least = -(-done // ROUND_SIZE) * ROUND_SIZE
    later = [each for each in _USUAL_ENDS if each >= least]
    return round(sum(later) / len(later)) if later else least


@dataclass(frozen=True)
class Improvement:
    """The fastest evaluation of an operation so far, as a row of a live view."""

    operation: Operation
    milliseconds: float
    configuration: str
    #: How many times as fast as the compiler's default; None for the default itself, and where it has no time.
    speedup: float | None
    fraction_of_peak: float | None

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """`("0.685 ms", "28.3x the default", "39 % of the peak", "tile_config_64x64_8x32x1")`; unknown ones are empty."""
        speedup = "" if self.speedup is None else f"{self.speedup:.3g}x the default"
        part = "" if self.fraction_of_peak is None else f"{100.0 * self.fraction_of_peak:.0f} % of the peak"
        return f"{self.milliseconds:.4g} ms", speedup, part, self.configuration


class SearchProgress:
    """Counts what the events of searches report. `clock` returns seconds.

    `budgets` has the evaluations of each operation, None without a limit; a search takes at most `seconds`, and
    `ends_early` if it ends when little more is expected. `modules` has the paths in the model that each operation is from.
    """

    def __init__(
        self,
        budgets: Mapping[Operation, int | None],
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        modules: Mapping[Operation, Sequence[str]] | None = None,
        *,
        ends_early: bool = False,
    ) -> None:
        self._budgets = dict(budgets)
        self._done = dict.fromkeys(budgets, 0)
        self._seconds, self._clock = seconds, clock
        self._modules = modules or {}
        self._start = clock()
        self._ends_early = ends_early
        #: Operations whose searches are done.
        self._ended: set[Operation] = set()
        self._rounds = RemainingRounds()
        self._best: dict[Operation, Evaluation] = {}
        #: What is done now: `round 2: measuring 16 candidates`.
        self.phase = ""
        #: The fastest of each operation so far, the latest last.
        self.improvements: dict[Operation, Improvement] = {}
        #: Why candidates failed.
        self.failures: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Compiling):
            self._rounds.compile(event.candidates, self._clock())
            of = counted(event.operations, "operation")
            self.phase = f"round {event.round}: compiling {counted(event.candidates, 'candidate')} of {of}"
        elif isinstance(event, Measuring):
            self._rounds.measure(self._clock())
            self.phase = f"round {event.round}: measuring {counted(event.candidates, 'candidate')}"
        elif isinstance(event, Resumed):
            self._done[event.operation] = event.evaluations
        elif isinstance(event, Following):
            self._budgets[event.operation] = event.candidates
        elif isinstance(event, Evaluated):
            self._add_evaluated(event)
        elif isinstance(event, SearchEnded):
            self._ended.add(event.operation)

    def _add_evaluated(self, event: Evaluated) -> None:
        operation, best = event.evaluation.dispatch.operation, event.best
        self._rounds.evaluated(self._clock())
        self._done[operation] = event.done
        if reason := event.evaluation.reason:
            self.failures[reason] += 1
        if best is None or best.milliseconds is None or best == self._best.get(operation):
            return
        self._best[operation] = best
        self.improvements.pop(operation, None)
        speedup = event.speedup if best != event.default else None
        self.improvements[operation] = Improvement(
            operation, best.milliseconds, best.configuration.name, speedup, event.fraction_of_peak
        )

    @property
    def rate(self) -> float | None:
        """Candidates per second of this run; None before the first."""
        return self._rounds.rate(self._clock())

    @property
    def total(self) -> int | None:
        """Candidates of all operations at most, also of earlier runs; None if one of them has no limit."""
        known = [each for each in self._budgets.values() if each is not None]
        return sum(known) if len(known) == len(self._budgets) else None

    @property
    def done(self) -> int:
        """Candidates whose outcomes are known, also of earlier runs."""
        return sum(self._done.values())

    @property
    def seconds_left(self) -> float | None:
        """How long the search is likely to take; None while unknown."""
        now = self._clock()
        limit = None if self._seconds is None else max(0.0, self._seconds - (now - self._start))
        expected = self._expected
        rest = None if expected is None else self._rounds.left(expected, now)
        return limit if rest is None else rest if limit is None else min(rest, limit)

    @property
    def _expected(self) -> int | None:
        """How many more candidates are likely to be evaluated; None if a search has no limit and does not end early."""
        count = 0
        for operation, budget in self._budgets.items():
            if operation in self._ended:
                continue
            done = self._done[operation]
            limits = [] if budget is None else [budget]
            if self._ends_early:
                limits.append(_usual_end(done))
            if not limits:
                return None
            count += max(0, min(limits) - done)
        return count

    @property
    def figures(self) -> str:
        """`34 of at most 192 candidates, 1.2 a second, about 0:02:12 left, 3 failed`"""
        limit = self.total
        parts = [
            counted(self.done, "candidate") if limit is None else f"{self.done} of at most {limit} candidates"
        ]
        if self.rate is not None:
            parts.append(f"{self.rate:.2g} a second")
        if self.seconds_left is not None:
            parts.append(f"about {time_text(self.seconds_left)} left")
        if self.failures:
            parts.append(f"{sum(self.failures.values())} failed")
        return ", ".join(parts)

    def label(self, operation: Operation) -> str:
        """What people call an operation: its short name, and modules of the model that compute it."""
        return label(operation, self._modules.get(operation, ()))

    @property
    def line(self) -> str:
        """A line of a log: the phase, the figures, and the latest improvement."""
        latest = next(reversed(self.improvements.values()), None)
        best = (
            ""
            if latest is None
            else f"; {self.label(latest.operation)}: {', '.join(filter(None, latest.texts[:3]))}"
        )
        return f"[Searching]: {self.phase}; {self.figures}{best}"


def announcement(event: Event) -> str:
    """The line of an event that is shown at once, wherever the search is; empty for others."""
    if isinstance(event, Sharing):
        return _sharing(event)
    if isinstance(event, DeviceLost):
        return f"{event.device} failed ({event.reason}); its operations continue on the other devices"
    if isinstance(event, DeviceJoined):
        return f"{event.device} takes part"
    return event.message if isinstance(event, Warned) else ""


def _sharing(event: Sharing) -> str:
    """`[Devices]: cuda://0, cuda://1 share 12 operations; left out, because it is unlike the first: cuda://2`"""
    devices, others = ", ".join(event.devices), ", ".join(event.left_out)
    text = f"{devices} share {counted(event.operations, 'operation')}" if len(event.devices) > 1 else devices
    left_out = f"; unlike {event.devices[0]}, and therefore not used: {others} (--devices names others)"
    return f"[Devices]: {text}{left_out if others else ''}"

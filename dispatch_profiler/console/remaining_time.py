"""An estimate of the remaining time of a run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta

#: Initial guess of a reference's FLOP/s, and its weight relative to one cycle.
_REFERENCE_RATE, _PRIOR_WEIGHT = 20e9, 0.3


class RemainingTime:
    """Estimates the remaining time of a run from the times at which its dispatches begin and finish.

    `references` has the work of each dispatch's reference in FLOP, in order, or None if an earlier dispatch
    of the same operation has computed it. Several dispatches begin before the first of them finishes;
    together they form a cycle. A cycle costs a time per dispatch plus a time per FLOP of its references. The
    latter follows from the extra time to begin a dispatch with a reference, compared with a dispatch without;
    if no cycle has both, both costs are fitted to the finished cycles.
    """

    def __init__(self, references: Sequence[float | None], started: float) -> None:
        self._references = references
        #: FLOP of the references before each dispatch.
        self._flops_before = [0.0, *itertools.accumulate(each or 0.0 for each in references)]
        #: Start of the run; times are in seconds of any one clock.
        self.started = started
        self._cycle_started = started
        self._begun: list[float] = []
        self._done = self._closed = 0
        #: For each cycle: FLOP of its reference, dispatches, seconds.
        self._cycles: list[tuple[float, int, float]] = []
        #: Totals over references that were timed by how much later the second dispatch of a cycle began.
        self._reference_flops = self._reference_seconds = 0.0

    def begin(self, now: float) -> None:
        """The next dispatch begins at time `now`, in seconds."""
        self._begun.append(now)

    def finish(self, now: float) -> None:
        """The next dispatch finished at time `now`, in seconds."""
        self._done += 1
        if self._done > self._closed:
            size = self._cycle_size()
            flops = self._flops(self._closed, self._closed + size)
            self._cycles.append((flops, size, now - self._cycle_started))
            self._learn_references(self._closed, size)
            self._closed += size
        self._cycle_started = now

    def advance(self, done: int, skipped: int, now: float) -> None:
        """Note that `done` dispatches without references took the time until `now`, and `skipped` others none.

        For work that overlaps, as in several processes: there, no dispatch waits for the one before. The run starts
        with the first dispatch that is not skipped.
        """
        if not done:
            self.started = now
            return
        self._cycles = [(0.0, done, now - self.started)]
        self._closed, self._cycle_started = skipped + done, now

    def left(self, now: float) -> float | None:
        """Seconds from `now` to the end of the run; None before the first dispatch finishes."""
        if not self._cycles:
            return None
        per_flop, per_dispatch = self._costs()
        total = len(self._references)

        def cost(first: int) -> float:
            return per_flop * self._flops(first, total) + per_dispatch * max(0, total - first)

        after = max(self._closed, min(len(self._begun), total))
        return max(cost(self._closed) - (now - self._cycle_started), cost(after), 0.0)

    def _cycle_size(self) -> int:
        """Dispatches that have begun since the last cycle; at least one."""
        begun, total = len(self._begun), len(self._references)
        # The first dispatch of the next operation has begun too: only then is the cycle known to be complete.
        is_ahead = begun < total and self._references[begun - 1] is not None
        return max(1, min(begun, total) - self._closed - is_ahead)

    def _learn_references(self, first: int, size: int) -> None:
        """Compare how long dispatches with and without a reference took to begin, in the cycle from `first`."""
        times = [self._cycle_started, *self._begun[first + 1 : first + size]]
        took = [after - before for before, after in itertools.pairwise(times)]
        flops = self._references[first : first + len(took)]
        usual = [seconds for seconds, each in zip(took, flops, strict=True) if each is None]
        others = [seconds for seconds, each in zip(took, flops, strict=True) if each is not None]
        if usual and others:
            self._reference_flops += sum(filter(None, flops))
            excess = sum(others) - len(others) * sum(usual) / len(usual)
            self._reference_seconds += max(0.0, excess)

    def _flops(self, first: int, last: int) -> float:
        total = len(self._references)
        return self._flops_before[min(last, total)] - self._flops_before[min(first, total)]

    def _costs(self) -> tuple[float, float]:
        """Seconds per FLOP and per dispatch: non-negative least squares of relative errors."""
        flops, count, seconds = (sum(column) for column in zip(*self._cycles, strict=True))
        if seconds <= 0.0:
            return 0.0, 0.0
        if self._reference_flops:
            per_flop = self._reference_seconds / self._reference_flops
            return per_flop, max(0.0, seconds - per_flop * flops) / count
        a_a = a_b = b_b = a_t = b_t = 0.0
        for cycle in self._cycles:
            scale = max(cycle[2], 1e-3 * seconds)
            a, b, t = (value / scale for value in cycle)
            a_a, a_b, b_b, a_t, b_t = a_a + a * a, a_b + a * b, b_b + b * b, a_t + a * t, b_t + b * t
        a_a += _PRIOR_WEIGHT * _REFERENCE_RATE**2
        a_t += _PRIOR_WEIGHT * _REFERENCE_RATE
        determinant = a_a * b_b - a_b * a_b
        per_flop = (a_t * b_b - a_b * b_t) / determinant if determinant > 0.0 else 0.0
        per_dispatch = (a_a * b_t - a_b * a_t) / determinant if determinant > 0.0 else seconds / count
        if per_flop < 0.0:
            return 0.0, seconds / count
        if per_dispatch < 0.0:
            return seconds / flops, 0.0
        return per_flop, per_dispatch


def time_text(seconds: float | None) -> str:
    """`0:01:30`; `-:--:--` if unknown."""
    return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))

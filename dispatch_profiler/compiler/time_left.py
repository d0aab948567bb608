"""The remaining time of a compilation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TimeLeft:
    """An estimate from the dispatches compiled so far; times in seconds of any one clock.

    total     number of dispatches
    started   start of the first module

    Modules in flight count as half done. Dispatches that are up to date or cached come first and take no
    time. Modules are compiled in an order whose beginnings represent all of them (see `representative`).
    """

    total: int
    started: float

    skipped: int = 0
    compiled: int = 0
    in_flight: int = 0

    def skip(self, dispatches: int, now: float) -> None:
        """`dispatches` need not be compiled."""
        self.skipped += dispatches
        if not self.compiled:
            self.started = now

    def finish(self, dispatches: int, in_flight: int) -> None:
        """A module of `dispatches` has been compiled; `in_flight` dispatches are being compiled."""
        self.compiled += dispatches
        self.in_flight = in_flight

    def seconds(self, now: float) -> float | None:
        """Seconds from `now` to the end; None before the first module is compiled."""
        if not self.compiled:
            return None
        half_done = self.in_flight / 2
        left = self.total - self.skipped - self.compiled - half_done
        return (now - self.started) * left / (self.compiled + half_done)


def representative(count: int) -> list[int]:
    """The numbers below `count`, ordered so that the first few are spread evenly over the range.

    They follow multiples of the golden ratio modulo 1: `representative(5)` -> [0, 2, 4, 1, 3]
    """
    golden = (5**0.5 - 1) / 2
    return sorted(range(count), key=lambda i: i * golden % 1)

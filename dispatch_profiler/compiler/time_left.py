"""How long a compilation still takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TimeLeft:
    """An estimate from the dispatches compiled so far; times in seconds of any one clock.

    total     dispatches in all
    started   when the first module was begun

    Modules in flight count as half done. What is up to date or comes from the cache takes no time,
    and comes first. Modules are compiled in an order of which every part is like the whole
    (see `representative`).
    """

    total: int
    started: float

    spared: int = 0
    compiled: int = 0
    in_flight: int = 0

    def spare(self, dispatches: int, now: float) -> None:
        """`dispatches` need not be compiled."""
        self.spared += dispatches
        if not self.compiled:
            self.started = now

    def finish(self, dispatches: int, in_flight: int) -> None:
        """One more module of `dispatches` is compiled; modules of `in_flight` are being compiled."""
        self.compiled += dispatches
        self.in_flight = in_flight

    def seconds(self, now: float) -> float | None:
        """Seconds from `now` to the end; None before the first module is compiled."""
        if not self.compiled:
            return None
        half_done = self.in_flight / 2
        left = self.total - self.spared - self.compiled - half_done
        return (now - self.started) * left / (self.compiled + half_done)


def representative(count: int) -> list[int]:
    """The numbers below `count` in an order whose beginnings are spread evenly over all of them.

    By multiples of the golden ratio, modulo 1: `representative(5)` -> [0, 2, 4, 1, 3]
    """
    golden = (5**0.5 - 1) / 2
    return sorted(range(count), key=lambda i: i * golden % 1)

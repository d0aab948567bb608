"""How long a search will still take, from how long its rounds took to compile and to measure."""

from __future__ import annotations

#: The part of the time to compile a candidate that measuring one takes, until one was measured.
_LIKELY_PART = 0.3


class RemainingRounds:
    """Learns the seconds to compile and to measure a candidate from the events of rounds. Times are of any one clock.

    A round is compiled, then measured. Where rounds of several operations overlap, as on GPUs, candidates per second are
    all that is known.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        #: When the current phase began, or its last candidate was measured.
        self._since = 0.0
        self._is_compiling = self._overlaps = False
        #: Candidates of the round that are not evaluated yet.
        self._open = 0
        self._compiled = self._measured = 0
        self._compiling_seconds = self._measuring_seconds = 0.0

    def compile(self, candidates: int, now: float) -> None:
        """A round begins."""
        self._began = now if self._began is None else self._began
        self._overlaps = self._overlaps or self._is_compiling or self._open > 0
        self._is_compiling, self._open, self._since = True, candidates, now

    def measure(self, now: float) -> None:
        """The round is compiled."""
        if self._is_compiling:
            self._compiling_seconds += now - self._since
            self._compiled += self._open
        self._is_compiling, self._since = False, now

    def evaluated(self, now: float) -> None:
        """The outcome of a candidate is known."""
        self._measuring_seconds += now - self._since
        self._measured += 1
        self._open, self._since = max(0, self._open - 1), now

    def rate(self, now: float) -> float | None:
        """Candidates per second; None before the first."""
        if self._began is None or not self._measured:
            return None
        return self._measured / max(1e-9, now - self._began)

    def left(self, candidates: int, now: float) -> float | None:
        """Seconds until `candidates` more are evaluated; None while unknown."""
        rate = self.rate(now)
        if self._overlaps or not self._compiled:
            return None if rate is None else candidates / rate
        compiling = self._compiling_seconds / self._compiled
        measuring = self._measuring_seconds / self._measured if self._measured else _LIKELY_PART * compiling
        current = self._open * ((compiling if self._is_compiling else 0.0) + measuring)
        later = max(0, candidates - self._open) * (compiling + measuring)
        return max(0.0, current - (now - self._since)) + later

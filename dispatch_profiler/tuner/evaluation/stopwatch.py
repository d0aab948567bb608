"""Where the time of a search goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class SearchPhase(str, Enum):
    """What a search does at a time."""

    COMPILING = "compiling"
    MEASURING = "measuring"
    OTHER = "other"


@dataclass(frozen=True)
class Times:
    """Seconds that a search spent compiling, verifying and measuring, and with everything else."""

    compiling: float = 0.0
    measuring: float = 0.0
    other: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(
            self.compiling + other.compiling, self.measuring + other.measuring, self.other + other.other
        )

    @property
    def total(self) -> float:
        return self.compiling + self.measuring + self.other

    @property
    def overhead(self) -> float:
        """The fraction of the time spent neither compiling nor measuring."""
        return self.other / self.total if self.total > 0.0 else 0.0


class Stopwatch:
    """Attributes time to phases. Starts with `OTHER`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase = SearchPhase.OTHER
        self._since = clock()
        self._seconds = dict.fromkeys(SearchPhase, 0.0)

    def switch(self, phase: SearchPhase) -> float:
        """Begin `phase`. Returns the seconds since the last switch."""
        now = self._clock()
        passed, self._since = now - self._since, now
        self._seconds[self._phase] += passed
        self._phase = phase
        return passed

    @property
    def times(self) -> Times:
        """The seconds of each phase so far."""
        self.switch(self._phase)
        return Times(**{phase.value: seconds for phase, seconds in self._seconds.items()})

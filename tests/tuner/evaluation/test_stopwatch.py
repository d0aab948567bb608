"""Time is attributed to what a search does at the moment."""

from __future__ import annotations

import pytest

from dispatch_profiler.tuner.evaluation.stopwatch import SearchPhase, Stopwatch, Times


def test_each_second_counts_for_one_phase():
    now = [10.0]
    watch = Stopwatch(lambda: now[0])
    for seconds, phase in (
        (1, SearchPhase.COMPILING),
        (4, SearchPhase.OTHER),
        (2, SearchPhase.MEASURING),
        (8, SearchPhase.OTHER),
    ):
        now[0] += seconds
        assert watch.switch(phase) == seconds
    now[0] += 1
    assert watch.times == Times(compiling=4.0, measuring=8.0, other=4.0)
    assert watch.times.total == 16.0 and watch.times.overhead == pytest.approx(0.25)


def test_no_time_has_no_overhead():
    assert Times().overhead == 0.0

"""Seconds of calls: the loop with which kernels, libraries and launches are timed, on both sides of a comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def seconds_of(
    call: Callable[..., object],
    turns: Iterable[Iterable[Any]] = ((),),
    now: Callable[[], float] = time.perf_counter,
    wait: Callable[[], object] | None = None,
) -> float:
    """Seconds of one call of `call` with each of `turns`, which are its arguments, one after another, and of `wait` behind them."""
    start = now()
    for arguments in turns:
        call(*arguments)
    if wait is not None:
        wait()
    return now() - start


def alternating(timers: Sequence[Callable[[], float]], rounds: int, budget: float) -> list[list[float]]:
    """What each of `timers` returns in each round, of which none begins after `budget` seconds."""
    taken: list[list[float]] = [[] for _ in timers]
    end = time.perf_counter() + budget
    for _ in range(rounds):
        for seconds, timer in zip(taken, timers, strict=True):
            seconds.append(timer())
        if time.perf_counter() > end:
            break
    return taken

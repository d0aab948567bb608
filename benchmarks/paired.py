#!/usr/bin/env python3
"""Noisy hours, simulated: how often a comparison finds 3 % more work in 10 s, how often the same work, and how well a
search knows a time, and abandons a candidate that is faster than the best.

Another process takes the core, for milliseconds at a time. Long samples that are repeated while they are disturbed, as
paired sampling took them before, are compared with many short samples. Both are fed to `SequentialTest`. A search takes
sample batches and ends as in `tune`. The random numbers have seeds, so the figures do not depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, at_least, at_most, exit_with, report
from dispatch_profiler.profiler.measurement.measure import Measurement, Timer
from dispatch_profiler.profiler.measurement.sample_batches import SampleBatch, next_batch, progress, take
from dispatch_profiler.profiler.statistics.comparison import (
    Outcome,
    SequentialTest,
    SequentialTestOptions,
    Side,
)
from dispatch_profiler.profiler.statistics.stopping import Ended
from dispatch_profiler.tuner.search.search import SEARCH_MEASURE

#: Milliseconds of a comparison, and of placing both sides anew.
BUDGET, PLACING = 10_000.0, 10.0
#: Relative deviations of the place in memory, which a round shares, and of a sample.
PLACE, JITTER = 0.01, 0.005
MORE_WORK = 1.03


@dataclass(frozen=True)
class Noise:
    """Mean milliseconds for which the process has the core, and for which another one has it, in turn."""

    name: str
    own: float
    other: float


NOISE = (Noise("quiet", 1e6, 0.0), Noise("one other process", 4.0, 4.0), Noise("three others", 3.0, 9.0))


@dataclass(frozen=True)
class Plan:
    """How a round is sampled: `milliseconds` of work in a sample, and how often one is taken until it is undisturbed."""

    name: str
    milliseconds: float
    turns: int
    tries: int


BEFORE, NOW = Plan("before", 15.0, 2, 5), Plan("now", 0.5, 4, 1)


class Machine:
    """The time by the clock of a process that shares its core."""

    def __init__(self, noise: Noise, rng: np.random.Generator) -> None:
        count = 2 + int(4.0 * BUDGET / max(noise.own, 1.0))
        #: Work that is done when another process takes the core, and for how long it has had the core until then.
        self._ends = np.cumsum(rng.exponential(noise.own, count))
        self._waited = np.concatenate([[0.0], np.cumsum(rng.exponential(max(noise.other, 1e-9), count))])
        self._done = 0.0

    @property
    def now(self) -> float:
        """Milliseconds since the start."""
        return self._done + self.waited

    @property
    def waited(self) -> float:
        """Milliseconds for which another process had the core."""
        return float(self._waited[np.searchsorted(self._ends, self._done)])

    def run(self, work: float) -> float:
        """The milliseconds that `work` takes."""
        before = self.now
        self._done += work
        return self.now - before


def sampled(machine: Machine, plan: Plan, effect: float, rng: np.random.Generator) -> Iterator[Outcome]:
    """The outcome after each round that fits into the time."""
    rule = SequentialTest(SequentialTestOptions(turns=plan.turns, seed=int(rng.integers(2**31))))
    while machine.now < BUDGET and not rule.finished:
        machine.run(PLACING)
        place = {Side.BASE: 1.0, Side.NEW: effect}
        place = {side: each * np.exp(PLACE * rng.standard_normal()) for side, each in place.items()}
        times = []
        for side in rule.order:
            for _ in range(plan.tries):
                work = plan.milliseconds * place[side] * np.exp(JITTER * rng.standard_normal())
                taken = machine.run(work)
                if taken - work <= 0.03 * taken + 0.05:
                    break
            times.append(taken)
        rule.add(times)
        yield rule.result().outcome


def called(noise: Noise, plan: Plan, effect: float, count: int) -> float:
    """The percentage of comparisons that call new faster or slower."""
    found = 0
    for seed in range(count):
        rng = np.random.default_rng([seed, 1])
        *_, last = sampled(Machine(noise, rng), plan, effect, rng)
        found += last in (Outcome.FASTER, Outcome.SLOWER)
    return 100.0 * found / count


#: Milliseconds of a call of a candidate, and of the other candidates between two of its sample batches.
CALL, OTHERS = 0.7, 60.0
#: The lowest decile of the best candidate, whose calls last as long.
BEST = 0.985 * CALL


def searched(noise: Noise, effect: float, best: float | None, seed: int) -> Measurement:
    """What a search measures of a candidate whose calls last `effect` times `CALL`."""
    rng = np.random.default_rng([seed, 2])
    machine, place = Machine(noise, rng), 1.0

    def moved() -> int:
        nonlocal place
        place = effect * float(np.exp(PLACE * rng.standard_normal()))
        timed(1)
        return len(batches)

    def timed(calls: int) -> float:
        return 1e-3 * machine.run(calls * CALL * place * float(np.exp(JITTER * rng.standard_normal())))

    timer = Timer(timed, 1, run_delay=lambda: 1e-3 * machine.waited, prepare=moved)
    batches: list[SampleBatch] = []
    while True:
        machine.run(OTHERS)
        plan = next_batch(SEARCH_MEASURE, batches, best)
        batches.append(take(timer, plan, lambda: 1e-3 * machine.now))
        found, end = progress(SEARCH_MEASURE, batches, best)
        if end is not None:
            return found


def known(noise: Noise, count: int) -> float:
    """The percentage of times of a search that are within 5 % of the time on a quiet machine."""
    found = [searched(noise, 1.0, None, seed).p10_ms / CALL for seed in range(count)]
    return 100.0 * sum(abs(each - 1.0) <= 0.05 for each in found) / count


def abandoned(noise: Noise, count: int) -> float:
    """The percentage of candidates, 3 % faster than the best, that a search abandons."""
    found = [searched(noise, 0.97, BEST, seed).ended_by for seed in range(count)]
    return 100.0 * found.count(Ended.ABANDONED.value) / count


def main() -> int:
    """Simulate and print; the exit status is 1 if a goal was missed."""
    options = arguments(__doc__ or "")
    found, alarms = (20, 100) if options.quick else (100, 400)
    rows = []
    for noise in NOISE:
        for plan in (BEFORE, NOW):
            name = f"{noise.name}, {plan.name}: 3 % more work found in 10 s"
            share = called(noise, plan, MORE_WORK, found)
            rows.append(
                at_least(name, share, "%", 75.0) if plan is NOW else Row(name, share, "%", "any", True)
            )
        same = called(noise, NOW, 1.0, alarms)
        rows.append(at_most(f"{noise.name}, now: the same work called different", same, "%", 2.0))
        rows.append(at_least(f"{noise.name}: a search knows a time to 5 %", known(noise, found), "%", 95.0))
        name = f"{noise.name}: a search abandons a candidate that is 3 % faster than the best"
        rows.append(at_most(name, abandoned(noise, alarms), "%", 1.0))
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)

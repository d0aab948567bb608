"""How many configurations of each problem a search evaluates if its time is limited.

A problem has more evaluations if it takes a larger part of the workload, which is not known before it is measured: the
work of its operation stands for it. Twice the work has 1.4 times the evaluations, because the first evaluations of a
problem gain the most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dispatch_profiler.operations import Operation
from dispatch_profiler.tuner.tunings.tuning_file import DEFAULT_EVALUATIONS, Tuning

#: Evaluations a second on one core, and how they grow with the cores: 1.0 on 2 cores, 4.2 on 16.
_RATE, _GROWTH = 0.62, 0.69
#: FLOP in the time of a byte that is read or written once.
_FLOPS_OF_BYTE = 8.0
#: The compiler's default, the fastest known form, and the kernels that rules expect to be the fastest: with fewer, a problem
#: is better left to the rules.
_LEAST = 4


@dataclass(frozen=True)
class Allotted:
    """Tunings with the evaluations that fit into the time, in their order, and those for which no time is left."""

    tunings: tuple[Tuning, ...]
    left_out: tuple[Tuning, ...] = ()


def allotted(tunings: Sequence[Tuning], seconds: float, cores: int) -> Allotted:
    """Divide the evaluations that `cores` do in `seconds` among `tunings`, which keep their own limits.

    The problems with the least work are left out if each of the others would have too few. At least one remains.
    """
    total = _RATE * cores**_GROWTH * seconds
    by_work = sorted(range(len(tunings)), key=lambda at: _work(tunings[at]), reverse=True)
    searched = by_work[: max(1, math.floor(total / _LEAST))]
    roots = {at: math.sqrt(_work(tunings[at])) for at in searched}
    spare = max(0.0, total - _LEAST * len(searched)) / sum(roots.values())
    counts = {at: _LEAST + math.floor(spare * root) for at, root in roots.items()}
    return Allotted(
        tuple(_limited(tunings[at], counts[at]) for at in sorted(searched)),
        tuple(tunings[at] for at in sorted(by_work[len(searched) :])),
    )


def work_of(operation: Operation) -> float:
    """What stands for the time of an operation that was not measured, in FLOP."""
    return operation.flops + _FLOPS_OF_BYTE * operation.bytes


def _work(tuning: Tuning) -> float:
    return max(1, tuning.count) * work_of(tuning.operation)


def _limited(tuning: Tuning, count: int) -> Tuning:
    most = DEFAULT_EVALUATIONS if tuning.evaluations is None else tuning.evaluations
    return replace(tuning, evaluations=min(count, most))

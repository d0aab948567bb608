"""Times several functions that compute the same, in rounds.

The speed of a machine may change by a factor of 2 within seconds, especially of a virtual machine. So only times of the
same round are compared. A round is short and calls the functions in random order. A function is abandoned only if the
ratios of many rounds leave no doubt that it is slower.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat

from dispatch_profiler.runtime._base import seconds_of

#: Functions -> seconds per call of each function in each round. Abandoned functions have shorter lists.
Rounds = Callable[[Sequence[Callable[[], object]]], Sequence[Sequence[float]]]
#: Number of calls before the first round: they load kernels, choose drivers, and derive operands from parameters.
_WARM = 3
#: Largest number of rounds, and the number of rounds before the budget ends them.
_MOST_ROUNDS, _LEAST_ROUNDS = 100, 6
#: Number of rounds after which slower functions are looked for.
_STEP = 2
#: Seconds of a pause before each function, since threads of torch and IREE spin after a call.
_PAUSE = 3e-3
#: A function is abandoned if it takes more than 1.3 times as long as the fastest function in every round, after at least
#: 4 rounds.
_HOPELESS, _HOPELESS_ROUNDS = 1.3, 4
#: It is abandoned before the first round if its second call takes so many times as long as another function's.
_FAR = 10.0
#: The probability, in each check, that a function as fast as the fastest one is abandoned.
_DOUBT = 1e-3
#: Rounds end when no other function can take less than this part of the fastest function's time.
_ALIKE = 0.985
#: Another function is preferred to the first one only if it takes at most this part of the first one's time.
_FASTER = 0.99


@dataclass(frozen=True)
class Clock:
    """Returns the time in seconds, and waits. Tests replace it."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Effort:
    """How long functions are measured.

    In each round, a function is called for `slice` seconds, at least once. This matters, because threads that spin
    between calls, especially torch's, make consecutive calls faster: ConvNeXt blocks are 2 % faster with inductor in
    single calls, and 12 % in many. After `budget` seconds, no more rounds are started.
    """

    slice: float = 0.06
    budget: float = 8.0


def in_rounds(
    functions: Sequence[Callable[[], object]], clock: Clock = Clock(), effort: Effort = Effort()
) -> list[list[float]]:
    """The seconds per call of each function in each round. Raises the errors of the functions."""
    singles = [_single(function, clock) for function in functions]
    longest = max(_FAR * min(singles), effort.slice)
    left, order = [at for at, each in enumerate(singles) if each <= longest], random.Random(0)
    counts = {at: _calls_of(functions[at], clock, effort) for at in left}
    taken: list[list[float]] = [[] if at in counts else [each] for at, each in enumerate(singles)]
    end = clock.now() + effort.budget
    for number in range(1, _MOST_ROUNDS + 1):
        for at in order.sample(left, len(left)):
            taken[at].append(_seconds(functions[at], counts[at], clock))
        if number % _STEP == 0:
            best = _best(taken, left)
            left = [at for at in left if at == best or not _is_slower(taken[at], taken[best])]
            if all(at == best or _least_ratio(taken[at], taken[best]) > _ALIKE for at in left):
                break
        if number >= _LEAST_ROUNDS and clock.now() > end:
            break
    return taken


def _single(function: Callable[[], object], clock: Clock) -> float:
    """The seconds of a function's second call."""
    function()
    return seconds_of(function, repeat((), 1), clock.now)


def _calls_of(function: Callable[[], object], clock: Clock, effort: Effort) -> int:
    """The number of calls of a function in a round."""
    fastest = min(_seconds(function, 1, clock) for _ in range(_WARM - 1))
    return max(1, round(effort.slice / max(fastest, 1e-6)))


def in_short_rounds(functions: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Like `in_rounds`, for about a second."""
    return in_rounds(functions, effort=Effort(slice=0.01, budget=1.0))


def _seconds(function: Callable[[], object], count: int, clock: Clock) -> float:
    clock.sleep(_PAUSE)
    function()  # loads what the other functions displaced, which may take a fifth of its time
    return seconds_of(function, repeat((), count), clock.now) / count


def _best(taken: Sequence[Sequence[float]], left: Sequence[int]) -> int:
    """The function of `left` whose largest ratio to another function is the smallest."""
    return min(left, key=lambda at: max(_ratio(taken[at], taken[other]) for other in left))


def _ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """The time of `one` relative to `other`: the geometric mean of the rounds' ratios without the outer quarters."""
    ratios = sorted(mine / its for mine, its in zip(one, other, strict=True))
    outer = len(ratios) // 4
    return statistics.geometric_mean(ratios[outer : len(ratios) - outer])


def _is_slower(one: Sequence[float], best: Sequence[float]) -> bool:
    """Whether `one` is certainly slower than `best`."""
    ratios = [mine / its for mine, its in zip(one, best, strict=True)]
    is_hopeless = len(ratios) >= _HOPELESS_ROUNDS and min(ratios) > _HOPELESS
    return is_hopeless or _least_ratio(one, best) > 1


def _least_ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """A certain lower bound of the ratio of the true times; 0 if it needs more rounds.

    Uses the sign test, which assumes nothing about the distribution of times.
    """
    ratios = sorted(mine / its for mine, its in zip(one, other, strict=True))
    rank = _certain_rank(len(ratios))
    return ratios[rank - 1] if rank else 0.0


@cache
def _certain_rank(count: int) -> int:
    """The rank of the last of `count` sorted values that is below the true median, except with probability `_DOUBT`.

    0 if there are too few values.
    """
    chance, rank = 0.5**count, 0
    while chance <= _DOUBT:
        rank += 1
        chance += math.comb(count, rank) * 0.5**count
    return rank


def fastest(taken: Sequence[Sequence[float]]) -> int:
    """The index of the fastest function, among those that were not abandoned.

    The first function is preferred to functions that are less than 1 % faster.
    """
    rounds = max(map(len, taken))
    left = [at for at, each in enumerate(taken) if len(each) == rounds]
    best = _best(taken, left)
    return 0 if 0 in left and _ratio(taken[best], taken[0]) > _FASTER else best


def relative_times(taken: Sequence[Sequence[float]]) -> list[float]:
    """The time of each function relative to the first one's, from the rounds in which both were called."""
    common = [min(len(each), len(taken[0])) for each in taken]
    return [_ratio(each[:count], taken[0][:count]) for each, count in zip(taken, common, strict=True)]

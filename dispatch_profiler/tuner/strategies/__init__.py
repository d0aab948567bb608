"""Strategies choose what to measure next. They are fed times, and use no clock, device or file.

    strategy = make_strategy("random", space, seed=0, seeds=[Default()])
    while batch := strategy.ask(8):
        strategy.tell([Trial(configuration, measure(configuration)) for configuration in batch])

The same seed and the same history give the same proposals, so an interrupted search continues by asking
again and telling what was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.strategies._base import BaseStrategy, Exhaustive, RandomSearch, Strategy, Trial
from dispatch_profiler.tuner.strategies.evolution import Genetic, Tpe
from dispatch_profiler.tuner.strategies.learned import Learned, ModelStrategy, Surrogate

STRATEGIES: dict[str, type[BaseStrategy]] = {
    "random": RandomSearch,
    "exhaustive": Exhaustive,
    "genetic": Genetic,
    "tpe": Tpe,
    "surrogate": Surrogate,
    "prior": Learned,
}
DEFAULT_STRATEGY = "prior"


def make_strategy(
    name: str,
    space: SearchSpace,
    seed: int = 0,
    seeds: Sequence[Configuration] = (),
    descend_after: int | None = None,
) -> Strategy:
    """The strategy `name` of `STRATEGIES`, which proposes the valid configurations among `seeds` first.

    After `descend_after` proposals, it proposes the neighbours of the fastest trial first.
    Raises UsageError for an unknown name, MissingDependency if the strategy's package is not installed.
    """
    if name not in STRATEGIES:
        raise UsageError(f"unknown strategy {name!r}", hint=did_you_mean(name, STRATEGIES))
    return STRATEGIES[name](space, seed, seeds, descend_after)


def expects_gain(name: str) -> bool:
    """Whether the strategy `name` knows how much it expects of its proposals, so that a search may end early."""
    return name in STRATEGIES and issubclass(STRATEGIES[name], ModelStrategy)


__all__ = ["DEFAULT_STRATEGY", "STRATEGIES", "Strategy", "Trial", "expects_gain", "make_strategy"]

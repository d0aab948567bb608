"""What the benchmark of winners compiles, known before the searches end: idle builders compile it."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_profiler.configurations import Configuration, Default, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.tuner.search.operation_search import OperationSearch


def likely_entries(
    done: Sequence[OperationSearch], ending: Sequence[OperationSearch], idle: int
) -> list[Dispatch]:
    """The likely winners of searches as entries of a library, without duplicates.

    The winners of all searches that are `done`. Then, of searches in their last round, as many as builders are `idle`: the
    fastest so far, and what is evaluated now, of the shortest rounds first.
    """
    certain = _entries([(each, each.best.configuration) for each in done if each.best])
    shortest = sorted(ending, key=lambda each: len(each.round))
    maybe = _entries(
        [
            *((each, each.best.configuration) for each in ending if each.best),
            *((each, configuration) for each in shortest for configuration in each.round),
        ]
    )
    return [*certain, *maybe[: max(0, idle - len(certain))]]


def _entries(winners: Sequence[tuple[OperationSearch, Configuration]]) -> list[Dispatch]:
    """The compiler's choice needs no entry."""
    entries = (
        Dispatch(search.operation, Tuned(configuration))
        for search, configuration in winners
        if not isinstance(configuration, Default)
    )
    return list(dict.fromkeys(entries))

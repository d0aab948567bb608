"""Which entries of a library idle builders compile before the searches end."""

from __future__ import annotations

from search_samples import OPERATION, evaluation
from test_operation_search import EVERY, outcome, rounds, task

from dispatch_profiler.configurations import Configuration, Default, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.tuner.search.likely_winners import likely_entries
from dispatch_profiler.tuner.search.operation_search import OperationSearch


def entries(*configurations: Configuration) -> list[Dispatch]:
    return [Dispatch(OPERATION, Tuned(each)) for each in configurations]


def test_the_winner_of_a_search_that_is_done_is_an_entry():
    """Even without an idle builder, because it is compiled in any case. The compiler's choice is no entry."""
    search = OperationSearch(task(evaluations=20))
    rounds(search)
    assert search.best is not None
    assert likely_entries([search], [], 0) == entries(search.best.configuration)
    default = OperationSearch(task(evaluations=1))
    rounds(default)
    assert default.best is not None and likely_entries([default], [], 4) == []


def test_in_their_last_round_searches_have_as_many_entries_as_builders_are_idle():
    """The fastest so far first, and then what is evaluated."""
    search = OperationSearch(task(baselines=(Default(), EVERY[2]), evaluations=5))
    assert not search.is_last_round
    for each in search.next_configurations():
        search.add(outcome(each))
    last = search.next_configurations()
    assert len(last) == 3 and search.is_last_round
    expected = entries(EVERY[2], *last)
    assert [likely_entries([], [search], idle) for idle in range(5)] == [expected[:n] for n in range(5)]


def test_the_shortest_rounds_come_first():
    """Their winner is the most certain."""
    long = OperationSearch(task(baselines=tuple(EVERY[:6]), evaluations=6))
    short = OperationSearch(task(baselines=tuple(EVERY[6:8]), evaluations=2))
    for search in (long, short):
        search.next_configurations()
    long.add(evaluation(EVERY[0], 1.0))
    assert likely_entries([], [long, short], 3) == entries(EVERY[0], EVERY[6], EVERY[7])

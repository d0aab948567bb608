"""Workloads: each operation once, with how often it runs and where it was read."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.operations import Matmul
from dispatch_profiler.workloads import Workload, WorkloadEntry, merged

ENTRIES = st.builds(
    WorkloadEntry, st.integers(1, 4).map(lambda m: Matmul(m, 1, 1)), st.integers(1, 9), st.sampled_from("abc")
)


def test_equal_operations_are_one_entry_with_their_counts_added():
    """The first place is kept, in the order in which operations were first read."""
    one, two = Matmul(1, 1, 1), Matmul(2, 2, 2)
    found = merged(
        [
            WorkloadEntry(one, 3, "line 1"),
            WorkloadEntry(two, 1, "line 2"),
            WorkloadEntry(Matmul(1, 1, 1), 4, "line 3"),
        ]
    )
    assert Workload((WorkloadEntry(one, 7, "line 1"), WorkloadEntry(two, 1, "line 2"))) == found
    assert (one, two) == found.operations


def test_nothing_is_an_empty_workload():
    """Of no operations."""
    assert merged([]).operations == ()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(ENTRIES))
def test_no_count_is_lost(entries):
    """Against a Counter, which keeps the order too."""
    counts = Counter()
    for entry in entries:
        counts[entry.operation] += entry.count
    assert list(counts.items()) == [(entry.operation, entry.count) for entry in merged(entries).entries]


def test_an_entry_runs_once_unless_told_otherwise():
    """And comes from nowhere in particular."""
    entry = WorkloadEntry(Matmul(1, 1, 1))
    assert (entry.count, entry.origin) == (1, "")

"""Two passes of one dispatch: how they are asked for, when they agree, and what is made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.profiler import Measurement, MeasureOptions, StopRule
from dispatch_profiler.profiler.passes import agree, confirmed, first_pass, joined, later_pass


def around(median_ms: float, spread: float = 0.01, count: int = 9) -> Measurement:
    """Samples that lie evenly around a median."""
    steps = [spread * (at - count // 2) / count for at in range(count)]
    return Measurement(tuple(median_ms * (1.0 + step) for step in steps), executions=10)


@given(st.integers(1, 1000))
def test_both_passes_together_take_as_many_samples_as_were_asked_for(count):
    asked = MeasureOptions(StopRule(count=count, seconds=4.0))
    first, later = first_pass(asked), later_pass(asked, around(1.0))
    assert first.stop.count + (later.stop.count if later else 0) == count
    assert first.stop.seconds == 2.0


def test_the_second_pass_has_samples_as_long_as_the_first():
    later = later_pass(MeasureOptions(), around(1.0))
    assert later is not None and later.batch == 10


def test_what_takes_all_the_time_with_three_samples_gets_no_second_pass():
    long = Measurement((400.0, 400.0, 400.0), executions=1)
    assert later_pass(MeasureOptions(StopRule(seconds=1.0)), long) is None
    assert later_pass(MeasureOptions(StopRule(seconds=3.0)), long) is not None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (around(1.0), around(1.04), True),  # so little is of no interest
        (around(1.0), around(1.2), False),
        (around(1.0, spread=1.0), around(1.2, spread=1.0), True),  # nobody knows
        (around(1.0), around(2.0, spread=3.0), True),
    ],
)
def test_passes_agree_unless_they_surely_differ(one, other, same):
    assert agree(one, other) is agree(other, one) is same


def test_a_third_pass_confirms_the_faster():
    slow, fast, third = around(2.0), around(1.0), around(1.01)
    for pair in ((slow, fast), (fast, slow)):
        found = confirmed(*pair, third)
        assert found.samples_ms == (*fast.samples_ms, *third.samples_ms)
        assert found.dropped_ms == slow.samples_ms
        assert found.warnings == ()


def test_without_a_witness_all_count_and_it_is_told():
    found = confirmed(around(1.0), around(2.0), around(1.5))
    assert len(found.samples_ms) == 27 and found.dropped_ms == ()
    assert found.warnings == ("it took 1, 2, 1.5 ms at different times",)


def test_warnings_of_all_passes_are_kept_once():
    one = Measurement((1.0,), 1, warnings=("a", "b"))
    other = Measurement((1.0,), 1, warnings=("b", "c"), dropped_ms=(3.0,), ended_by="budget")
    found = joined((one, other))
    assert (found.warnings, found.dropped_ms, found.ended_by) == (("a", "b", "c"), (3.0,), "budget")

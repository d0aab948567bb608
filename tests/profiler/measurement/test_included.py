"""What a time includes: kernels, fills and copies always; weight conversion and the call where they were timed."""

from __future__ import annotations

import pytest

from dispatch_profiler.profiler.measurement.included import differences, included, included_text
from dispatch_profiler.profiler.measurement.measure import MeasureOptions, Timer, warm_overhead
from dispatch_profiler.profiler.measurement.sample_batches import joined, next_batch, take
from dispatch_profiler.profiler.statistics.stopping import StopRule

DISPATCH = included(weights=True, call=False)
LIBRARY = included(weights=False, call=True)


@pytest.mark.parametrize(
    ("repeat", "single", "text"),
    [
        (100, 20e-6, "kernels; fills and copies; weight conversion"),
        (9, 20e-6, "kernels; fills and copies; weight conversion; call"),
        (100, 0.0, "kernels; fills and copies; weight conversion; call"),
    ],
    ids=["subtracted", "too few repeats to separate", "time of one execution unknown"],
)
def test_a_call_is_included_unless_it_was_subtracted(repeat: int, single: float, text: str):
    """A call takes 10 us, and so does an execution."""
    timer = Timer(
        lambda calls: calls * (10e-6 + repeat * 10e-6),
        repeat,
        overhead=lambda seconds: warm_overhead(single, seconds, repeat),
    )
    options = MeasureOptions(StopRule(count=12))
    first = take(timer, next_batch(options, (), None))
    second = take(timer, next_batch(options, (first,), None))

    assert included_text(joined(options, (first, second)).includes) == text
    assert (joined(options, (first,)).overhead_ms > 0) is ("call" not in text)


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        (DISPATCH, DISPATCH, []),
        (DISPATCH, LIBRARY, ["only base includes weight conversion", "only new includes call"]),
        (included(weights=True, call=True), DISPATCH, ["only base includes call"]),
        ((), DISPATCH, ["base does not state what its time includes"]),
        (DISPATCH, (), ["new does not state what its time includes"]),
        ((), (), []),
    ],
)
def test_differences_name_what_only_one_side_includes(base, new, expected):
    assert differences(base, new) == expected

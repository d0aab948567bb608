"""Student's distribution as scipy has it."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from dispatch_profiler.profiler.statistics.student import reach


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.98, 0.999, 0.9999])
@pytest.mark.parametrize("freedom", [*range(1, 13), 99, 100])
def test_reach_is_that_of_scipy(confidence, freedom):
    """To ten digits, at every confidence that a command takes."""
    assert reach(confidence, freedom) == pytest.approx(
        stats.t.ppf((1.0 + confidence) / 2.0, freedom), rel=1e-10
    )


def test_reach_of_one_degree_is_that_of_cauchy():
    """P(|T| < t) = 2 atan(t) / pi."""
    assert reach(0.5, 1) == pytest.approx(1.0, rel=1e-12)
    assert reach(2.0 / 3.0, 1) == pytest.approx(math.sqrt(3.0), rel=1e-12)

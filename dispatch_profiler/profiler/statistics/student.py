"""Student's t distribution, without importing scipy, which takes half a second."""

from __future__ import annotations

import math
from functools import cache

#: Halvings of (0, pi/2) after which a float no longer changes.
_HALVINGS = 60


@cache
def reach(confidence: float, freedom: int) -> float:
    """The t for which |T| stays below t with probability `confidence` (0 to below 1).

    `freedom` is the number of degrees of freedom, at least 1: one less than the samples of a mean.
    `reach(0.95, 4)` -> 2.776
    """
    low, high = 0.0, math.pi / 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) * tan(angle)).

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    is_odd = freedom % 2
    cosine = math.cos(angle)
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(2 + is_odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    part = math.sin(angle) * total
    return 2.0 / math.pi * (angle + part) if is_odd else part

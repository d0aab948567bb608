"""Rounding: error bounds for sums, and conversion of float64 to narrower types."""

from __future__ import annotations

import math

import numpy as np

from dispatch_profiler.operations.element_types import ElementType

#: The bound fails with probability 2 * 1e5 * exp(-10**2 / 2) = 4e-17 per element: practically never.
_LAMBDA = 10.0


def accumulation_factor(products: int, accumulator: ElementType) -> float:
    """Error bound for a sum of `products` products, relative to the sum of magnitudes.

    Source: Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput.
    41(5), 2019, Theorem 3.1; see `contraction_reference`.
    """
    u = accumulator.unit_roundoff
    steps = products + 1
    certain = steps * u / (1.0 - steps * u) if steps * u < 1.0 else math.inf
    return min(certain, math.expm1(_LAMBDA * math.sqrt(steps) * u))


def rounded_to(value: np.ndarray, type_: ElementType) -> np.ndarray:
    """Convert float64 to `type_` with a single rounding.

    ml_dtypes converts through float32. Two roundings equal one if the first rounds to odd (Boldo and
    Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Trans. Comput. 57(4), 2008).
    """
    if type_.dtype.kind == "f":
        return value.astype(type_.dtype)
    near = value.astype(np.float32)
    down = np.where(np.abs(near) > np.abs(value), np.nextafter(near, np.float32(0)), near)
    odd = np.where(down == value, down, (down.view(np.uint32) | 1).view(np.float32))
    return np.where(np.isfinite(value), odd, near).astype(type_.dtype)

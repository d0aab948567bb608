"""Rounding: error bounds for sums, and conversion of float64 to narrower types."""

from __future__ import annotations

import math

import numpy as np

from dispatch_profiler.blocks import in_blocks
from dispatch_profiler.operations.element_types import ElementType

#: The bound fails with probability 2 * 1e5 * exp(-10**2 / 2) = 4e-17 per element: practically never.
_LAMBDA = 10.0


#: Terms whose deviation is smaller than this part of their mean are alike.
_ALIKE = 1.0 / 16.0


def accumulation_factor(products: int, accumulator: ElementType, *, are_alike: bool = False) -> float:
    """Error bound for a sum of `products` products, relative to the sum of magnitudes.

    At most `products` terms are added one after another, in any order: no partial sum has more than
    `products` roundings, plus one for a product. Sources: Higham, "Accuracy and Stability of Numerical
    Algorithms", 2nd edition, 2002, sections 3.1 and 4.2: n roundings have at most the relative error n u / (1
    - n u). If they are independent of each other, the error grows as sqrt(n): Higham and Mary, "A New
    Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41(5), 2019, Theorem 3.1; see
    `contraction_reference`. With `are_alike`, they are not independent.
    """
    u = accumulator.unit_roundoff
    steps = products + 1
    certain = steps * u / (1.0 - steps * u) if steps * u < 1.0 else math.inf
    return certain if are_alike else min(certain, math.expm1(_LAMBDA * math.sqrt(steps) * u))


def rounded_term(largest: float) -> float:
    """A number up to `largest` whose every multiple is rounded when it is added to a large sum: 4/3 of a power of two.

    A power of two is added without errors for long, and hides that terms are added one after another.
    """
    return 4.0 / 3.0 * 2.0 ** math.floor(math.log2(0.75 * largest))


def are_alike(*factors: np.ndarray) -> bool:
    """Whether the products of `factors` are almost equal: additions to a large sum then round to the same side.

    The errors of adding 1000 +- 1 to 10**9, where floats are 64 apart, have the mean 24: they are not independent.
    """
    return all(_deviation(each) < _ALIKE for each in factors if each.size > 1)


def _deviation(array: np.ndarray) -> float:
    """The standard deviation of the elements, relative to the magnitude of their mean; infinite if the mean is 0."""
    flat = array.reshape(-1)

    def sums(block: slice) -> tuple[float, float]:
        wide = flat[block].astype(np.float64)
        return float(wide.sum()), float(np.square(wide, out=wide).sum())

    total, squares = (math.fsum(each) / array.size for each in zip(*in_blocks(sums, array.size), strict=True))
    return math.sqrt(max(0.0, squares - total * total)) / abs(total) if total else math.inf


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

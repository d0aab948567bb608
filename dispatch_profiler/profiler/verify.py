"""Comparing a result with its reference: every element counts, and a NaN never passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import Operation, Reference


@dataclass(frozen=True)
class Comparison:
    """`passed`, or the worst element and how many are wrong."""

    passed: bool
    wrong: int = 0
    elements: int = 0
    index: tuple[int, ...] = ()
    expected: float = 0.0
    actual: float = 0.0
    tolerance: float = 0.0

    @property
    def message(self) -> str:
        """`3 of 512 elements are wrong; the worst: result[0, 7] = 2.5, but should be 1 exactly`"""
        if self.passed:
            return ""
        where = ", ".join(map(str, self.index))
        actual, expected = f"{self.actual:.9g}", f"{self.expected:.9g}"
        if actual == expected or float(actual) != self.actual or float(expected) != self.expected:
            actual, expected = (repr(x).removesuffix(".0") for x in (self.actual, self.expected))
        within = f"within {self.tolerance:.3g}" if self.tolerance else "exactly"
        return (
            f"{self.wrong} of {self.elements} elements are wrong; the worst: "
            f"result[{where}] = {actual}, but should be {expected} {within}"
        )


class ShapeMismatch(ToolError):
    """The result has another shape or type than the operation says."""


def compare(operation: Operation, actual: np.ndarray, reference: Reference) -> Comparison:
    """Compare `actual` (shape and type of `operation.result`) with `reference`.

    Order: type, shape, values. Raises ShapeMismatch for the first two.
    """
    result = operation.result
    if actual.dtype != result.type.dtype or actual.shape != result.shape:
        raise ShapeMismatch(
            f"the result is {actual.dtype} {actual.shape}, but should be {result.type.dtype} {result.shape}"
        )
    if reference.tolerance is None:
        right = actual == reference.expected  # False for NaN
        if right.all():
            return Comparison(True, elements=actual.size)
        # Zeros and infinities of narrow types are equal after widening as before it.
        return _worst(right, actual, reference.expected, np.zeros(()))
    wide = actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        right = np.abs(wide - reference.expected) <= reference.tolerance  # False for NaN
    if right.all():
        return Comparison(True, elements=actual.size)
    return _worst(right, actual, reference.expected, reference.tolerance)


def _worst(right: np.ndarray, actual: np.ndarray, expected: np.ndarray, tolerance: np.ndarray) -> Comparison:
    wide, should = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = np.where(right, -np.inf, np.nan_to_num(np.abs(wide - should) - tolerance, nan=np.inf))
    index = np.unravel_index(int(np.argmax(excess)), actual.shape)
    return Comparison(
        passed=False,
        wrong=int(right.size - np.count_nonzero(right)),
        elements=actual.size,
        index=tuple(int(i) for i in index),
        expected=float(should[index]),
        actual=float(wide[index]),
        tolerance=float(np.broadcast_to(tolerance, actual.shape)[index]),
    )

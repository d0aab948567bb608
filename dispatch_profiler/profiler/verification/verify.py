"""Compares results with their references: every element counts, and NaN never passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dispatch_profiler.blocks import in_blocks
from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import Operation, Reference, Tensor


@dataclass(frozen=True)
class Comparison:
    """`passed`, or the worst element of the result `name` and how many are wrong."""

    passed: bool
    wrong: int = 0
    elements: int = 0
    index: tuple[int, ...] = ()
    expected: float = 0.0
    actual: float = 0.0
    tolerance: float = 0.0
    name: str = "result"

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
            f"{self.name}[{where}] = {actual}, but should be {expected} {within}"
        )


class ShapeMismatch(ToolError):
    """The result's shape or type differs from the operation's."""


def compare(
    operation: Operation, actual: Sequence[np.ndarray], references: Sequence[Reference]
) -> Comparison:
    """Compare each of `actual` (shapes and types of `operation.results`) with its reference.

    Returns the first comparison that did not pass, or the last. Raises ShapeMismatch.
    """
    for result, array, reference in zip(operation.results, actual, references, strict=True):
        comparison = compare_result(result, array, reference)
        if not comparison.passed:
            break
    return comparison


def compare_result(result: Tensor, actual: np.ndarray, reference: Reference) -> Comparison:
    """Compare one result.

    Raises ShapeMismatch for a wrong type or shape, in this order, before comparing values.
    """
    if actual.dtype != result.type.dtype or actual.shape != result.shape:
        raise ShapeMismatch(
            f"{result.name} is {actual.dtype} {actual.shape}, but should be {result.type.dtype} {result.shape}"
        )
    found, expected = actual.reshape(-1), reference.expected.reshape(-1)
    tolerance = None if reference.tolerance is None else reference.tolerance.reshape(-1)

    def right_in(block: slice) -> np.ndarray:
        if tolerance is None:
            return np.asarray(found[block] == expected[block])  # False for NaN
        with np.errstate(invalid="ignore"):
            away = np.abs(found[block].astype(np.float64) - expected[block])
            return np.asarray(away <= tolerance[block])  # False for NaN

    right = in_blocks(right_in, actual.size)
    if all(part.all() for part in right):
        return Comparison(True, elements=actual.size, name=result.name)
    # Widening narrow types preserves whether zeros and infinities are equal.
    allowed = np.zeros(()) if reference.tolerance is None else reference.tolerance
    worst = _worst(np.concatenate(right).reshape(actual.shape), actual, reference.expected, allowed)
    return replace(worst, name=result.name)


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

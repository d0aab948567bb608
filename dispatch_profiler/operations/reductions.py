"""The base class of operations that sum: types, roundings, and when sums are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import IN_ACCUMULATOR, ErrorBound, Operation
from dispatch_profiler.operations.element_types import ElementType, element_type
from dispatch_profiler.operations.options import ShapeOption
from dispatch_profiler.operations.rounding import accumulation_factor, are_alike, rounded_term

TYPES = ("f32", "f16", "bf16", "f64")
#: Default types of a sweep.
DEFAULT_SUM_TYPES = ("f16", "f32")
#: The largest sum of numbers that are almost equal.
_LARGEST_SUM = 1000.0


def _types(text: str) -> tuple[str, ...]:
    return tuple(element_type(part.strip()).name for part in text.split(","))


def type_option(prefix: str) -> ShapeOption:
    """The option `--<prefix>-type` of a kind; its values are element types."""
    return ShapeOption(
        f"{prefix}_type", (f"--{prefix}-type",), f"element type: {', '.join(TYPES)}", _types, "TYPE,..."
    )


def same_terms(noise: np.ndarray, terms: int) -> np.ndarray:
    """Numbers that are almost equal, whose sums of `terms` every type holds; `noise` lies in (-1, 1)."""
    return rounded_term(min(1.0, _LARGEST_SUM / terms)) * (1.0 + noise / 4096.0)


class SumOperation(Operation):
    """Operands and results of `type`, one of `TYPES`; sums in `sums_type`."""

    type_options: ClassVar[tuple[str, ...]] = ()

    type: str

    def _check_type(self) -> None:
        """Raise OperationError for an invalid type; replace an alias of a type by its name."""
        name = element_type(self.type).name
        if name not in TYPES:
            raise OperationError(
                f"{self.kind}: no element type {self.type}", hint=f"available: {', '.join(TYPES)}"
            )
        object.__setattr__(self, "type", name)

    @property
    def element_type(self) -> ElementType:
        return element_type(self.type)

    @property
    def accumulator(self) -> ElementType:
        return self.element_type.accumulator

    @property
    def rounds_between_steps(self) -> bool:
        return True  # libraries add in the accumulator's type

    @property
    def sums_type(self) -> ElementType:
        """The type in which kernels add terms: f64, so that the order does not matter, even of millions of terms.

        Where a target lacks it, the compiler adds in the accumulator's type (`Target.has_long_sums`).
        """
        return element_type("f64")

    def roundoffs(self, terms: int, type_: ElementType, *factors: np.ndarray) -> tuple[float, float]:
        """Relative error bounds of one operation in the accumulator, and of a sum of `terms` terms in `type_`.

        The terms are products of `factors`. The bound covers the error of a reference, which is summed in float64.
        """
        u, alike = self.accumulator.unit_roundoff, are_alike(*factors)
        own = accumulation_factor(terms, self.sums_type, are_alike=alike)
        sums = accumulation_factor(terms, type_, are_alike=alike) + own
        # A reference in float64 has the same error as a kernel in f64.
        return (2.0 * u, sums) if self.accumulator.name == "f64" else (u, sums)

    def added_in(self, stepwise: bool, error_bound: ErrorBound | None) -> ElementType:
        """The type in which a library (`stepwise`) or a kernel adds terms: see `Operation.reference`."""
        return self.accumulator if stepwise or error_bound == IN_ACCUMULATOR else self.sums_type

    def stored(self, value: np.ndarray, error: np.ndarray, type_: ElementType) -> np.ndarray:
        """`error` plus the errors of rounding to `type_` and of flushing subnormal values to zero."""
        if type_ != self.accumulator:
            error = error + type_.unit_roundoff * (np.abs(value) + error)
            error = error + float(type_.finfo().smallest_subnormal)
        return error + float(self.accumulator.finfo().tiny)

    def sums_exactly(self, operands: Sequence[np.ndarray], terms: int, largest: float) -> bool:
        """Are all operands integers, and all partial sums of `terms` numbers up to `largest` exact?"""
        if not all((np.rint(each) == each).all() for each in operands):
            return False
        return terms * largest <= self.accumulator.exact_integers

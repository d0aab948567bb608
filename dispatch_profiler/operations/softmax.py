"""Softmax of rows: `y = exp(scale * x) / sum(exp(scale * x))`, computed from `x - max(x)` so that nothing overflows.

As torch's `softmax(scale * x, -1)` defines it: a row with an infinite maximum or a NaN is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import (
    Distribution,
    Reference,
    Tensor,
    number_in_symbol,
)
from dispatch_profiler.operations.element_types import ElementType
from dispatch_profiler.operations.options import ShapeOption, numbers
from dispatch_profiler.operations.reductions import RowOperation, type_option

#: Relative error of a compiler's approximation of an exponential, in unit roundoffs.
_EXP_ROUNDOFFS = 8.0
#: Rounded operations between x and the argument of the exponential, including the product with log2(e).
_ARGUMENT_ROUNDOFFS = 4.0
#: Rows and row lengths of attention in BERT-base, GPT-2 and T5-small.
_PROBLEMS = ((1536, 128), (6144, 512), (2048, 256))


@dataclass(frozen=True)
class Softmax(RowOperation):
    """`rows` rows of `size` elements. x, y: (rows, size) of `type`. Sums are in the accumulator's type."""

    kind: ClassVar[str] = "softmax"
    prefix: ClassVar[str] = "softmax"
    problems: ClassVar[tuple[tuple[int, ...], ...]] = _PROBLEMS
    default_extents: ClassVar[Mapping[str, int]] = {"rows": 1536, "size": 128}
    swept: ClassVar[Mapping[str, tuple[Any, ...]]] = {"softmax_scale": (1.0,)}
    # Exponentials are inexact on integers.
    distributions: ClassVar[tuple[Distribution, ...]] = (Distribution.REALS, Distribution.OFFSET)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (
        ShapeOption("softmax_rows", ("--softmax-rows",), "number of rows"),
        ShapeOption("softmax_size", ("--softmax-size",), "elements per row"),
        type_option("softmax"),
        ShapeOption(
            "softmax_scale", ("--softmax-scale",), "factor of every element", numbers("0.125"), "SCALE,..."
        ),
    )

    rows: int
    size: int
    type: str = "f32"
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.scale) is not float or not 0.0 < self.scale < math.inf:
            raise OperationError(f"softmax: scale must be a number above 0, but got {self.scale!r}")

    @property
    def name(self) -> str:
        """`softmax_128x768_f32t[_scale0p125]`; m is a minus sign, which MLIR symbols cannot contain."""
        scale = f"_scale{number_in_symbol(self.scale)}" if self.is_scaled else ""
        return f"softmax_{self.rows}x{self.size}_{self.type}t{scale}"

    @property
    def is_scaled(self) -> bool:
        """Whether elements are multiplied."""
        return self.scale != 1.0

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.elements("x"),)

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (self.elements("y"),)

    @property
    def sums_type(self) -> ElementType:
        """The accumulator's: terms are positive and at most 1, so that no order of them loses much."""
        return self.accumulator

    @property
    def flops(self) -> int:
        """Per element: maximum, difference, exponential, sum, quotient, and the product with the scale."""
        return self.rows * self.size * (5 + self.is_scaled)

    def arguments(self) -> dict[str, str]:
        return {**super().arguments(), "softmax-scale": repr(self.scale)}

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """Rows with maxima and spreads of their own, whose scaled elements span up to 16, as attention's do.

        OFFSET: elements are far from zero, so that exponentials of them overflow or vanish unless the maximum is
        subtracted.
        """
        largest = float(self.element_type.finfo().max) / 4.0
        spread = rng.uniform(1.0, 8.0, (self.rows, 1)) / self.scale
        center = rng.uniform(-1.0, 1.0, (self.rows, 1)) / self.scale
        if distribution is Distribution.OFFSET:
            center *= 1000.0
        values = center + spread * rng.uniform(-1.0, 1.0, operand.shape)
        return np.clip(values, -largest, largest).astype(operand.type.dtype)

    def in_float64(
        self, operands: Sequence[np.ndarray], added_in: ElementType, *, stepwise: bool
    ) -> tuple[Reference, ...]:
        """In float64, with a bound from the errors of each step.

        With u the unit roundoff and d = scale * (x - max): the argument d of an exponential has the error a u |d|, for
        a rounded operations, and the exponential e the relative error r = expm1(a u |d|) + b u. A sum s of N terms is
        off by the mean of r, weighted by e, and by g for the additions. So y = e / s has the relative error
        r + mean(r) + g + 2u. `stepwise`: a library rounds scale * x first, which adds u (|scale x| + |scale max|) with
        u of the element type.
        """
        (x,) = operands
        largest = x.max(axis=1, keepdims=True)
        argument = self.scale * (x - largest)
        terms = np.exp(argument)
        total = terms.sum(axis=1, keepdims=True)
        y = terms / total
        u, sums = self.roundoffs(self.size, added_in, terms)
        moved = _ARGUMENT_ROUNDOFFS * u * np.abs(argument)
        if stepwise and self.is_scaled:
            moved = moved + self.scale * self.element_type.unit_roundoff * (np.abs(x) + np.abs(largest))
        relative = np.expm1(moved) + _EXP_ROUNDOFFS * u
        of_sum = (relative * terms).sum(axis=1, keepdims=True) / total + sums
        error = y * (relative + of_sum + 2.0 * u)
        return (Reference(y, self.stored(y, error, self.element_type)),)

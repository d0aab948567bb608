"""Layer normalization of rows: `y = (x - mean) * rstd * weight + bias`, which also returns mean and rstd.

`mean = sum(x) / N`, `rstd = 1 / sqrt(sum((x - mean)**2) / N + eps)` over the N elements of a row, as torch's
`native_layer_norm` defines them.
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
from dispatch_profiler.operations.geometry import NormGeometry
from dispatch_profiler.operations.norm.normalization import (
    AFFINE_OPTION,
    EPS_OPTION,
    ROW_OPTIONS,
    Affine,
    RowNorm,
    affine_suffix,
    affine_text,
    has_bias,
    has_weight,
    offset_of,
)
from dispatch_profiler.operations.options import ShapeOption

#: Relative error of the compiler's approximation of a reciprocal square root, in unit roundoffs.
_RSQRT_ROUNDOFFS = 8.0


@dataclass(frozen=True)
class LayerNorm(RowNorm):
    """`rows` rows of `size` elements, with sums in `sums_type`.

    x, y: (rows, size) of `type`; weight, bias: (size,) of `type`, both if `affine` is True, and one of them if it is
    `weight` or `bias`; mean, rstd: (rows,) in the accumulator type.
    """

    kind: ClassVar[str] = "layer_norm"
    # The division by N and the square root are inexact on integers.
    distributions: ClassVar[tuple[Distribution, ...]] = (Distribution.REALS, Distribution.OFFSET)
    swept: ClassVar[Mapping[str, tuple[Any, ...]]] = {"norm_eps": (1e-5,), **RowNorm.swept}
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (*ROW_OPTIONS, EPS_OPTION, AFFINE_OPTION)

    rows: int
    size: int
    type: str = "f32"
    eps: float = 1e-5
    affine: Affine = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.eps) is not float or not 0.0 < self.eps < math.inf:
            raise OperationError(f"layer_norm: eps must be a number above 0, but got {self.eps!r}")
        self._check_affine(self.affine, "weight", "bias")

    @property
    def name(self) -> str:
        """`layer_norm_128x768_f32t_eps1em05[_plain|_weight|_bias]`; m is a minus sign, which MLIR symbols cannot contain."""
        eps = number_in_symbol(self.eps)
        return f"layer_norm_{self.rows}x{self.size}_{self.type}t_eps{eps}{affine_suffix(self.affine)}"

    @property
    def operands(self) -> tuple[Tensor, ...]:
        weight = ("weight",) if has_weight(self.affine) else ()
        bias = ("bias",) if has_bias(self.affine) else ()
        return (self.elements("x"), *self.parameters(*weight, *bias))

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (self.elements("y"), *self.row_statistics("mean", "rstd"))

    @property
    def normalization(self) -> NormGeometry:
        return NormGeometry(self.rows, self.size, has_weight(self.affine), has_bias(self.affine), self.eps)

    @property
    def flops(self) -> int:
        """Per element: 1 for the mean, 3 for the variance, 2 to normalize, 1 each for weight and bias; per row: 5."""
        return self.rows * (self.size * (6 + has_weight(self.affine) + has_bias(self.affine)) + 5)

    def arguments(self) -> dict[str, str]:
        return {
            **super().arguments(),
            "norm-eps": repr(self.eps),
            "norm-affine": affine_text(self.affine),
        }

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        values = rng.uniform(-1.0, 1.0, operand.shape)
        if operand.name == "x" and distribution is Distribution.OFFSET:
            values += offset_of(operand.type) * rng.uniform(0.75, 1.25, (self.rows, 1))
        elif operand.name == "x":
            # Each row has its own mean and deviation, so that a kernel cannot mix up rows unnoticed.
            values = values * rng.uniform(0.5, 2.0, (self.rows, 1)) + rng.uniform(-1.0, 1.0, (self.rows, 1))
        return values.astype(operand.type.dtype)

    def in_float64(
        self, operands: Sequence[np.ndarray], added_in: ElementType, *, stepwise: bool
    ) -> tuple[Reference, ...]:
        """In float64, with first-order error bounds for the two-pass algorithm.

        With u the unit roundoff and g the bound for a sum of N terms: |dmean| <= g sum|x| / N + 2u |mean|;
        a centred element has error c = |dmean| + u |x - mean|. The centred elements add up to 0, and dmean is the same
        for all of them, so that the mean of their squares is off by dmean**2 and 3u for each rounded square:
        |dvar| <= dmean**2 + (g + 5u) (var + dmean**2) + u eps; the error of rstd comes from its argument and
        its approximation, the error of y from the product rule.
        """
        x, *affine = operands
        weight = affine.pop(0) if has_weight(self.affine) else np.ones(self.size)
        bias = affine.pop(0) if has_bias(self.affine) else np.zeros(self.size)
        u, sums = self.roundoffs(self.size, added_in, x)
        mean = x.mean(axis=1, keepdims=True)
        mean_error = sums * np.abs(x).mean(axis=1, keepdims=True) + 2.0 * u * np.abs(mean)
        centred = x - mean
        centred_error = mean_error + u * np.abs(centred)
        variance = (centred**2).mean(axis=1, keepdims=True)
        moved = mean_error**2
        if stepwise:  # a library may find the mean and the variance in one pass, whose means differ
            moved = (2.0 * np.abs(centred) * centred_error + centred_error**2).mean(axis=1, keepdims=True)
        variance_error = moved + (sums + 5.0 * u) * (variance + moved) + u * self.eps
        rstd, rstd_error = self._rstd(variance, variance_error, u)
        normalized = centred * rstd
        y = normalized * weight + bias
        scaled = np.abs(weight) * (centred_error * (rstd + rstd_error) + np.abs(centred) * rstd_error)
        y_error = scaled + u * (3.0 * np.abs(normalized * weight) + np.abs(y))
        return (
            Reference(y, self.stored(y, y_error, self.element_type)),
            Reference(mean[:, 0], self.stored(mean[:, 0], mean_error[:, 0], self.accumulator)),
            Reference(rstd[:, 0], self.stored(rstd[:, 0], rstd_error[:, 0], self.accumulator)),
        )

    def _rstd(
        self, variance: np.ndarray, variance_error: np.ndarray, u: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """The reciprocal square root and its error bound, which is not first-order in `variance_error`."""
        shifted = variance + self.eps
        rstd = 1.0 / np.sqrt(shifted)
        # A kernel's variance is a sum of squares, so its argument never falls below eps.
        largest = 1.0 / np.sqrt(np.maximum(shifted - variance_error, self.eps * (1.0 - u)))
        smallest = 1.0 / np.sqrt(shifted + variance_error)
        return rstd, np.maximum(largest - rstd, rstd - smallest) + _RSQRT_ROUNDOFFS * u * largest

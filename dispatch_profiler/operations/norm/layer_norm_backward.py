"""Gradients of a layer norm by its input, and by its weight and bias, as torch's `native_layer_norm_backward` defines them.

With `xhat = (x - mean) * rstd`, `g = dy * weight` and means over the N elements of a row:
`dx = rstd * (g - mean(g) - xhat * mean(g * xhat))`. mean and rstd are operands, as the forward returns them,
so eps, which is part of rstd, is not part of this operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import (
    Distribution,
    Loop,
    Reference,
    Tensor,
)
from dispatch_profiler.operations.element_types import ElementType
from dispatch_profiler.operations.geometry import NormGeometry
from dispatch_profiler.operations.norm.normalization import (
    AFFINE_OPTION,
    ROW_OPTIONS,
    Affine,
    RowNormBackward,
    affine_suffix,
    affine_text,
    has_bias,
)
from dispatch_profiler.operations.options import ShapeOption
from dispatch_profiler.operations.rounding import rounded_to


@dataclass(frozen=True)
class LayerNormInputBackward(RowNormBackward):
    """`rows` rows of `size` elements, with sums in `sums_type`.

    dy, x, dx: (rows, size) of `type`; mean, rstd: (rows,) in the accumulator type; weight: (size,) of `type`
    if `affine`.
    """

    kind: ClassVar[str] = "layer_norm_input_backward"
    # The division by N is inexact on integers.
    distributions: ClassVar[tuple[Distribution, ...]] = (Distribution.REALS, Distribution.OFFSET)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (*ROW_OPTIONS, AFFINE_OPTION)

    rows: int
    size: int
    type: str = "f32"
    affine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_affine(self.affine)

    @property
    def name(self) -> str:
        """`layer_norm_input_backward_128x768_f32t[_plain]`"""
        return f"{self.kind}_{self.rows}x{self.size}_{self.type}t" + ("" if self.affine else "_plain")

    @property
    def operands(self) -> tuple[Tensor, ...]:
        weight = self.parameters("weight") if self.affine else ()
        return (self.elements("dy"), self.elements("x"), *self.row_statistics("mean", "rstd"), *weight)

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (self.elements("dx"),)

    @property
    def normalization(self) -> NormGeometry:
        return NormGeometry(self.rows, self.size, self.affine, False, mode="input_backward")

    @property
    def flops(self) -> int:
        """Per element: 2 for xhat, 1 for g * weight, 3 for both sums, 4 for dx; per row: 2 divisions."""
        return self.rows * (self.size * (10 if self.affine else 9) + 2)

    def arguments(self) -> dict[str, str]:
        return {**super().arguments(), "norm-affine": "true" if self.affine else "false"}

    def in_float64(
        self, operands: Sequence[np.ndarray], added_in: ElementType, *, stepwise: bool
    ) -> tuple[Reference, ...]:
        """In float64, by the formula with `rstd**3`, with a first-order error bound.

        With u the unit roundoff, s the bound for a sum of N terms, S = |xhat| and P = mean(|g| S): g has the
        error u|g|, xhat 2u S and g * xhat 4u |g| S. Hence mean(g) has the error (s + 2u) mean|g| and
        mean(g * xhat) (s + 5u) P. Its product with xhat adds 3u S P, and both subtractions 2u (|g| + mean|g|)
        + u S P. The factor rstd scales the sum of all these, and adds u |dx|. `stepwise` doubles the
        constants, and the terms of S may cancel (see `spread`).
        """
        dy, x, mean, rstd, *affine = operands
        mean, rstd = mean[:, None], rstd[:, None]
        g = dy * affine[0] if affine else dy
        centred = x - mean
        dot = np.einsum("ij,ij->i", g, centred)[:, None]
        dx = rstd * (g - g.sum(axis=1, keepdims=True) / self.size) - centred * rstd**3 * (dot / self.size)
        u, sums = self.roundoffs(self.size, added_in, g)
        if stepwise:
            u, sums = 2.0 * u, 2.0 * sums
        spread = self.spread(x, mean, rstd, stepwise)
        mean_g = np.abs(g).mean(axis=1, keepdims=True)
        mean_product = (np.abs(g) * spread).mean(axis=1, keepdims=True)
        error = (
            3.0 * u * np.abs(g) + (sums + 4.0 * u) * mean_g + (sums + 9.0 * u) * spread * mean_product
        ) * np.abs(rstd) + u * np.abs(dx)
        return (Reference(dx, self.stored(dx, error, self.element_type)),)


# -- layer norm weight backward --------------------------------------------------------------------

# Gradients of a layer norm by its weight and bias, as torch's `native_layer_norm_backward` defines them.
#
# With `xhat = (x - mean) * rstd` and sums over rows: `dweight = sum(dy * xhat)`, `dbias = sum(dy)`. mean and rstd
# are operands, as the forward returns them, so eps, which is part of rstd, is not part of this operation.


@dataclass(frozen=True)
class LayerNormWeightBackward(RowNormBackward):
    """`rows` rows of `size` elements, with sums in `sums_type`.

    dy, x: (rows, size) of `type`; mean, rstd: (rows,) in the accumulator type; dweight, dbias: (size,) of `type`, without
    dbias if `affine` is `weight`.
    """

    kind: ClassVar[str] = "layer_norm_weight_backward"
    parallel_axes: ClassVar[tuple[str, ...]] = ("column",)
    reduction_axes: ClassVar[tuple[str, ...]] = ("row",)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (*ROW_OPTIONS, AFFINE_OPTION)

    rows: int
    size: int
    type: str = "f32"
    affine: Affine = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.affine) not in (bool, str) or self.affine not in (True, "weight"):
            raise OperationError(
                f"{self.kind}: affine must be true or weight, which have a weight, but got {self.affine!r}"
            )

    @property
    def name(self) -> str:
        """`layer_norm_weight_backward_128x768_f32t[_weight]`"""
        return f"{self.kind}_{self.rows}x{self.size}_{self.type}t{affine_suffix(self.affine)}"

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.elements("dy"), self.elements("x"), *self.row_statistics("mean", "rstd"))

    @property
    def results(self) -> tuple[Tensor, ...]:
        return self.parameters("dweight", *(("dbias",) if has_bias(self.affine) else ()))

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("column", self.size, "parallel"), Loop("row", self.rows, "reduction"))

    @property
    def row_sums(self) -> None:
        """None: columns are summed."""
        return None

    @property
    def normalization(self) -> NormGeometry:
        return NormGeometry(self.rows, self.size, True, has_bias(self.affine), mode="weight_backward")

    @property
    def flops(self) -> int:
        """Per element: 2 for xhat, 2 for dweight, 1 for dbias."""
        return self.rows * self.size * (4 + has_bias(self.affine))

    def arguments(self) -> dict[str, str]:
        # Without the default value, as in records of versions that had no other value.
        affine = {} if self.affine is True else {"norm-affine": affine_text(self.affine)}
        return {**super().arguments(), **affine}

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """Reals as `RowNormBackward.draw`; integers up to m, where rstd is 1 or 2: |dy * xhat| <= 4 m**2."""
        if distribution is not Distribution.INTEGERS:
            return super().draw(operand, distribution, rng)
        largest = float(self.element_type.finfo().max)
        room = min(float(self.accumulator.exact_integers), largest) / (4.0 * self.rows)
        m = max(1, min(math.isqrt(int(room)), self.element_type.exact_integers, 2**10))
        low, high = (1, 2) if operand.name == "rstd" else (-m, m)
        return rng.integers(low, high, operand.shape, endpoint=True).astype(operand.type.dtype)

    def in_float64(
        self, operands: Sequence[np.ndarray], added_in: ElementType, *, stepwise: bool
    ) -> tuple[Reference, ...]:
        """In float64; exact if all operands are integers whose partial sums are exact in the accumulator.

        Otherwise with first-order error bounds: with u the unit roundoff, s the bound for a sum of `rows`
        terms and S = |xhat|, xhat has the error 2u S and its product with dy 3u |dy| S, so
        |ddweight| <= (s + 3u) sum(|dy| S) + u |dweight| and |ddbias| <= s sum|dy| + u |dbias|. `stepwise` doubles the
        constants, and the terms of S may cancel (see `spread`).
        """
        dy, x, mean, rstd = operands
        mean, rstd = mean[:, None], rstd[:, None]
        dweight = np.einsum("ij,ij,ij->j", np.broadcast_to(rstd, dy.shape), dy, x - mean)
        dbias = np.ones(self.rows) @ dy
        spread = self.spread(x, mean, rstd, stepwise=True)
        largest = float(np.abs(dy).max()) * max(1.0, float(spread.max()))
        if self.sums_exactly((dy, x, mean, rstd), self.rows, largest):
            exact = (Reference(rounded_to(each, self.element_type), None) for each in (dweight, dbias))
            return tuple(exact)[: len(self.results)]
        u, sums = self.roundoffs(self.rows, added_in, dy)
        if stepwise:
            u, sums = 2.0 * u, 2.0 * sums
        else:
            spread = self.spread(x, mean, rstd, stepwise=False)
        weight_error = (sums + 3.0 * u) * (np.abs(dy) * spread).sum(axis=0) + u * np.abs(dweight)
        bias_error = sums * np.abs(dy).sum(axis=0) + u * np.abs(dbias)
        return (
            Reference(dweight, self.stored(dweight, weight_error, self.element_type)),
            Reference(dbias, self.stored(dbias, bias_error, self.element_type)),
        )[: len(self.results)]

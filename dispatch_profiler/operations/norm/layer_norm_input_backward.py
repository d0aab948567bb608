"""Gradient of a layer norm by its input, as torch's `native_layer_norm_backward` defines it.

With `xhat = (x - mean) * rstd`, `g = dy * weight` and means over the N elements of a row:
`dx = rstd * (g - mean(g) - xhat * mean(g * xhat))`. mean and rstd are operands, as the forward returns them,
so eps, which is part of rstd, is not part of this operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from dispatch_profiler.operations._base import ContractFunction, Distribution, ErrorBound, Reference, Tensor
from dispatch_profiler.operations.geometry import NormGeometry
from dispatch_profiler.operations.norm.normalization import (
    AFFINE_OPTION,
    ROW_OPTIONS,
    RowNormBackward,
    swept_points,
)
from dispatch_profiler.operations.options import ShapeOption, SweepOptions


@dataclass(frozen=True)
class LayerNormInputBackward(RowNormBackward):
    """`rows` rows of `size` elements, with sums in `sums_type`.

    dy, x, dx: (rows, size) of `type`; mean, rstd: (rows,) in the accumulator type; weight: (size,) of `type`
    if `affine`.
    """

    kind: ClassVar[str] = "layer_norm_input_backward"
    label: ClassVar[str] = "OperationKind.LayerNormInputBackward"
    # The division by N is inexact on integers.
    distributions: ClassVar[tuple[Distribution, ...]] = (Distribution.REALS, Distribution.OFFSET)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (*ROW_OPTIONS, AFFINE_OPTION)

    rows: int
    size: int
    type: str = "f32"
    affine: bool = True

    def __post_init__(self) -> None:
        self._check()
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
        return {**self.row_arguments(), "norm-affine": "true" if self.affine else "false"}

    @classmethod
    def smallest(cls) -> LayerNormInputBackward:
        return cls(1, 1)

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], LayerNormInputBackward]]:
        for point in swept_points(options, options.shapes.get("norm_affine", (True,))):
            yield partial(cls, *point)

    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """In float64, by the formula with `rstd**3`, with a first-order error bound.

        With u the unit roundoff, s the bound for a sum of N terms, S = |xhat| and P = mean(|g| S): g has the
        error u|g|, xhat 2u S and g * xhat 4u |g| S. Hence mean(g) has the error (s + 2u) mean|g| and
        mean(g * xhat) (s + 5u) P. Its product with xhat adds 3u S P, and both subtractions 2u (|g| + mean|g|)
        + u S P. The factor rstd scales the sum of all these, and adds u |dx|. `stepwise` doubles the
        constants, and the terms of S may cancel (see `spread`).
        """
        dy, x, mean, rstd, *affine = (array.astype(np.float64) for array in operands)
        mean, rstd = mean[:, None], rstd[:, None]
        g = dy * affine[0] if affine else dy
        centred = x - mean
        dot = np.einsum("ij,ij->i", g, centred)[:, None]
        dx = rstd * (g - g.sum(axis=1, keepdims=True) / self.size) - centred * rstd**3 * (dot / self.size)
        u, sums = self.roundoffs(self.size, self.added_in(stepwise, error_bound), g)
        if stepwise:
            u, sums = 2.0 * u, 2.0 * sums
        spread = self.spread(x, mean, rstd, stepwise)
        mean_g = np.abs(g).mean(axis=1, keepdims=True)
        mean_product = (np.abs(g) * spread).mean(axis=1, keepdims=True)
        error = (
            3.0 * u * np.abs(g) + (sums + 4.0 * u) * mean_g + (sums + 9.0 * u) * spread * mean_product
        ) * np.abs(rstd) + u * np.abs(dx)
        return (Reference(dx, self.stored(dx, error, self.element_type)),)

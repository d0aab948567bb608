"""Gradients of a layer norm by its weight and bias, as torch's `native_layer_norm_backward` defines them.

With `xhat = (x - mean) * rstd` and sums over rows: `dweight = sum(dy * xhat)`, `dbias = sum(dy)`. mean and rstd
are operands, as the forward returns them, so eps, which is part of rstd, is not part of this operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import (
    ContractFunction,
    Distribution,
    ErrorBound,
    Loop,
    Reference,
    Tensor,
)
from dispatch_profiler.operations.geometry import NormGeometry
from dispatch_profiler.operations.norm.normalization import (
    AFFINE_OPTION,
    ROW_OPTIONS,
    Affine,
    RowNormBackward,
    affine_suffix,
    affine_text,
    has_bias,
    has_weight,
    swept_points,
)
from dispatch_profiler.operations.options import ShapeOption, SweepOptions
from dispatch_profiler.operations.rounding import rounded_to


@dataclass(frozen=True)
class LayerNormWeightBackward(RowNormBackward):
    """`rows` rows of `size` elements, with sums in `sums_type`.

    dy, x: (rows, size) of `type`; mean, rstd: (rows,) in the accumulator type; dweight, dbias: (size,) of `type`, without
    dbias if `affine` is `weight`.
    """

    kind: ClassVar[str] = "layer_norm_weight_backward"
    label: ClassVar[str] = "OperationKind.LayerNormWeightBackward"
    parallel_axes: ClassVar[tuple[str, ...]] = ("column",)
    reduction_axes: ClassVar[tuple[str, ...]] = ("row",)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (*ROW_OPTIONS, AFFINE_OPTION)

    rows: int
    size: int
    type: str = "f32"
    affine: Affine = True

    def __post_init__(self) -> None:
        self._check()
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
        return {**self.row_arguments(), **affine}

    @classmethod
    def smallest(cls) -> LayerNormWeightBackward:
        return cls(1, 1)

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], LayerNormWeightBackward]]:
        given = options.shapes.get("norm_affine", (True,))
        # A point without a weight fits other kinds of the same sweep.
        for point in swept_points(options, tuple(filter(has_weight, given)) or given):
            yield partial(cls, *point)

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """Reals as `RowNormBackward.draw`; integers up to m, where rstd is 1 or 2: |dy * xhat| <= 4 m**2."""
        if distribution is not Distribution.INTEGERS:
            return super().draw(operand, distribution, rng)
        largest = float(self.element_type.finfo().max)
        room = min(float(self.accumulator.exact_integers), largest) / (4.0 * self.rows)
        m = max(1, min(math.isqrt(int(room)), self.element_type.exact_integers, 2**10))
        low, high = (1, 2) if operand.name == "rstd" else (-m, m)
        return rng.integers(low, high, operand.shape, endpoint=True).astype(operand.type.dtype)

    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """In float64; exact if all operands are integers whose partial sums are exact in the accumulator.

        Otherwise with first-order error bounds: with u the unit roundoff, s the bound for a sum of `rows`
        terms and S = |xhat|, xhat has the error 2u S and its product with dy 3u |dy| S, so
        |ddweight| <= (s + 3u) sum(|dy| S) + u |dweight| and |ddbias| <= s sum|dy| + u |dbias|. `stepwise` doubles the
        constants, and the terms of S may cancel (see `spread`).
        """
        dy, x, mean, rstd = (array.astype(np.float64) for array in operands)
        mean, rstd = mean[:, None], rstd[:, None]
        dweight = np.einsum("ij,ij,ij->j", np.broadcast_to(rstd, dy.shape), dy, x - mean)
        dbias = np.ones(self.rows) @ dy
        spread = self.spread(x, mean, rstd, stepwise=True)
        largest = float(np.abs(dy).max()) * max(1.0, float(spread.max()))
        if self.sums_exactly((dy, x, mean, rstd), self.rows, largest):
            exact = (Reference(rounded_to(each, self.element_type), None) for each in (dweight, dbias))
            return tuple(exact)[: len(self.results)]
        u, sums = self.roundoffs(self.rows, self.added_in(stepwise, error_bound), dy)
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

"""Matrix products in numpy: one call of BLAS per matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.providers.in_numpy._base import (
    NumpyComputation,
    NumpyFamily,
    blas_contraction,
    contraction_computation,
    epilogue_operands,
)


class NumpyProduct(NumpyFamily):
    """See `NumpyFamily`."""

    def method(self, kind: str) -> str:
        """See `NumpyFamily.method`."""
        return "matmul"

    def operands(self, operation: Operation, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """See `NumpyFamily.operands`: views that BLAS reads without a copy."""
        contraction, product = blas_contraction(operation), operation.product
        assert product is not None
        lhs, rhs, *rest = (np.array(array, order="C") for array in arrays)
        lhs = lhs if product.lhs_layout == "t" else lhs.swapaxes(-1, -2)
        rhs = rhs if product.rhs_layout == "t" else rhs.swapaxes(-1, -2)
        return [lhs, rhs, *epilogue_operands(contraction, rest, lhs.dtype)]

    def computation(self, operation: Operation) -> NumpyComputation:
        """See `NumpyFamily.computation`."""
        return contraction_computation(blas_contraction(operation), _multiply)


def _multiply(lhs: np.ndarray, rhs: np.ndarray, sums: np.ndarray) -> None:
    np.matmul(lhs, rhs, out=sums)


FAMILY = NumpyProduct()

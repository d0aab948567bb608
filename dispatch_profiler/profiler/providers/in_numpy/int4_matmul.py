"""Products with weights of 4-bit numbers in numpy: a weight of f32 in each call, and then one BLAS product."""

from __future__ import annotations

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.providers.in_numpy._base import NumpyComputation, NumpyReduction


class NumpyInt4Product(NumpyReduction):
    """See `NumpyFamily`."""

    def method(self, kind: str) -> str:
        """See `NumpyFamily.method`."""
        return "unpacked_matmul"

    def computation(self, operation: Operation) -> NumpyComputation:
        """See `NumpyFamily.computation`."""
        product = operation.int4_product
        assert product is not None
        numbers = np.empty((product.panels, product.k, product.panel), operation.element_type.dtype)
        weight = np.empty((product.k, product.n), operation.element_type.dtype)
        half, middle = product.panel // 2, numbers.dtype.type(product.middle)
        # Views: of the panels as a matrix, and of the weight in groups of terms.
        as_matrix = numbers.transpose(1, 0, 2)
        panels = weight.reshape(product.k, product.panels, product.panel)
        grouped = weight.reshape(product.groups, product.group, product.n)

        def compute(lhs: np.ndarray, rhs: np.ndarray, scales: np.ndarray, result: np.ndarray) -> None:
            stored = rhs.view(np.uint8)
            np.bitwise_and(stored, 15, out=numbers[..., :half], casting="unsafe")
            np.right_shift(stored, 4, out=numbers[..., half:], casting="unsafe")
            np.subtract(as_matrix, middle, out=panels)
            np.multiply(grouped, scales[:, None, :, 0], out=grouped)
            np.add(grouped, scales[:, None, :, 1], out=grouped)
            np.matmul(lhs, weight, out=result)

        return compute


FAMILY = NumpyInt4Product()

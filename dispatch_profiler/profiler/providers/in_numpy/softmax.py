"""Softmax in numpy: a few passes over the rows."""

from __future__ import annotations

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.softmax import Softmax
from dispatch_profiler.profiler.providers.in_numpy._base import NumpyComputation, NumpyReduction


class NumpySoftmax(NumpyReduction):
    """See `NumpyFamily`."""

    def method(self, kind: str) -> str:
        """See `NumpyFamily.method`."""
        return "softmax"

    def computation(self, operation: Operation) -> NumpyComputation:
        """See `NumpyFamily.computation`."""
        assert isinstance(operation, Softmax)
        scale, per_row = operation.scale, np.empty((operation.rows, 1), operation.element_type.dtype)

        def compute(x: np.ndarray, y: np.ndarray) -> None:
            np.max(x, axis=1, keepdims=True, out=per_row)
            np.subtract(x, per_row, out=y)
            if scale != 1.0:
                np.multiply(y, scale, out=y)
            np.exp(y, out=y)
            np.sum(y, axis=1, keepdims=True, out=per_row)
            np.divide(y, per_row, out=y)

        return compute


FAMILY = NumpySoftmax()

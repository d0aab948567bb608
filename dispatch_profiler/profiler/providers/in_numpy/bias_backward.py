"""Sums over all axes but one, in numpy."""

from __future__ import annotations

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.providers.in_numpy._base import NumpyComputation, NumpyReduction


class NumpyBiasBackward(NumpyReduction):
    """See `NumpyFamily`."""

    def method(self, kind: str) -> str:
        """See `NumpyFamily.method`."""
        return "sum"

    def computation(self, operation: Operation) -> NumpyComputation:
        """See `NumpyFamily.computation`."""
        return _channel_sum


def _channel_sum(tensor: np.ndarray, sums: np.ndarray) -> None:
    np.sum(tensor, axis=(0, 2), out=sums)


FAMILY = NumpyBiasBackward()

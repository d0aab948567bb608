"""Layer norms in numpy: a few passes over the rows, with preallocated intermediate and final results."""

from __future__ import annotations

import numpy as np

from dispatch_profiler.operations import NormGeometry, Operation
from dispatch_profiler.profiler.providers.in_numpy._base import NumpyComputation, NumpyReduction


class NumpyLayerNorm(NumpyReduction):
    """See `NumpyFamily`."""

    def method(self, kind: str) -> str:
        """See `NumpyFamily.method`."""
        return "layer_norm" if kind == "layer_norm" else "layer_norm_backward"

    def computation(self, operation: Operation) -> NumpyComputation:
        """See `NumpyFamily.computation`."""
        norm = operation.normalization
        assert norm is not None
        dtype = operation.element_type.dtype
        if norm.mode == "forward":
            return _forward(norm)
        return (
            _input_backward(norm, dtype) if norm.mode == "input_backward" else _weight_backward(norm, dtype)
        )


def _forward(norm: NormGeometry) -> NumpyComputation:
    def compute(x: np.ndarray, *rest: np.ndarray) -> None:
        y, mean, rstd = rest[-3:]
        np.mean(x, axis=1, out=mean)
        np.subtract(x, mean[:, None], out=y)
        np.einsum("ij,ij->i", y, y, out=rstd)
        np.divide(rstd, norm.size, out=rstd)
        np.add(rstd, norm.eps, out=rstd)
        np.sqrt(rstd, out=rstd)
        np.reciprocal(rstd, out=rstd)
        np.multiply(y, rstd[:, None], out=y)
        if norm.has_weight:
            np.multiply(y, rest[0], out=y)
        if norm.has_bias:
            np.add(y, rest[-4], out=y)

    return compute


def _input_backward(norm: NormGeometry, dtype: np.dtype) -> NumpyComputation:
    normalized, scaled = (np.empty((norm.rows, norm.size), dtype) for _ in range(2))
    mean_sum, mean_dot = (np.empty(norm.rows, dtype) for _ in range(2))

    def compute(dy: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray, *rest: np.ndarray) -> None:
        dx = rest[-1]
        _normalize(x, mean, rstd, normalized)
        g = np.multiply(dy, rest[0], out=scaled) if norm.has_weight else dy
        np.mean(g, axis=1, out=mean_sum)
        np.einsum("ij,ij->i", g, normalized, out=mean_dot)
        np.divide(mean_dot, norm.size, out=mean_dot)
        np.subtract(g, mean_sum[:, None], out=dx)
        np.multiply(normalized, mean_dot[:, None], out=normalized)
        np.subtract(dx, normalized, out=dx)
        np.multiply(dx, rstd[:, None], out=dx)

    return compute


def _weight_backward(norm: NormGeometry, dtype: np.dtype) -> NumpyComputation:
    normalized = np.empty((norm.rows, norm.size), dtype)

    def compute(dy: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray, *rest: np.ndarray) -> None:
        _normalize(x, mean, rstd, normalized)
        np.multiply(dy, normalized, out=normalized)
        np.sum(normalized, axis=0, out=rest[0])
        if norm.has_bias:
            np.sum(dy, axis=0, out=rest[1])

    return compute


def _normalize(x: np.ndarray, mean: np.ndarray, rstd: np.ndarray, out: np.ndarray) -> None:
    np.subtract(x, mean[:, None], out=out)
    np.multiply(out, rstd[:, None], out=out)


FAMILY = NumpyLayerNorm()

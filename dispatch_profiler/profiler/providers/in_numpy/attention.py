"""Attention in numpy: a product for scores, a few passes over them, and a product with values."""

from __future__ import annotations

import math

import numpy as np

from dispatch_profiler.operations import AttentionGeometry, Operation
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers.in_numpy._base import NumpyComputation, NumpyReduction


class NumpyAttention(NumpyReduction):
    """See `NumpyFamily`."""

    def method(self, kind: str) -> str:
        """See `NumpyFamily.method`."""
        return "matmul_softmax_matmul"

    def computation(self, operation: Operation) -> NumpyComputation:
        """See `NumpyFamily.computation`."""
        attention = operation.attention
        assert attention is not None
        if attention.logsumexp:
            raise NotSupported("numpy computes attention without logarithms of sums")
        dtype, shared = operation.element_type.dtype, attention.shared
        grouped = (attention.batch, attention.key_heads, shared, attention.queries)
        scores = np.empty((*grouped, attention.keys), dtype)
        per_row, seen = np.empty((*grouped, 1), dtype), _seen(attention)

        def compute(query: np.ndarray, key: np.ndarray, value: np.ndarray, *rest: np.ndarray) -> None:
            query, key, value, result = (
                _heads_first(attention, each) for each in (query, key, value, rest[-1])
            )
            queries = query.reshape(*grouped, attention.size)
            np.matmul(queries, key[:, :, None].swapaxes(-1, -2), out=scores)
            np.multiply(scores, dtype.type(attention.scale), out=scores)
            if attention.mask:
                _add(attention, rest[0], scores)
            if seen is not None:
                np.copyto(scores, -math.inf, where=~seen)
            np.max(scores, axis=-1, keepdims=True, out=per_row)
            per_row[np.isneginf(per_row)] = 0.0
            np.subtract(scores, per_row, out=scores)
            np.exp(scores, out=scores)
            np.sum(scores, axis=-1, keepdims=True, out=per_row)
            per_row[per_row == 0.0] = 1.0
            found = np.matmul(scores, value[:, :, None])
            np.divide(found, per_row, out=found)
            result[...] = found.reshape(result.shape)

        return compute


def _heads_first(attention: AttentionGeometry, array: np.ndarray) -> np.ndarray:
    return array if attention.heads_first else array.swapaxes(1, 2)


def _seen(attention: AttentionGeometry) -> np.ndarray | None:
    return attention.visibility.seen(slice(None)) if attention.causal else None


def _add(attention: AttentionGeometry, mask: np.ndarray, scores: np.ndarray) -> None:
    """Apply a mask in place."""
    if mask.shape[1] > 1:
        mask = mask.reshape(mask.shape[0], attention.key_heads, -1, *mask.shape[2:])
    else:
        mask = mask[:, :, None]
    if attention.mask == "bool":
        np.copyto(scores, -math.inf, where=mask == 0)
    else:
        np.add(scores, mask, out=scores)


FAMILY = NumpyAttention()

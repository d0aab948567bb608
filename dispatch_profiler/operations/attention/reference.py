"""Reference results of attention, with a bound on the error of a correct kernel.

A head's queries are computed in blocks in float64. With u the unit roundoff of the accumulator, s a score, M the same sum
of magnitudes, e = exp(s - max) and p = e / sum(e):

    a score is off by               D = (g + 2u) M + u |s|, with g the bound for a sum of `size` products
    an exponential, relatively, by  r = expm1(D + a u |s - max|) + b u: the maximum itself cancels, as p does not depend on it
    a sum of exponentials by        mean(r), weighted by p, and g' for the additions
    a result by                     sum p |v| (r + mean(r) + g' + g'' + 3u), with g'' for the additions of values

Kernels of narrow types multiply values by exponentials that are rounded to the type, which adds its roundoff to each term,
and its smallest number. A library that computes step by step (`stepwise`) also rounds queries and keys that it has scaled,
the scores, and their sums with a mask. Sources of the sums' bounds: see `contraction/reference.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dispatch_profiler.operations._base import ErrorBound, Reference
from dispatch_profiler.operations.element_types import ElementType
from dispatch_profiler.operations.geometry import AttentionGeometry
from dispatch_profiler.operations.rounding import accumulation_factor, are_alike

#: Relative error of a compiler's approximation of an exponential or a logarithm, in unit roundoffs.
_EXP_ROUNDOFFS = 8.0
#: Rounded operations between a score and the argument of its exponential, including the product with log2(e).
_ARGUMENT_ROUNDOFFS = 4.0
#: Scores of a block.
BLOCK = 2**20


@dataclass(frozen=True)
class OnlineSoftmax(ErrorBound):
    """A kernel that subtracts the maximum of the keys so far, and multiplies its sums when that changes, at most `rescales` times."""

    rescales: int

    def longest_chain(self, operation: object) -> int:
        """Rescaling changes no number of terms."""
        return self.rescales


@dataclass(frozen=True)
class _Bounds:
    """Relative errors: `u` of an operation in the accumulator, `narrow` of storing an exponential in the operands' type.

    `scores` is the relative error of a sum over elements, `values` of a sum over keys, and `stepwise` of a score that a library
    stores. `smallest` is the operands' smallest number. Sums are multiplied `rescales` times.
    """

    u: float
    narrow: float
    smallest: float
    scores: float
    values: float
    stepwise: float
    rescales: int


def reference(
    geometry: AttentionGeometry,
    type_: ElementType,
    operands: Sequence[np.ndarray],
    *,
    stepwise: bool = False,
    error_bound: ErrorBound | None = None,
) -> tuple[Reference, ...]:
    """The reference of each result of an attention of elements of `type_` for `operands`."""
    by_head = [_by_head(geometry, each) for each in operands[:3]]
    mask = operands[3] if geometry.mask else None
    rescales = error_bound.rescales if isinstance(error_bound, OnlineSoftmax) else 0
    bounds = _bounds(geometry, type_, by_head, stepwise=stepwise, rescales=rescales)
    shape = (geometry.batch, geometry.heads, geometry.queries)
    found = np.empty((2, *shape, geometry.value_size))
    logarithms = np.empty((2, *shape))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for batch in range(geometry.batch):
            for head in range(geometry.heads):
                query = by_head[0][batch, head].astype(np.float64)
                key, value = (each[batch, head // geometry.shared].astype(np.float64) for each in by_head[1:])
                for rows in _blocks(geometry):
                    added = None if mask is None else _masked(geometry, mask, batch, head, rows)
                    block = _Block(geometry, type_.accumulator, query[rows], key, value, added, rows, bounds)
                    found[:, batch, head, rows], logarithms[:, batch, head, rows] = block.results()
    return _references(geometry, type_, found, logarithms)


def _by_head(geometry: AttentionGeometry, array: np.ndarray) -> np.ndarray:
    """(batch, head, position, element)"""
    return array if geometry.heads_first else array.swapaxes(1, 2)


def _blocks(geometry: AttentionGeometry) -> Iterator[slice]:
    rows = max(1, BLOCK // geometry.keys)
    return (slice(begin, begin + rows) for begin in range(0, geometry.queries, rows))


def _masked(geometry: AttentionGeometry, mask: np.ndarray, batch: int, head: int, rows: slice) -> np.ndarray:
    """What is added to the scores of a block, which it broadcasts to."""
    own = mask[batch if mask.shape[0] > 1 else 0, head if mask.shape[1] > 1 else 0]
    own = own[rows] if own.shape[0] > 1 else own
    return np.where(own != 0, 0.0, -np.inf) if geometry.mask == "bool" else own.astype(np.float64)


def _bounds(
    geometry: AttentionGeometry,
    element: ElementType,
    factors: Sequence[np.ndarray],
    *,
    stepwise: bool,
    rescales: int,
) -> _Bounds:
    accumulator = element.accumulator
    query, key, value = factors
    is_narrow = element != accumulator
    double = 2.0 if accumulator.name == "f64" else 1.0  # the reference in float64 has the same error
    return _Bounds(
        u=double * accumulator.unit_roundoff,
        narrow=element.unit_roundoff if is_narrow else 0.0,
        smallest=float(element.finfo().smallest_subnormal) if is_narrow else 0.0,
        scores=double * accumulation_factor(geometry.size, accumulator, are_alike=are_alike(query, key)),
        values=double * accumulation_factor(geometry.keys, accumulator, are_alike=are_alike(value)),
        stepwise=element.unit_roundoff if stepwise and is_narrow else 0.0,
        rescales=rescales,
    )


@dataclass(frozen=True)
class _Block:
    """Some queries of a head, with all of its keys."""

    geometry: AttentionGeometry
    accumulator: ElementType
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    #: What is added to scores.
    added: np.ndarray | None
    rows: slice
    bounds: _Bounds

    def results(self) -> tuple[np.ndarray, np.ndarray]:
        """((results, their errors), (logarithms of sums, their errors))."""
        scores, error = self._scores()
        top = scores.max(axis=1, keepdims=True)
        is_empty = np.isneginf(top)
        below = scores - np.where(is_empty, 0.0, top)
        terms = np.exp(below)
        total = terms.sum(axis=1, keepdims=True)
        share = terms / np.where(is_empty, 1.0, total)
        bounds = self.bounds
        distance = np.where(np.isneginf(below), 0.0, np.abs(below))
        relative = np.expm1(np.where(share > 0.0, error, 0.0) + _ARGUMENT_ROUNDOFFS * bounds.u * distance)
        relative = relative + _EXP_ROUNDOFFS * bounds.u + self._rescaled(distance, share)
        of_terms = accumulation_factor(self.geometry.keys, self.accumulator, are_alike=are_alike(terms))
        of_sum = (share * relative).sum(axis=1, keepdims=True) + of_terms
        magnitudes = np.abs(self.value)
        found = share @ self.value
        weighed = share @ magnitudes
        off = (share * relative) @ magnitudes
        off += weighed * (of_sum + bounds.values + bounds.narrow + 3.0 * bounds.u)
        off += bounds.smallest * magnitudes.sum(axis=0)
        logarithm = np.where(is_empty, 0.0, top) + np.log(total)
        off_log = of_sum + _EXP_ROUNDOFFS * bounds.u * np.abs(np.log(np.where(is_empty, 1.0, total)))
        off_log = off_log + 2.0 * bounds.u * np.abs(np.where(is_empty, 0.0, logarithm))
        off, off_log = np.where(is_empty, 0.0, off), np.where(is_empty, 0.0, off_log)
        return np.stack([found, off]), np.stack([logarithm, off_log])[..., 0]

    def _scores(self) -> tuple[np.ndarray, np.ndarray]:
        """The scores, minus infinity where a key is not seen, and bounds on their errors."""
        scale, bounds = self.geometry.scale, self.bounds
        products = scale * (self.query @ self.key.T)
        magnitudes = scale * (np.abs(self.query) @ np.abs(self.key).T)
        error = (bounds.scores + 2.0 * bounds.u + 3.0 * bounds.stepwise) * magnitudes
        scores = products if self.added is None else products + self.added
        if self.added is not None:
            error = error + (bounds.u + bounds.stepwise) * np.where(np.isfinite(scores), np.abs(scores), 0.0)
        seen = self.geometry.visibility.seen(self.rows)
        return np.where(seen, scores, -math.inf), error

    def _rescaled(self, distance: np.ndarray, share: np.ndarray) -> np.ndarray:
        """The error of sums that were multiplied when the maximum changed: of each factor, and of all their arguments."""
        if not self.bounds.rescales:
            return np.zeros(())
        seen = np.where(share > 0.0, distance, 0.0)
        arguments = _ARGUMENT_ROUNDOFFS * seen.max(axis=1, keepdims=True)
        return self.bounds.u * (arguments + (_EXP_ROUNDOFFS + 1.0) * self.bounds.rescales)


def _references(
    geometry: AttentionGeometry, element: ElementType, found: np.ndarray, logarithms: np.ndarray
) -> tuple[Reference, ...]:
    accumulator = element.accumulator
    values, errors = (_by_head(geometry, each) for each in found)
    if element != accumulator:
        errors = errors + element.unit_roundoff * (np.abs(values) + errors)
        errors = errors + np.where(errors > 0.0, float(element.finfo().smallest_subnormal), 0.0)
    tiny = float(accumulator.finfo().tiny)
    result = Reference(values, errors + tiny)
    if not geometry.logsumexp:
        return (result,)
    logarithm, error = logarithms
    return result, Reference(logarithm, np.where(np.isfinite(logarithm), error + tiny, 0.0))

"""Reference results, and error bounds for a correct kernel.

numpy multiplies float32 and float64 matrices with BLAS; its own loops for float16 and integers are
400 times slower, and it has no loops for bf16 and f8. Everything is therefore computed in float32 where
that is exact, and in float64 otherwise: a float64 product of narrower types is far more accurate
than any kernel, and a sum of integers below 2**53 is exact.

If the inputs are integers small enough that every partial sum is exact in the kernel's accumulator,
in any order, the result must match exactly. Otherwise each element may differ by a bound on the
accumulated rounding error. With u the unit roundoff of the accumulator and K the number of products,
Higham and Mary ("A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput.
41(5), 2019, Theorem 3.1) bound the error of a sum of products by `lambda * sqrt(K) * u * sum|a||b|`,
with a failure probability of at most `2 K exp(-lambda**2 / 2)`; the bound `K * u * sum|a||b|` always
holds (Higham, "Accuracy and Stability", section 3.1). A kernel that computes the sums by another algorithm,
such as Winograd's, has its own `ErrorBound`.

The steps of an epilogue follow, each with the error of its argument: see `epilogue_steps`. A bias or residual
that comes first may be the initial value of the sum, as in BLAS (`beta C`) and in IREE where the whole reduction
is unrolled; it is then one of the terms that are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dispatch_profiler.blocks import in_blocks, rows_in_blocks
from dispatch_profiler.operations._base import (
    ContractFunction,
    Contraction,
    ContractionBound,
    ErrorBound,
    Reference,
)
from dispatch_profiler.operations.epilogue_steps import Roundoffs
from dispatch_profiler.operations.rounding import accumulation_factor, are_alike, rounded_to

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_FLOAT32_EXACT = 2**24
#: Elements that are looked at before all others.
_FIRST = 64
#: Steps that a kernel may fold into the sum.
_ADDED = ("bias", "residual")


@dataclass(frozen=True)
class _RoundedSteps:
    """`round`: each step reads a value that was rounded to the result's type, and may compute in it.

    `factor` is the bound on the error of the sums, relative to the sums of magnitudes.
    """

    round: bool
    factor: float


def _contract_with_numpy(
    operation: Contraction,
    lhs: np.ndarray,
    rhs: np.ndarray,
    dtype: np.dtype,
    *,
    of_magnitudes: bool = False,
) -> np.ndarray:
    wide = lhs.astype(dtype), rhs.astype(dtype)
    return operation.contract(*map(np.abs, wide) if of_magnitudes else wide)


def reference(
    operation: Contraction,
    inputs: Sequence[np.ndarray],
    *,
    stepwise: bool = False,
    contract: ContractFunction | None = None,
    error_bound: ErrorBound | None = None,
) -> Reference:
    """The reference result of `operation` for `inputs` (shapes and types as `operation.operands`).

    `stepwise` allows for a library that runs the steps separately and so also rounds to the result's type
    after the sums and after each step; a fused kernel rounds once. `contract` computes the sums;
    `error_bound` applies to a kernel that does not add products.
    """
    contract = contract or _contract_with_numpy
    lhs, rhs = inputs[0], inputs[1]
    operands = [operation.broadcast_operand(each) for each in inputs[2:]]
    with np.errstate(all="ignore"):
        if operation.types.output.is_integer:
            return Reference(_integer_result(operation, lhs, rhs, operands, contract), None)
        bound = _partial_sum_bound(operation, lhs, rhs, error_bound)
        error, factor = np.zeros(()), _factor(operation, lhs, rhs, error_bound)
        is_exact = bound <= operation.types.accumulator.exact_integers and _begins_integral(
            operation, operands
        )
        if is_exact and _is_integral(lhs) and _is_integral(rhs):
            exact = _FLOAT32 if bound <= _FLOAT32_EXACT else _FLOAT64
            sums = contract(operation, lhs, rhs, exact).astype(np.float64)
        else:
            sums, error = _rounded_sums(operation, (lhs, rhs), contract, error_bound, factor)
            bound = math.inf
        rounds = stepwise and operation.rounds_between_steps
        wide = [each.astype(np.float64) for each in operands]
        if not rounds and _stays_exact(operation, bound, operands):
            for step, its in operation.epilogue.with_operands(wide):
                sums = step.apply(sums, its)
            return Reference(rounded_to(sums, operation.types.output), None)
        return _bounded(operation, sums, error, wide, _RoundedSteps(rounds, factor))


def _factor(
    operation: Contraction, lhs: np.ndarray, rhs: np.ndarray, error_bound: ErrorBound | None
) -> float:
    """The bound on the error of a kernel's sums, relative to the sums of magnitudes."""
    terms, type_ = operation.accumulations, operation.types.accumulator
    if error_bound is not None:
        terms = error_bound.longest_chain(operation)
    return accumulation_factor(terms, type_, are_alike=are_alike(lhs, rhs))


def _partial_sum_bound(
    operation: Contraction, lhs: np.ndarray, rhs: np.ndarray, error_bound: ErrorBound | None = None
) -> float:
    """Upper bound on the magnitude of every partial sum of the contraction."""
    if isinstance(error_bound, ContractionBound):
        return error_bound.largest_integer(operation, _largest(lhs), _largest(rhs))
    return operation.accumulations * _largest(lhs) * _largest(rhs)


def _largest(array: np.ndarray) -> float:
    flat = array.reshape(-1)
    wide = np.float64 if array.dtype.itemsize > 2 else np.float32
    return float(
        max(in_blocks(lambda block: np.max(np.abs(flat[block].astype(wide))), array.size), default=0.0)
    )


def _is_integral(array: np.ndarray) -> bool:
    flat = array.reshape(-1)

    def is_integral(block: slice) -> bool:
        wide = flat[block].astype(np.float32) if array.dtype.itemsize < 4 else flat[block]
        return bool(np.all(np.rint(wide) == wide))

    # Most arrays with other numbers have one among the first elements.
    return is_integral(slice(0, _FIRST)) and all(in_blocks(is_integral, array.size))


def _begins_integral(operation: Contraction, operands: Sequence[np.ndarray]) -> bool:
    """Whether what a kernel may begin its sums with is integral: `residual(-0.3)` is not, and every partial sum is rounded."""
    for step, its in operation.epilogue.with_operands(operands):
        return step.name not in _ADDED or (step.is_exact and all(map(_is_integral, its)))
    return True


def _stays_exact(operation: Contraction, bound: float, operands: Sequence[np.ndarray]) -> bool:
    """Whether every step is exact on integers of magnitudes up to `bound`, and integers result."""
    limit = operation.types.accumulator.exact_integers
    for step, its in operation.epilogue.with_operands(operands):
        bound = step.largest(bound, [_largest(each) for each in its])
        if not (bound <= limit and all(map(_is_integral, its))):
            return False
    return bound <= limit


def _integer_result(
    operation: Contraction,
    lhs: np.ndarray,
    rhs: np.ndarray,
    operands: Sequence[np.ndarray],
    contract: ContractFunction,
) -> np.ndarray:
    """Exact values that wrap around after each step, as in the kernel's i32."""
    exact = _FLOAT32 if _partial_sum_bound(operation, lhs, rhs) <= _FLOAT32_EXACT else _FLOAT64
    dtype = operation.result.type.dtype
    value = contract(operation, lhs, rhs, exact).astype(np.int64).astype(dtype)
    for step, its in operation.epilogue.with_operands(operands):
        wide = step.apply(value.astype(np.int64), [each.astype(np.int64) for each in its])
        # int64 holds products of two int32, and float64 the bounds of a clamp.
        value = np.asarray(wide).astype(np.int64).astype(dtype)
    return value


def _rounded_sums(
    operation: Contraction,
    operands: tuple[np.ndarray, np.ndarray],
    contract: ContractFunction,
    error_bound: ErrorBound | None,
    factor: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The sums, and a bound on the error of a kernel's sums, which `factor` gives relative to the sums of magnitudes."""
    lhs, rhs = operands
    sums = contract(operation, lhs, rhs, _FLOAT64)
    # The accumulator's precision suffices for an upper bound; the factor 1.01 covers its rounding.
    magnitudes = contract(operation, lhs, rhs, operation.types.accumulator.dtype, of_magnitudes=True)
    error = 1.01 * factor * magnitudes
    if isinstance(error_bound, ContractionBound):
        # Of float64, the reference has the plain sum's error, and the caller doubles the larger one.
        error = np.maximum(error, error_bound.of_sums(operation, lhs, rhs))
    return sums, error


def _bounded(
    operation: Contraction,
    sums: np.ndarray,
    error: np.ndarray,
    operands: Sequence[np.ndarray],
    steps: _RoundedSteps,
) -> Reference:
    """The reference with its bounds. Values outside the result type's range must match exactly."""
    matrix = _as_matrix(operation, sums)
    errors = error if error.ndim == 0 else _as_matrix(operation, error)
    theirs = [_as_matrix(operation, each) for each in operands]

    def part(block: slice) -> tuple[np.ndarray, np.ndarray]:
        # A single row applies to every row.
        its = [each if len(each) == 1 else each[block] for each in theirs]
        with np.errstate(all="ignore"):  # it is per thread
            return _bounded_part(
                operation, matrix[block], errors if errors.ndim == 0 else errors[block], its, steps
            )

    values, tolerances = zip(*rows_in_blocks(part, *matrix.shape), strict=True)
    return Reference(*(np.concatenate(parts).reshape(sums.shape) for parts in (values, tolerances)))


def _as_matrix(operation: Contraction, array: np.ndarray) -> np.ndarray:
    """A matrix with the result's elements in order; a channel is a column of it, or some of its rows.

    (m, n) -> (m, n)    (n, h, w, c) -> (n h w, c)    (n, c, h, w) -> (n c, h w)

    `array` has the result's shape, or broadcasts against it along `bias_axis`, or has a value for each row. Then the
    matrix has one row, or one column.
    """
    shape, axis = operation.result.shape, operation.bias_axis
    rows = shape[:-1] if axis == len(shape) - 1 else shape[: axis + 1]
    if array.shape == shape:
        return array.reshape(math.prod(rows), -1)
    if array.ndim == len(shape) and array.shape[:-1] == shape[:-1]:  # a value for each row of a product
        return array.reshape(-1, 1)
    if axis == len(shape) - 1:
        return array.reshape(1, -1)
    return np.broadcast_to(array, (*rows, *([1] * (len(shape) - len(rows))))).reshape(-1, 1)


def _bounded_part(
    operation: Contraction,
    sums: np.ndarray,
    error: np.ndarray,
    operands: Sequence[np.ndarray],
    steps: _RoundedSteps,
) -> tuple[np.ndarray, np.ndarray]:
    value, error = _with_epilogue(operation, sums, error, operands, steps)
    accumulator, result = operation.types.accumulator, operation.types.output
    if result != accumulator:
        error = error + _rounding(operation, value, error)
    tiny = float(accumulator.finfo().tiny)  # below this, kernels may flush to zero
    tolerance = (error + tiny).astype(np.float64) * np.ones(value.shape)
    over = np.abs(value) > 2.0 * float(result.finfo().max)
    value = np.where(over, rounded_to(value, result).astype(np.float64), value)
    return value, np.where(np.isfinite(value), tolerance, 0.0)


def _with_epilogue(
    operation: Contraction,
    value: np.ndarray,
    error: np.ndarray,
    operands: Sequence[np.ndarray],
    given: _RoundedSteps,
) -> tuple[np.ndarray, np.ndarray]:
    """Carry the sums and their error through the steps, as derived in `epilogue_steps`."""
    accumulator, rounds = operation.types.accumulator, given.round
    roundoffs = Roundoffs.of(accumulator, operation.types.output if rounds else None)
    steps = list(operation.epilogue.with_operands(operands))
    if steps and steps[0][0].name in _ADDED:
        error = error + given.factor * np.abs(steps[0][0].apply(np.zeros(()), steps[0][1]))
    if accumulator.name == "f64":
        error = 2.0 * error  # the float64 reference has the same error as the kernel
    for step, its in steps:
        if rounds:
            error = error + _rounding(operation, value, error)
        result = step.apply(value, its)
        error = step.error(value, result, error, roundoffs, its)
        value = result
    return value, error


def _rounding(operation: Contraction, value: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Bound on the rounding to the result's type of a number that is within `error` of `value`."""
    result = operation.types.output
    return result.unit_roundoff * (np.abs(value) + error) + float(result.finfo().smallest_subnormal)

"""Reference results, and error bounds for a correct kernel.

numpy multiplies float32 and float64 matrices with BLAS; its own loops for float16 and integers are
400 times slower, and it has none for bf16 and f8. Everything is therefore computed in float32 where
that is exact, and in float64 otherwise: a float64 product of narrower types is far more accurate
than any kernel, and a sum of integers below 2**53 is exact.

If the inputs are integers small enough that every partial sum is exact in the kernel's accumulator,
in any order, the result must match exactly. Otherwise each element may differ by a bound on the
accumulated rounding error. With u the unit roundoff of the accumulator and K the number of products,
Higham and Mary ("A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput.
41(5), 2019, Theorem 3.1) bound the error of a sum of products by `lambda * sqrt(K) * u * sum|a||b|`,
with a failure probability of at most `2 K exp(-lambda**2 / 2)`; the bound `K * u * sum|a||b|` always
holds (Higham, "Accuracy and Stability", section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dispatch_profiler.blocks import in_blocks
from dispatch_profiler.operations._base import ContractFunction, Reference
from dispatch_profiler.operations.rounding import accumulation_factor, rounded_to

if TYPE_CHECKING:
    from dispatch_profiler.operations.contraction import Contraction

#: Relative error of the compiler's approximations of exp, tanh and erf, in unit roundoffs of the
#: accumulator. Measured against scipy: below 4, and below 8 when composed in gelu and sigmoid.
_ACTIVATION_ROUNDOFFS = 16.0

_FLOAT32_EXACT = 2**24
_FLOAT64_EXACT = 2**53


def _contract_with_numpy(operation: Contraction, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return operation.contract(lhs, rhs)


def reference(
    operation: Contraction,
    inputs: Sequence[np.ndarray],
    *,
    stepwise: bool = False,
    contract: ContractFunction | None = None,
) -> Reference:
    """The reference result of `operation` for `inputs` (shapes and types as `operation.operands`).

    `stepwise` allows for a library that runs the steps separately and so also rounds to the result's
    type after the sums and after the bias; a fused kernel rounds once. `contract` computes the sums.
    """
    contract = contract or _contract_with_numpy
    lhs, rhs = inputs[0], inputs[1]
    bias = operation.broadcast_bias(inputs[2]) if operation.epilogue.bias else None
    with np.errstate(all="ignore"):
        bound = _partial_sum_bound(operation, lhs, rhs)
        is_integral = _is_integral(lhs) and _is_integral(rhs)
        if operation.types.output.is_integer:
            return Reference(_integer_result(operation, lhs, rhs, bias, contract), None)
        if is_integral and bound <= operation.types.accumulator.exact_integers:
            exact = np.float32 if bound <= _FLOAT32_EXACT else np.float64
            sums = contract(operation, lhs.astype(exact), rhs.astype(exact)).astype(np.float64)
            return _exact_sums(operation, sums, bias, bound, stepwise)
        return _rounded_sums(operation, lhs, rhs, bias, stepwise, contract)


def _partial_sum_bound(operation: Contraction, lhs: np.ndarray, rhs: np.ndarray) -> float:
    """Upper bound on the magnitude of every partial sum of the contraction."""
    return operation.accumulations * _largest(lhs) * _largest(rhs)


def _largest(array: np.ndarray) -> float:
    wide = array.astype(np.float64 if array.dtype.itemsize > 2 else np.float32)
    return float(np.max(np.abs(wide))) if array.size else 0.0


def _is_integral(array: np.ndarray) -> bool:
    wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    return bool(np.all(np.rint(wide) == wide))


def _integer_result(
    operation: Contraction,
    lhs: np.ndarray,
    rhs: np.ndarray,
    bias: np.ndarray | None,
    contract: ContractFunction,
) -> np.ndarray:
    """Exact sums that wrap around as in the kernel's i32."""
    exact = np.float32 if _partial_sum_bound(operation, lhs, rhs) <= _FLOAT32_EXACT else np.float64
    sums = contract(operation, lhs.astype(exact), rhs.astype(exact)).astype(np.int64)
    if bias is not None:
        sums = sums + bias.astype(np.int64)
    wrapped = sums.astype(operation.result.type.dtype)
    activated = operation.epilogue.function.function(wrapped)
    return np.asarray(activated, dtype=operation.result.type.dtype)


def _exact_sums(
    operation: Contraction, sums: np.ndarray, bias: np.ndarray | None, bound: float, stepwise: bool
) -> Reference:
    exact = operation.epilogue.function.is_exact
    intermediate = np.zeros(())
    if stepwise and operation.rounds_between_steps:
        intermediate = _intermediate_rounding(operation, sums, bias)
        exact = False
    if bias is not None:
        sums = sums + bias.astype(np.float64)
        largest = bound + _largest(bias)
        exact = exact and _is_integral(bias) and largest <= operation.types.accumulator.exact_integers
    value = operation.epilogue.function.function(sums)
    if exact:
        return Reference(rounded_to(value, operation.types.output), None)
    return _bounded(operation, value, sums, intermediate)


def _rounded_sums(
    operation: Contraction,
    lhs: np.ndarray,
    rhs: np.ndarray,
    bias: np.ndarray | None,
    stepwise: bool,
    contract: ContractFunction,
) -> Reference:
    wide_lhs, wide_rhs = lhs.astype(np.float64), rhs.astype(np.float64)
    sums = contract(operation, wide_lhs, wide_rhs)
    # The accumulator's precision suffices for an upper bound; the factor 1.01 covers its rounding.
    dtype = operation.types.accumulator.dtype
    magnitudes = contract(operation, np.abs(wide_lhs).astype(dtype), np.abs(wide_rhs).astype(dtype))
    error = 1.01 * accumulation_factor(operation.accumulations, operation.types.accumulator) * magnitudes
    if stepwise and operation.rounds_between_steps:
        error = error + _intermediate_rounding(operation, sums, bias)
    if bias is not None:
        sums = sums + bias.astype(np.float64)
    value = operation.epilogue.function.function(sums)
    return _bounded(operation, value, sums, error)


def _intermediate_rounding(operation: Contraction, sums: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Error of storing the sums, and the sums with the bias, in the result's type."""
    result = operation.types.output
    stored = np.abs(sums)
    if bias is not None:
        stored = stored + np.abs(sums + bias.astype(np.float64))
    # Doubled: the second rounding applies to an already rounded value.
    return 2.0 * (result.unit_roundoff * stored + float(result.finfo().smallest_subnormal))


def _bounded(operation: Contraction, value: np.ndarray, sums: np.ndarray, error: np.ndarray) -> Reference:
    """The reference with its bounds. Values outside the result type's range must match exactly."""
    flat = [array.reshape(-1) for array in (value, sums)]
    each = error if error.ndim == 0 else error.reshape(-1)

    def part(block: slice) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):  # it is per thread
            return _bounded_part(
                operation, flat[0][block], flat[1][block], each if error.ndim == 0 else each[block]
            )

    values, tolerances = zip(*in_blocks(part, value.size), strict=True)
    return Reference(*(np.concatenate(parts).reshape(value.shape) for parts in (values, tolerances)))


def _bounded_part(
    operation: Contraction, value: np.ndarray, sums: np.ndarray, error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    tolerance = _stored_tolerance(operation, value, sums, error)
    over = np.abs(value) > 2.0 * float(operation.types.output.finfo().max)
    value = np.where(over, rounded_to(value, operation.types.output).astype(np.float64), value)
    return value, np.where(np.isfinite(value), tolerance, 0.0)


def _stored_tolerance(
    operation: Contraction, value: np.ndarray, sums: np.ndarray, error: np.ndarray
) -> np.ndarray:
    """Carry the error of the sums through bias, activation and the rounding to the result's type."""
    accumulator, result = operation.types.accumulator, operation.types.output
    u = accumulator.unit_roundoff
    if operation.epilogue.bias:
        error = error + u * np.abs(sums)
    if accumulator.name == "f64":
        error = 2.0 * error  # the float64 reference has the same error as the kernel
    activation = operation.epilogue.function
    error = activation.slope * error
    if not activation.is_exact:
        # Relative to the larger of argument and value: gelu subtracts near-equal numbers below 0.
        scale = np.maximum(np.abs(value), np.minimum(np.abs(sums), 1.0))
        if activation.name == "tanh" and accumulator.name == "f64":
            scale = np.ones(())  # the template writes it as 1 - 2 / (1 + exp(2x))
        error = error + _ACTIVATION_ROUNDOFFS * u * scale
    if result != accumulator:
        smallest = float(result.finfo().smallest_subnormal)
        error = error + result.unit_roundoff * (np.abs(value) + error) + smallest
    tiny = float(accumulator.finfo().tiny)  # below this, kernels may flush to zero
    return (error + tiny).astype(np.float64) * np.ones(value.shape)

"""Reference results, and error bounds of a correct kernel.

numpy multiplies float32 and float64 matrices through BLAS; its own loops for float16 and integers
are 400 times slower, and there are none for bf16 and f8. So everything is computed in float32 where
that is exact, and in float64 otherwise: a float64 product of narrower types is far more accurate
than any kernel, and a sum of integers below 2**53 is exact.

Two kinds of comparison follow. If the inputs are whole numbers so small that every partial sum is
exact in the kernel's accumulator, in any order, the result must be equal. Otherwise each element may
be off by a bound on accumulated rounding errors. With u the unit roundoff of the accumulator and K
the number of products, Higham and Mary ("A New Approach to Probabilistic Rounding Error Analysis",
SIAM J. Sci. Comput. 41(5), 2019, Theorem 3.1) bound the error of a sum of products by
`lambda * sqrt(K) * u * sum|a||b|` with a probability of failure of at most `2 K exp(-lambda**2 / 2)`;
the bound `K * u * sum|a||b|` holds always (Higham, "Accuracy and Stability", section 3.1).
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
#: accumulator. Seen against scipy: below 4; composed in gelu and sigmoid: below 8.
_ACTIVATION_ROUNDOFFS = 16.0

_FLOAT32_EXACT = 2**24
_FLOAT64_EXACT = 2**53


def _by_numpy(operation: Contraction, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return operation.contract(lhs, rhs)


def reference(
    operation: Contraction,
    inputs: Sequence[np.ndarray],
    *,
    stepwise: bool = False,
    contract: ContractFunction | None = None,
) -> Reference:
    """The reference result of `operation` for `inputs` (shapes and types as `operation.operands`).

    `stepwise` allows for a library that runs each step separately: it rounds to the result's type
    after the sums and after the bias too, where a fused kernel rounds once. `contract` computes the sums.
    """
    contract = contract or _by_numpy
    lhs, rhs = inputs[0], inputs[1]
    bias = operation.broadcast_bias(inputs[2]) if operation.epilogue.bias else None
    with np.errstate(all="ignore"):
        reach = _reach(operation, lhs, rhs)
        whole = _is_whole(lhs) and _is_whole(rhs)
        if operation.types.output.is_integer:
            return Reference(_integers(operation, lhs, rhs, bias, contract), None)
        if whole and reach <= operation.types.accumulator.exact_integers:
            arithmetic = np.float32 if reach <= _FLOAT32_EXACT else np.float64
            sums = contract(operation, lhs.astype(arithmetic), rhs.astype(arithmetic)).astype(np.float64)
            return _exact_sums(operation, sums, bias, reach, stepwise)
        return _rounded_sums(operation, lhs, rhs, bias, stepwise, contract)


def _reach(operation: Contraction, lhs: np.ndarray, rhs: np.ndarray) -> float:
    """No partial sum of the contraction can be larger than this."""
    return operation.accumulations * _largest(lhs) * _largest(rhs)


def _largest(array: np.ndarray) -> float:
    wide = array.astype(np.float64 if array.dtype.itemsize > 2 else np.float32)
    return float(np.max(np.abs(wide))) if array.size else 0.0


def _is_whole(array: np.ndarray) -> bool:
    wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    return bool(np.all(np.rint(wide) == wide))


def _integers(
    operation: Contraction,
    lhs: np.ndarray,
    rhs: np.ndarray,
    bias: np.ndarray | None,
    contract: ContractFunction,
) -> np.ndarray:
    """Exact sums, wrapped around as in the kernel's i32."""
    exact = np.float32 if _reach(operation, lhs, rhs) <= _FLOAT32_EXACT else np.float64
    sums = contract(operation, lhs.astype(exact), rhs.astype(exact)).astype(np.int64)
    if bias is not None:
        sums = sums + bias.astype(np.int64)
    wrapped = sums.astype(operation.result.type.dtype)
    activated = operation.epilogue.function.function(wrapped)
    return np.asarray(activated, dtype=operation.result.type.dtype)


def _exact_sums(
    operation: Contraction, sums: np.ndarray, bias: np.ndarray | None, reach: float, stepwise: bool
) -> Reference:
    exact = operation.epilogue.function.is_exact
    between = np.zeros(())
    if stepwise and operation.rounds_between_steps:
        between = _between_steps(operation, sums, bias)
        exact = False
    if bias is not None:
        sums = sums + bias.astype(np.float64)
        widest = reach + _largest(bias)
        exact = exact and _is_whole(bias) and widest <= operation.types.accumulator.exact_integers
    value = operation.epilogue.function.function(sums)
    if exact:
        return Reference(rounded_to(value, operation.types.output), None)
    return _bounded(operation, value, sums, between)


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
    # An upper bound needs no more than the accumulator; the factor covers its own rounding.
    held = operation.types.accumulator.dtype
    magnitudes = contract(operation, np.abs(wide_lhs).astype(held), np.abs(wide_rhs).astype(held))
    error = 1.01 * accumulation_factor(operation.accumulations, operation.types.accumulator) * magnitudes
    if stepwise and operation.rounds_between_steps:
        error = error + _between_steps(operation, sums, bias)
    if bias is not None:
        sums = sums + bias.astype(np.float64)
    value = operation.epilogue.function.function(sums)
    return _bounded(operation, value, sums, error)


def _between_steps(operation: Contraction, sums: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Error of storing the sums, and the sums with the bias, in the result's type."""
    result = operation.types.output
    stored = np.abs(sums)
    if bias is not None:
        stored = stored + np.abs(sums + bias.astype(np.float64))
    # Twice: the second rounding is of what the first has moved.
    return 2.0 * (result.unit_roundoff * stored + float(result.finfo().smallest_subnormal))


def _bounded(operation: Contraction, value: np.ndarray, sums: np.ndarray, error: np.ndarray) -> Reference:
    """Values outside the result type's range are expected exactly as conversion produces them."""
    flat = [array.reshape(-1) for array in (value, sums)]
    each = error if error.ndim == 0 else error.reshape(-1)

    def part(block: slice) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):  # threads have their own
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
        error = 2.0 * error  # the reference is in float64 itself and as far off as the kernel
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

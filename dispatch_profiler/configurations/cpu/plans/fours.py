"""Products of i8 that CPUs multiply in fours: an instruction adds four products to each sum of i32."""

from __future__ import annotations

from dispatch_profiler.configurations._base import Limits
from dispatch_profiler.operations import Operation

#: Terms that are multiplied together.
FOURS = 4
#: Types of both operands.
I8 = ("i8", "i8")
#: Types of results.
_RESULTS = ("i32", "f32", "bf16", "f16")
#: Terms of i8 at most whose sums an i32 holds: results in i32 wrap around, others must not.
EXACT_TERMS = 2**17 - 1


def fours_reason(operation: Operation) -> str | None:
    """What kernels that multiply i8 in fours are for, if not for `operation`; None if they are for it."""
    product, types = operation.product, operation.as_contraction().types
    if product is None or product.is_batched or product.k % FOURS:
        return f"matmul with a multiple of {FOURS} terms"
    if types.result not in _RESULTS:
        return f"results in {', '.join(_RESULTS[:-1])} and {_RESULTS[-1]}, not {types.result}"
    if not types.output.is_integer and product.k > EXACT_TERMS:
        return f"at most {EXACT_TERMS} terms with {types.result} results, not {product.k}"
    return None


def i8_reason(operation: Operation, limits: Limits) -> str | None:
    """Why the target cannot multiply i8 in fours; None if it can, or for other types."""
    contraction = operation.contraction
    if contraction is not None and contraction.types.inputs == "i8" and not limits.multiplies_i8:
        return "the target has no instructions of AVX-512-VNNI or AVX-VNNI, which multiply i8"
    return None

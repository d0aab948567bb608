"""Matrix products in torch, written to preallocated memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatch_profiler.operations import Contraction, Operation, ProductGeometry
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers.in_torch._base import (
    Computation,
    Tensor,
    TorchFamily,
    TorchFunction,
    apply_steps,
    dtype_of,
    epilogue_operands,
    epilogue_steps,
    single,
    with_at_most_a_bias,
)


class TorchProduct(TorchFamily):
    """See `TorchFamily`."""

    def method(self, kind: str) -> str:
        """See `TorchFamily.method`."""
        return "matmul"

    def handles(
        self, api: Any, operation: Operation, device: Any, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """See `TorchFamily.handles`. Transposed matrices are read without a copy."""
        contraction = operation.as_contraction()
        lhs, rhs, *rest, result = tensors
        operands = epilogue_operands(api, contraction, rest, fuses=contraction.epilogue.starts_with_bias)
        return (*_as_read(contraction.product, lhs, rhs), *operands, result)

    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """See `TorchFamily.computation`."""
        return _computation(api, operation.as_contraction(), device)

    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """See `TorchFamily.function`."""
        contraction = with_at_most_a_bias(operation)

        def enter(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            lhs, rhs, *bias = tensors
            return (*bias, *_as_read(contraction.product, lhs, rhs))

        return TorchFunction(
            enter, api.addmm if contraction.epilogue.starts_with_bias else api.matmul, single
        )


def _as_read(product: ProductGeometry | None, lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    """Both matrices, not transposed."""
    assert product is not None
    return (
        lhs if product.lhs_layout == "t" else lhs.mT,
        rhs if product.rhs_layout == "t" else rhs.mT,
    )


def _computation(api: Any, operation: Contraction, device: Any) -> Computation:
    types = operation.types
    if types.is_mixed:
        raise NotSupported(f"torch multiplies matrices of one type, not {types.lhs} and {types.rhs}")
    if types.input.is_integer:
        return _integer_product(api, operation)
    if types.input.is_f8:
        raise NotSupported(
            f"torch multiplies {types.lhs} only with scales, which this operation does not have"
        )
    if types.lhs != types.result and types.input.precision < types.accumulator.precision:
        return _widened_product(api, operation, device)
    fuses = operation.epilogue.starts_with_bias
    steps = epilogue_steps(api, operation, without_first=fuses)
    multiply_add = api.baddbmm if _is_batched(operation) else api.addmm
    # If the result is narrower than the sums, they are rounded once, at the end.
    shape, dtype = operation.result.shape, dtype_of(api, types.lhs)
    held = None if types.lhs == types.result else api.empty(shape, dtype=dtype, device=device)

    def compute(lhs: Tensor, rhs: Tensor, *rest: Tensor) -> Tensor:
        sums = rest[-1] if held is None else held
        if fuses:
            multiply_add(rest[0], lhs, rhs, out=sums)
        else:
            api.matmul(lhs, rhs, out=sums)
        apply_steps(steps, sums, rest)
        return sums if held is None else rest[-1].copy_(held)

    return compute


def _is_batched(operation: Contraction) -> bool:
    return operation.product is not None and operation.product.is_batched


def _widened_product(api: Any, operation: Contraction, device: Any) -> Computation:
    """Narrow operands with a wider result: supported by cuBLAS, but not on a CPU."""
    types, steps = operation.types, epilogue_steps(api, operation)
    if device.type != "cuda" or types.result != "f32":
        raise NotSupported(f"torch has no product of {types.lhs} with a result in {types.result} here")
    multiply = api.bmm if _is_batched(operation) else api.mm

    def compute(lhs: Tensor, rhs: Tensor, *rest: Tensor) -> Tensor:
        multiply(lhs, rhs, out_dtype=api.float32, out=rest[-1])
        return apply_steps(steps, rest[-1], rest)

    return compute


def _integer_product(api: Any, operation: Contraction) -> Computation:
    """i8 x i8 -> i32, one matrix at a time."""
    steps, batched = epilogue_steps(api, operation), _is_batched(operation)

    def compute(lhs: Tensor, rhs: Tensor, *rest: Tensor) -> Tensor:
        result = rest[-1]
        for left, right, out in zip(lhs, rhs, result, strict=True) if batched else [(lhs, rhs, result)]:
            api._int_mm(left, right, out=out)
        return apply_steps(steps, result, rest)

    return compute


FAMILY = TorchProduct()

"""Layer norms in torch, by `native_layer_norm` and `native_layer_norm_backward`, which allocate their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatch_profiler.operations import NormGeometry, Operation
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers.in_torch._base import (
    Computation,
    Tensor,
    TorchFamily,
    TorchFunction,
    dtype_of,
)


class TorchLayerNorm(TorchFamily):
    """See `TorchFamily`."""

    def method(self, kind: str) -> str:
        """See `TorchFamily.method`."""
        return "layer_norm" if kind == "layer_norm" else "layer_norm_backward"

    def converts_weights_ahead(self, operation: Operation, device: Any) -> bool:
        """See `Library.converts_weights_ahead`: weight and bias in narrow types, on a CPU."""
        return operation.element_type != operation.accumulator and device.type == "cpu"

    def _parameter_type(self, api: Any, operation: Operation, device: Any) -> Any:
        """The type of weight and bias for which torch's mean and rstd are in the accumulator.

        On a CPU they have the type of the parameters: f32 for f16 and bf16, a conversion that is exact. On a GPU
        they always are in the accumulator, and the parameters in the element type.
        """
        if self.converts_weights_ahead(operation, device):
            return api.float32
        return dtype_of(api, operation.element_type.name)

    def handles(
        self, api: Any, operation: Operation, device: Any, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """See `TorchFamily.handles`: the parameters have the type that torch needs."""
        wanted, count = self._parameter_type(api, operation, device), len(operation.operands)
        named = zip(operation.operands, tensors[:count], strict=True)
        operands = (each.to(wanted) if tensor.name in ("weight", "bias") else each for tensor, each in named)
        return (*operands, *tensors[count:])

    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """See `TorchFamily.computation`."""
        norm = operation.normalization
        assert norm is not None
        dtype = dtype_of(api, operation.element_type.name)
        parameters = self._parameter_type(api, operation, device)
        if norm.mode == "weight_backward" and parameters != dtype:
            name = operation.element_type.name
            raise NotSupported(f"torch sums gradients of weight and bias in {name} on a CPU")
        # Without parameters, torch would return mean and rstd in a narrow type, or no gradient of the weight.
        needed = norm.mode == "weight_backward" or parameters != dtype
        one = api.ones(norm.size, dtype=parameters, device=device) if needed else None
        zero = api.zeros(norm.size, dtype=parameters, device=device) if needed else None
        if norm.mode == "forward":
            return _forward(api, norm, one, zero)
        if norm.mode == "input_backward":
            return _input_backward(api, norm, one)
        return _weight_backward(api, norm, one)

    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """See `TorchFamily.function`."""

        def enter(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return self.handles(api, operation, device, tensors)

        return TorchFunction(enter, self.computation(api, operation, device), tuple)


def _forward(api: Any, norm: NormGeometry, one: Tensor, zero: Tensor) -> Computation:
    def compute(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        given = list(rest)
        weight = given.pop(0) if norm.has_weight else one
        bias = given.pop(0) if norm.has_bias else zero
        return tuple(api.native_layer_norm(x, (norm.size,), weight, bias, norm.eps))

    return compute


def _input_backward(api: Any, norm: NormGeometry, plain: Tensor) -> Computation:
    backward, wanted = api.ops.aten.native_layer_norm_backward.default, (True, False, False)

    def compute(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        weight = rest[0] if norm.has_weight else plain
        return (backward(dy, x, (norm.size,), mean, rstd, weight, None, wanted)[0],)

    return compute


def _weight_backward(api: Any, norm: NormGeometry, weight: Tensor) -> Computation:
    backward, wanted = api.ops.aten.native_layer_norm_backward.default, (False, True, norm.has_bias)
    bias, count = (weight, 2) if norm.has_bias else (None, 1)

    def compute(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(backward(dy, x, (norm.size,), mean, rstd, weight, bias, wanted)[1 : 1 + count])

    return compute


FAMILY = TorchLayerNorm()

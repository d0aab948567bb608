"""Layer norms by torch's `native_layer_norm` and `native_layer_norm_backward`, which allocate their results.

`api` is the module torch, which only `torch_library` imports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dispatch_profiler.operations import NormGeometry, Operation
from dispatch_profiler.profiler.providers._base import NotSupported

Tensor = Any
#: (operands, results) -> results; the memory of the results is not used.
NormComputation = Callable[..., tuple[Tensor, ...]]


def _parameter_type(api: Any, operation: Operation, device: Any, dtype: Any) -> Any:
    """The type of weight and bias for which torch's mean and rstd are in the accumulator.

    On a CPU, mean and rstd have the type of the parameters: f32 for f16 and bf16, an exact conversion. On a
    GPU, they always have the accumulator's type, and the parameters have the element type, `dtype`.
    """
    return api.float32 if converts_parameters(operation, device) else dtype


def converts_parameters(operation: Operation, device: Any) -> bool:
    """Whether `norm_handles` converts the type of weight and bias."""
    return operation.element_type != operation.accumulator and device.type == "cpu"


def norm_handles(
    api: Any, operation: Operation, device: Any, dtype: Any, tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """`tensors`, operands and results in the types of the operation, with the parameters as torch needs them."""
    wanted, count = _parameter_type(api, operation, device, dtype), len(operation.operands)
    named = zip(operation.operands, tensors[:count], strict=True)
    operands = (each.to(wanted) if tensor.name in ("weight", "bias") else each for tensor, each in named)
    return (*operands, *tensors[count:])


def norm_computation(api: Any, operation: Operation, device: Any, dtype: Any) -> NormComputation:
    """The computation of a layer norm on the handles of `norm_handles`. Raises NotSupported."""
    norm = operation.normalization
    assert norm is not None
    parameters = _parameter_type(api, operation, device, dtype)
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


def _forward(api: Any, norm: NormGeometry, one: Tensor, zero: Tensor) -> NormComputation:
    def compute(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        given = list(rest)
        weight = given.pop(0) if norm.has_weight else one
        bias = given.pop(0) if norm.has_bias else zero
        return tuple(api.native_layer_norm(x, (norm.size,), weight, bias, norm.eps))

    return compute


def _input_backward(api: Any, norm: NormGeometry, plain: Tensor) -> NormComputation:
    backward, wanted = api.ops.aten.native_layer_norm_backward.default, (True, False, False)

    def compute(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        weight = rest[0] if norm.has_weight else plain
        return (backward(dy, x, (norm.size,), mean, rstd, weight, None, wanted)[0],)

    return compute


def _weight_backward(api: Any, norm: NormGeometry, weight: Tensor) -> NormComputation:
    backward, wanted = api.ops.aten.native_layer_norm_backward.default, (False, True, norm.has_bias)
    bias, count = (weight, 2) if norm.has_bias else (None, 1)

    def compute(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(backward(dy, x, (norm.size,), mean, rstd, weight, bias, wanted)[1 : 1 + count])

    return compute

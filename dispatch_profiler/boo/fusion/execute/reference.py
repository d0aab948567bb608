"""Runs of regions as torch computes them, operator by operator: if a kernel cannot be used, and to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from dispatch_profiler.boo.fusion.execute.batch_norms import batch_norm_scale, batch_norm_shift
from dispatch_profiler.boo.fusion.programs.operators import evaluate
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.spec import ABSENT, OperandSource, RegionSpec, RunSpec
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.operations import ConvolutionGeometry

aten: Any = torch.ops.aten
_functional: Any = functional


def compute(spec: RunSpec, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a run, with the memory that its spec says."""
    values = list(inputs)
    for region, taken in spec.steps:
        values += compute_region(region, [values[each] for each in taken])
    found = (values[each] for each in spec.outputs)
    return [_stored(each, reading) for each, (_, reading, _) in zip(found, spec.results, strict=True)]


def compute_region(spec: RegionSpec, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results of a region, in torch's shapes."""
    operation = spec.operation
    if isinstance(operation, OperatorProgram):
        return evaluate(operation, inputs)
    if operation.normalization is not None:
        found = _norm(spec, inputs)
    elif operation.channel_sum is not None:
        (gradient,) = operation.operands
        found = [_operand(spec.sources[0], inputs, False).reshape(gradient.shape).sum((0, 2))]
    else:
        contraction = operation.as_contraction()
        count = 2
        geometry = operation.convolution
        are_images = geometry is not None
        operands = [_operand(source, inputs, are_images) for source in spec.sources[:count]]
        sums = _product(spec, *operands) if geometry is None else _convolution(spec, geometry, *operands)
        # As in torch, channels are the second axis of an image, and the last one of a row.
        axis = 1 if geometry is not None else sums.dim() - 1
        sources = spec.sources[count:]
        for step, place in contraction.epilogue.places():
            given = [
                _along(each, axis, sums)
                for each in (_operand(source, inputs, are_images) for source in sources[place])
            ]
            sums = _STEPS[step.name](sums, step, *given)
        found = [sums]
    return [each.reshape(shape) for each, (shape, _) in zip(found, spec.results, strict=True)]


def _operand(source: OperandSource, inputs: Sequence[Tensor], are_images: bool) -> Tensor:
    """An operand in torch's order of axes; without `are_images`, channels are last."""
    given = [None if at == ABSENT else inputs[at] for at in source.inputs]
    if source.reading == "scale":
        return batch_norm_scale(*given, eps=source.eps)
    if source.reading == "shift":
        return batch_norm_shift(*given, eps=source.eps)
    if source.reading == "channels" and not are_images:
        return given[0].permute(0, *range(2, given[0].dim()), 1)  # type: ignore[union-attr]
    return given[0]


def _along(operand: Tensor, axis: int, of: Tensor) -> Tensor:
    """An operand that broadcasts against `of`: a vector along `axis`, or a tensor with as many elements."""
    if operand.numel() == of.numel():
        return operand.reshape(of.shape)
    return operand.reshape([-1 if at == axis else 1 for at in range(of.dim())])


def _convolution(spec: RegionSpec, geometry: ConvolutionGeometry, lhs: Tensor, rhs: Tensor) -> Tensor:
    steps = list(geometry.stride), list(geometry.padding), list(geometry.dilation)
    if geometry.mode == "forward":
        return aten.convolution(lhs, rhs, None, *steps, False, [0], geometry.groups)
    is_input = geometry.mode == "input_backward"
    result = lhs.new_empty(1).expand(spec.results[0][0])
    x, weight = (result, rhs) if is_input else (rhs, result)
    mask = [is_input, not is_input, False]
    return aten.convolution_backward(lhs, x, weight, None, *steps, False, [0], geometry.groups, mask)[
        0 if is_input else 1
    ]


def _product(spec: RegionSpec, lhs: Tensor, rhs: Tensor) -> Tensor:
    product, (of_lhs, of_rhs, *_) = spec.operation.product, spec.operation.operands
    assert product is not None
    left, right = lhs.reshape(of_lhs.shape), rhs.reshape(of_rhs.shape)
    return (left if product.lhs_layout == "t" else left.mT) @ (
        right if product.rhs_layout == "t" else right.mT
    )


def _norm(spec: RegionSpec, inputs: Sequence[Tensor]) -> list[Tensor]:
    norm = spec.operation.normalization
    assert norm is not None
    tensors = [
        _operand(source, inputs, False).reshape(tensor.shape)
        for source, tensor in zip(spec.sources, spec.operation.operands, strict=True)
    ]
    size = [norm.size]
    if spec.operation.kind == "layer_norm":
        x, *affine = tensors
        scale = affine.pop(0) if norm.has_weight else None
        shift = affine.pop(0) if norm.has_bias else None
        return list(aten.native_layer_norm(x, size, scale, shift, norm.eps))
    dy, x, mean, rstd, *weight = tensors
    statistics = mean.reshape(-1, 1).to(x.dtype), rstd.reshape(-1, 1).to(x.dtype)
    if norm.mode == "input_backward":
        given = weight[0] if weight else None
        return [
            aten.native_layer_norm_backward(dy, x, size, *statistics, given, given, [True, False, False])[0]
        ]
    ones, mask = x.new_ones(size), [False, True, norm.has_bias]
    found = aten.native_layer_norm_backward(
        dy, x, size, *statistics, ones, ones if norm.has_bias else None, mask
    )
    return list(found[1 : 1 + len(spec.results)])


def _stored(tensor: Tensor, reading: str) -> Tensor:
    if reading == "rows":
        return tensor.contiguous()
    axes = tensor.dim()
    dense = tensor.permute(0, *range(2, axes), 1).contiguous()
    return dense.permute(0, axes - 1, *range(1, axes - 1))


_STEPS: dict[str, Callable[..., Tensor]] = {
    "bias": lambda x, step, bias: x + bias,
    "residual": lambda x, step, residual: x + residual,
    "scale_shift": lambda x, step, scale, shift: x * scale + shift,
    "relu": lambda x, step: x.relu(),
    "relu6": lambda x, step: _functional.hardtanh(x, 0.0, 6.0),
    "clamp": lambda x, step: x.clamp(*step.parameters),
    "leaky_relu": lambda x, step: _functional.leaky_relu(x, *step.parameters),
    "gelu": lambda x, step: _functional.gelu(x),
    "gelu_tanh": lambda x, step: _functional.gelu(x, approximate="tanh"),
    "silu": lambda x, step: _functional.silu(x),
    "sigmoid": lambda x, step: x.sigmoid(),
    "tanh": lambda x, step: x.tanh(),
}

"""Layer norms with their statistics, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dispatch_profiler.boo.fusion.nodes import Node, NotFusible, aten, check_alike, shape, value
from dispatch_profiler.boo.fusion.roots._base import (
    Begin,
    Begun,
    RootFamily,
    RootTraits,
    read,
    results_read,
    without_steps,
)
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.operations import (
    BiasBackward,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
)
from dispatch_profiler.operations.norm.normalization import affine_of


def _layer_norm(node: Node) -> Begun:
    """A layer norm, with its statistics. Raises NotFusible."""
    x, normalized, weight, bias, eps = node.args
    type_ = check_alike(x, weight, bias)
    size = math.prod(normalized)
    rows = math.prod(shape(x)) // size
    made = LayerNorm(rows, size, type_, float(eps), affine_of(weight is not None, bias is not None))
    affine = [read("rows", each) for each in (weight, bias) if each is not None]
    results = results_read(node)
    outputs = tuple(results.get(at) for at in range(3))
    if outputs[0] is None:
        raise NotFusible("its result is not read")
    nodes = (node, *(each for each in outputs if each is not None))
    operands = (read("rows", x), *affine)
    return without_steps(made, outputs, operands, nodes=nodes, values=node.meta["val"])


def _layer_norm_backward(node: Node) -> tuple[Begun, ...]:
    """The gradients of a layer norm's input, and of its weight and bias. Raises NotFusible."""
    dy, x, normalized, mean, rstd, weight, bias, mask = node.args
    type_ = check_alike(x, dy, weight, bias)
    size = math.prod(normalized)
    rows = math.prod(shape(x)) // size
    results = results_read(node)
    statistics = (read("rows", mean), read("rows", rstd))
    both = (read("rows", dy), read("rows", x))
    parts = []
    if 0 in results and mask[0]:
        scale = () if weight is None else (read("rows", weight),)
        made = LayerNormInputBackward(rows, size, type_, weight is not None)
        parts.append(without_steps(made, (results[0],), (*both, *statistics, *scale)))
    wants_bias = 2 in results and bool(mask[2])
    if 1 in results and mask[1]:
        of_weight = LayerNormWeightBackward(rows, size, type_, affine_of(True, wants_bias))
        outputs = (results[1], *([results[2]] if wants_bias else []))
        values = (value(weight),) * len(outputs)
        parts.append(without_steps(of_weight, outputs, (*both, *statistics), values=values))
    elif wants_bias:
        of_bias = BiasBackward(rows, size, 1, type_)
        parts.append(without_steps(of_bias, (results[2],), (both[0],), values=(value(bias),)))
    if not parts:
        raise NotFusible("no gradient is read")
    return tuple(parts)


class LayerNormRoots(RootFamily):
    """See `RootFamily`."""

    roots: ClassVar[Mapping[str, RootTraits]] = {
        "layer_norm": RootTraits(is_default=True),
        "layer_norm_backward": RootTraits(is_gradient=True),
    }
    operators: Mapping[Any, Begin] = {
        aten.native_layer_norm.default: _layer_norm,
        aten.native_layer_norm_backward.default: _layer_norm_backward,
    }

    def root(self, node: Node) -> str:
        """See `RootFamily.root`."""
        return "layer_norm" if node.target is aten.native_layer_norm.default else "layer_norm_backward"

    def compute(self, spec: RegionSpec, operands: Sequence[Tensor]) -> list[Tensor]:
        """See `RootFamily.compute`."""
        norm = spec.operation.normalization
        assert norm is not None
        named = zip(operands, spec.operation.operands, strict=True)
        tensors = [each.reshape(tensor.shape) for each, tensor in named]
        size = [norm.size]
        if norm.mode == "forward":
            x, *affine = tensors
            scale = affine.pop(0) if norm.has_weight else None
            shift = affine.pop(0) if norm.has_bias else None
            return list(aten.native_layer_norm(x, size, scale, shift, norm.eps))
        dy, x, mean, rstd, *weight = tensors
        statistics = mean.reshape(-1, 1).to(x.dtype), rstd.reshape(-1, 1).to(x.dtype)
        backward = aten.native_layer_norm_backward
        if norm.mode == "input_backward":
            given = weight[0] if weight else None
            return [backward(dy, x, size, *statistics, given, given, [True, False, False])[0]]
        ones, mask = x.new_ones(size), [False, True, norm.has_bias]
        gradients = backward(dy, x, size, *statistics, ones, ones if norm.has_bias else None, mask)
        return list(gradients[1 : 1 + len(spec.results)])


FAMILY = LayerNormRoots()

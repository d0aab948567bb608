"""Convolutions and transposed ones, and the gradients of their input and weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dispatch_profiler.boo.fusion.nodes import Node, NotFusible, argument, aten, check_alike, shape
from dispatch_profiler.boo.fusion.roots._base import (
    Begun,
    RootFamily,
    RootTraits,
    read,
    results_read,
    without_steps,
)
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, ElementTypes, Operation
from dispatch_profiler.operations.epilogues import Step

_CONVOLUTIONS: dict[int, Any] = {1: Conv1d, 2: Conv2d, 3: Conv3d}
_PIXELS = {1: "w", 2: "hw", 3: "dhw"}
_TAPS = {1: "s", 2: "rs", 3: "trs"}
#: Channels last, as torch's channels_last has images and filters.
_LAYOUTS = {1: "nwc_fwc_nwc", 2: "nhwc_fhwc_nhwc", 3: "ndhwc_fdhwc_ndhwc"}


def _convolution(node: Node) -> Begun:
    """A convolution, or a transposed one, whose bias is a step. Raises NotFusible."""
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    type_ = check_alike(x, weight, bias)
    if len(shape(x)) != len(shape(weight)):
        raise NotFusible("it has no batch axis")
    fields = _fields(shape(x), shape(weight), type_, is_transposed=bool(transposed), groups=groups)
    rank = len(shape(x)) - 2
    fields |= {
        "stride": _each(stride, rank),
        "padding": _each(padding, rank),
        "dilation": _each(dilation, rank),
    }
    if transposed:
        extra = _each(output_padding, rank)
        made = _CONVOLUTIONS[rank].transposed(output_padding=extra, **fields)
    else:
        made = _CONVOLUTIONS[rank](**fields)
    operands = [read("channels", x), read("filter", weight)]
    return Begun(
        operation=lambda epilogue: replace(made, epilogue=epilogue),
        nodes=(node,),
        outputs=(node,),
        operands=(*operands, *([read("rows", bias)] if bias is not None else [])),
        images="channels",
        steps=(Step("bias"),) if bias is not None else (),
    )


def _fields(
    x: Sequence[int], weight: Sequence[int], type_: str, *, is_transposed: bool, groups: int
) -> dict[str, Any]:
    rank = len(x) - 2
    if rank not in _CONVOLUTIONS:
        raise NotFusible(f"it has {rank} spatial axes")
    return {
        "n": x[0],
        "c": x[1],
        "k": weight[1] * groups if is_transposed else weight[0],
        **dict(zip(_PIXELS[rank], x[2:], strict=True)),
        **dict(zip(_TAPS[rank], weight[2:], strict=True)),
        "groups": groups,
        "types": ElementTypes(type_, type_, type_),
        "layout": _LAYOUTS[rank],
    }


def _each(values: Sequence[int], rank: int) -> tuple[int, ...]:
    found = tuple(values)
    if not all(type(each) is int for each in found):
        raise NotFusible("its stride or padding is dynamic")
    return found * rank if len(found) == 1 else found


def _convolution_backward(node: Node) -> Begun:
    """The gradients of a convolution's input and weight, each by a kernel of its own. Raises NotFusible.

    That of the bias is left to torch, which sums.
    """
    dy, x, weight, _, stride, padding, dilation, transposed, output_padding, groups, mask = node.args
    type_ = check_alike(x, dy, weight)
    rank = len(shape(x)) - 2
    if len(shape(x)) != len(shape(weight)):
        raise NotFusible("it has no batch axis")
    fields = _fields(shape(x), shape(weight), type_, is_transposed=bool(transposed), groups=groups)
    fields |= {
        "stride": _each(stride, rank),
        "padding": _each(padding, rank),
        "dilation": _each(dilation, rank),
    }
    if transposed:
        # A transposed convolution is the gradient of the mirrored one, whose input has the shape of dy.
        mirrored = _CONVOLUTIONS[rank].transposed(output_padding=_each(output_padding, rank), **fields)
        of_input = replace(mirrored, mode="forward")
        of_weight = replace(mirrored, mode="weight_backward")
        gradient, image = x, dy
    else:
        of_input = _CONVOLUTIONS[rank](**fields, mode="input_backward")
        of_weight = _CONVOLUTIONS[rank](**fields, mode="weight_backward")
        gradient, image = dy, x
    results = results_read(node)
    parts = []
    if 0 in results and mask[0]:
        operands = (read("channels", dy), read("filter", weight))
        parts.append(without_steps(of_input, (results[0],), operands, images="channels"))
    if 1 in results and mask[1]:
        operands = (read("channels", gradient), read("channels", image))
        parts.append(without_steps(of_weight, (results[1],), operands, images="channels"))
    if not parts:
        raise NotFusible("no gradient is read")
    return replace(parts[0], several=tuple(parts))


class ConvolutionRoots(RootFamily):
    """See `RootFamily`."""

    roots: ClassVar[Mapping[str, RootTraits]] = {
        "convolution": RootTraits(has_steps=True, is_default=True),
        "transposed_convolution": RootTraits(has_steps=True, is_default=True),
        "convolution_backward": RootTraits(is_gradient=True),
    }
    operators: Mapping[Any, Callable[[Node], Begun]] = {
        aten.convolution.default: _convolution,
        aten.convolution_backward.default: _convolution_backward,
    }
    has_images: ClassVar[bool] = True

    def root(self, node: Node) -> str:
        """See `RootFamily.root`."""
        if node.target is aten.convolution_backward.default:
            return "convolution_backward"
        return "transposed_convolution" if argument(node, 6, "transposed", False) else "convolution"

    def compute(self, spec: RegionSpec, operands: Sequence[Tensor]) -> list[Tensor]:
        """See `RootFamily.compute`."""
        geometry, (lhs, rhs) = spec.operation.convolution, operands
        assert geometry is not None
        steps = list(geometry.stride), list(geometry.padding), list(geometry.dilation)
        if geometry.mode == "forward":
            return [aten.convolution(lhs, rhs, None, *steps, False, [0], geometry.groups)]
        is_input = geometry.mode == "input_backward"
        result = lhs.new_empty(1).expand(spec.results[0][0])
        x, weight = (result, rhs) if is_input else (rhs, result)
        mask = [is_input, not is_input, False]
        gradients = aten.convolution_backward(lhs, x, weight, None, *steps, False, [0], geometry.groups, mask)
        return [gradients[0 if is_input else 1]]

    def flops(self, operation: Operation) -> int:
        """See `RootFamily.flops`: also for the taps that padding is under."""
        geometry = operation.convolution
        assert geometry is not None
        # In torch's formula for the gradient of a weight, groups do not count.
        is_weight = geometry.mode == "weight_backward"
        channels = geometry.channels if is_weight else geometry.channels_per_group
        taps = math.prod(geometry.filter_size) * math.prod(geometry.output_size)
        return 2 * geometry.batch * geometry.filters * channels * taps


FAMILY = ConvolutionRoots()

"""Convolutions and transposed ones, and the gradients of their input and weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dispatch_profiler.boo.fusion.nodes import Node, NotFusible, argument, aten, check_alike, shape
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
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.epilogues import Step
from dispatch_profiler.workloads.miopen import ConvProblem

#: Channels last, as torch's channels_last has images and filters.
_LAYOUTS = {rank: (f"n{axes}c", f"f{axes}c", f"n{axes}c") for rank, axes in ((1, "w"), (2, "hw"), (3, "dhw"))}


def _convolution(node: Node) -> Begun:
    """A convolution, or a transposed one, whose bias is a step. Raises NotFusible."""
    x, weight, bias, *window = node.args
    made = _problem(x, weight, check_alike(x, weight, bias), *window).operation("forward")
    operands = [read("channels", x), read("filter", weight)]
    return Begun(
        operation=lambda epilogue: replace(made, epilogue=epilogue),  # type: ignore[type-var]
        nodes=(node,),
        outputs=(node,),
        operands=(*operands, *([read("rows", bias)] if bias is not None else [])),
        images="channels",
        steps=(Step("bias"),) if bias is not None else (),
    )


def _convolution_backward(node: Node) -> tuple[Begun, ...]:
    """The gradients of a convolution's input and weight, each by a kernel of its own. Raises NotFusible.

    The gradient of the bias is left to torch, which sums.
    """
    dy, x, weight, _, *window, mask = node.args
    problem = _problem(x, weight, check_alike(x, dy, weight), *window)
    # The mirrored convolution, which computes the gradients of a transposed one, has dy as its input.
    gradient, image = (x, dy) if problem.is_transposed else (dy, x)
    results = results_read(node)
    parts = []
    for at, mode, operands in (
        (0, "input_backward", (read("channels", dy), read("filter", weight))),
        (1, "weight_backward", (read("channels", gradient), read("channels", image))),
    ):
        if at in results and mask[at]:
            parts.append(without_steps(problem.operation(mode), (results[at],), operands, images="channels"))
    if not parts:
        raise NotFusible("no gradient is read")
    return tuple(parts)


def _problem(
    x: Node,
    weight: Node,
    type_: str,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> ConvProblem:
    (images, channels, *pixels), (outer, inner, *window) = shape(x), shape(weight)
    rank = len(pixels)
    if rank != len(window):
        raise NotFusible("it has no batch axis")
    if rank not in _LAYOUTS:
        raise NotFusible(f"it has {rank} spatial axes")
    return ConvProblem(
        images=images,
        channels=channels,
        filters=inner * groups if transposed else outer,
        pixels=tuple(pixels),
        window=tuple(window),
        layouts=_LAYOUTS[rank],
        type=type_,
        stride=_each(stride, rank),
        padding=_each(padding, rank),
        dilation=_each(dilation, rank),
        output_padding=_each(output_padding, rank) if transposed else (),
        groups=groups,
        is_transposed=bool(transposed),
    )


def _each(values: Sequence[int], rank: int) -> tuple[int, ...]:
    numbers = tuple(values)
    if not all(type(each) is int for each in numbers):
        raise NotFusible("its stride or padding is dynamic")
    return numbers * rank if len(numbers) == 1 else numbers


class ConvolutionRoots(RootFamily):
    """See `RootFamily`."""

    roots: ClassVar[Mapping[str, RootTraits]] = {
        "convolution": RootTraits(has_steps=True, is_default=True),
        "transposed_convolution": RootTraits(has_steps=True, is_default=True),
        "convolution_backward": RootTraits(is_gradient=True),
    }
    operators: Mapping[Any, Begin] = {
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

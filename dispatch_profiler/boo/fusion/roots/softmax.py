"""Softmax over the last axis, with a factor before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from dispatch_profiler.boo.fusion.nodes import Node, NotFusible, argument, aten, check_alike, only_user, shape
from dispatch_profiler.boo.fusion.roots._base import Begun, RootFamily, RootTraits, read, without_steps
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.operations import Softmax


def _softmax(node: Node) -> Begun:
    """A softmax, with the product or quotient by a number of which nothing else is read. Raises NotFusible."""
    x, axis = node.args[:2]
    if argument(node, 2, "half_to_float", False):
        raise NotFusible("it changes the type")
    size = shape(x)
    if not size or axis % len(size) != len(size) - 1:
        raise NotFusible("it is not over the last axis")
    nodes, scale = [node], 1.0
    factor = _factor(x)
    if factor is not None and only_user(x) is node:
        nodes, scale, x = [x, node], factor, x.args[0]
    made = Softmax(math.prod(size[:-1]), size[-1], check_alike(x), scale)
    return without_steps(made, (node,), (read("rows", x),), nodes=nodes)


def _factor(node: Node) -> float | None:
    """The positive number by which a node multiplies a tensor of its shape; None if it does something else."""
    if node.op != "call_function" or node.target not in (aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar):
        return None
    number = node.args[1]
    if type(number) not in (int, float) or not 0.0 < number < math.inf or shape(node.args[0]) != shape(node):
        return None
    factor = 1.0 / number if node.target is aten.div.Tensor else float(number)
    return factor if 0.0 < factor < math.inf else None


class SoftmaxRoots(RootFamily):
    """See `RootFamily`."""

    roots: ClassVar[Mapping[str, RootTraits]] = {"softmax": RootTraits()}
    operators: Mapping[Any, Callable[[Node], Begun]] = {aten._softmax.default: _softmax}

    def compute(self, spec: RegionSpec, operands: Sequence[Tensor]) -> list[Tensor]:
        """See `RootFamily.compute`."""
        operation, (x,) = spec.operation, operands
        assert isinstance(operation, Softmax)
        rows = x.reshape(operation.rows, operation.size)
        return [(rows * operation.scale if operation.is_scaled else rows).softmax(1)]


FAMILY = SoftmaxRoots()

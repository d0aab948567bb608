"""Nodes of an aten graph as steps of an epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.boo.fusion.nodes import (
    Node,
    NotFusible,
    argument,
    aten,
    check_alike,
    first_result,
    only_user,
    shape,
    value,
)
from dispatch_profiler.boo.fusion.roots._base import Operand
from dispatch_profiler.operations.epilogues import Step


@dataclass(frozen=True)
class NodeStep:
    """A step, the nodes that it replaces, the last of which has its result, and what it reads."""

    step: Step
    nodes: tuple[Node, ...]
    operands: tuple[Operand, ...] = ()

    @property
    def result(self) -> Node:
        """The node that yields the step's result."""
        return self.nodes[-1]


def follower(of: Node) -> Node | None:
    """The node that may begin a step on `of`: its only reader, or the sigmoid of x * sigmoid(x).

    None if other nodes read `of` too, or if the graph returns it.
    """
    only = only_user(of)
    if only is not None:
        return only
    return next((user for user in of.users if _gated_product(user, of) is not None), None)


def step_of(node: Node, of: Node, images: str) -> NodeStep | None:
    """`node`, which reads `of`, as a step on it; None if it is no step.

    `node` is the `follower` of `of`. `images` is how tensors of the result's shape are read: `channels` or `rows`.
    Raises NotFusible if it would be a step, but for the reason given.
    """
    if node.target not in _STEPS:
        return None
    step = _STEPS[node.target](node, of, images)
    if step is not None and (shape(step.result) != shape(of) or value(step.result).dtype != value(of).dtype):
        raise NotFusible(f"{node} changes the shape or the type")
    return step


def _batch_norm(node: Node, of: Node, images: str) -> NodeStep | None:
    if node.target is aten.native_batch_norm.default and argument(node, 5, "training"):
        raise NotFusible(f"{node} is in training mode")
    x, weight, bias, mean, variance = node.args[:5]
    eps = node.args[-1]
    if x is not of or images != "channels" or len(shape(of)) < 3:
        return None
    check_alike(of, weight, bias, mean, variance)
    result = first_result(node)
    if result is None:
        raise NotFusible(f"other results of {node} are read")
    if mean is None or variance is None:
        raise NotFusible(f"{node} has no running statistics")
    scale = Operand("scale", (weight, variance), float(eps))
    shift = Operand("shift", (weight, variance, bias, mean), float(eps))
    return NodeStep(Step("scale_shift"), (node, result), (scale, shift))


def _residual(node: Node, of: Node, images: str) -> NodeStep | None:
    first, second = node.args[:2]
    other = second if first is of else first
    if other is of or not hasattr(other, "meta") or value(other) is None:
        raise NotFusible(f"{node} adds no other tensor")
    # 1.0 and True equal 1.
    if node.kwargs.get("alpha", 1) != 1:
        raise NotFusible(f"{node} has alpha != 1")
    check_alike(of, other)
    if images == "rows" and _is_per_channel(other, of):
        return NodeStep(Step("bias"), (node,), (Operand("rows", (other,)),))
    if shape(other) != shape(of):
        raise NotFusible(f"{node} broadcasts")
    return NodeStep(Step("residual"), (node,), (Operand(images, (other,)),))


def _scale(node: Node, of: Node, images: str) -> NodeStep | None:
    """A product with a value for each column or row, such as the scales of quantised operands. Other products are no step."""
    other = next((each for each in node.args if each is not of), None)
    if images != "rows" or not hasattr(other, "meta") or value(other) is None:
        return None
    for name, is_scale in (("channel_scale", _is_per_channel), ("row_scale", _is_per_row)):
        if is_scale(other, of):
            check_alike(of, other)
            return NodeStep(Step(name), (node,), (Operand("rows", (other,)),))
    return None


def _is_per_channel(other: Node, of: Node) -> bool:
    """Whether a tensor has an element for each column of the rows `of`."""
    extents = shape(other)
    return shape(of) != extents and extents[-1:] == shape(of)[-1:] and set(extents[:-1]) <= {1}


def _is_per_row(other: Node, of: Node) -> bool:
    """Whether a tensor has an element for each of several rows of `of`."""
    extents = shape(other)
    return len(shape(of)) > 1 and extents == (*shape(of)[:-1], 1) != shape(of)


def _plain(name: str) -> Callable[[Node, Node, str], NodeStep | None]:
    return lambda node, of, images: NodeStep(Step(name), (node,))


def _gate(name: str, gated: str) -> Callable[[Node, Node, str], NodeStep | None]:
    """The step `name`, or `gated` where x is multiplied by the result: x * sigmoid(x) is silu."""

    def step(node: Node, of: Node, images: str) -> NodeStep | None:
        product = _gated_product(node, of)
        return NodeStep(Step(name), (node,)) if product is None else NodeStep(Step(gated), (node, product))

    return step


def _gated_product(node: Node, of: Node) -> Node | None:
    """The product of `of` with its gate `node`, if nothing else reads either of them."""
    product = only_user(node) if node.op == "call_function" and node.target in _GATES else None
    if product is None or product.target is not aten.mul.Tensor or set(of.users) != {node, product}:
        return None
    return product if set(product.args) == {node, of} else None


def _gelu(node: Node, of: Node, images: str) -> NodeStep | None:
    kind = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
    return NodeStep(Step("gelu_tanh" if kind == "tanh" else "gelu"), (node,))


def _leaky_relu(node: Node, of: Node, images: str) -> NodeStep | None:
    slope = float(argument(node, 1, "negative_slope", 0.01))
    if not 0.0 < slope < math.inf:
        raise NotFusible(f"{node} has a slope of {slope}")
    return NodeStep(Step("leaky_relu", (slope,)), (node,))


def _clamp(node: Node, of: Node, images: str) -> NodeStep | None:
    is_hardtanh = node.target is aten.hardtanh.default
    names, defaults = (("min_val", "max_val"), (-1.0, 1.0)) if is_hardtanh else (("min", "max"), (None, None))
    low, high = (argument(node, 1 + at, names[at], defaults[at]) for at in (0, 1))
    if _is_number(low) and low == 0 and high is None:
        return NodeStep(Step("relu"), (node,))
    if not _is_number(low) or not _is_number(high) or not low <= high:
        raise NotFusible(f"{node} has no two bounds")
    if (low, high) == (0, 6):
        return NodeStep(Step("relu6"), (node,))
    return NodeStep(Step("clamp", (float(low), float(high))), (node,))


def _is_number(value_: Any) -> bool:
    return isinstance(value_, (int, float)) and math.isfinite(value_)


#: Operator -> its step, and the step that x times its result is.
_GATES = {
    aten.sigmoid.default: ("sigmoid", "silu"),
    aten.hardsigmoid.default: ("hardsigmoid", "hardswish"),
}
_STEPS: dict[Any, Callable[[Node, Node, str], NodeStep | None]] = {
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.native_batch_norm.default: _batch_norm,
    aten.add.Tensor: _residual,
    aten.mul.Tensor: _scale,
    aten.relu.default: _plain("relu"),
    aten.hardtanh.default: _clamp,
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.leaky_relu.default: _leaky_relu,
    aten.gelu.default: _gelu,
    aten.silu.default: _plain("silu"),
    aten.hardswish.default: _plain("hardswish"),
    **{target: _gate(*names) for target, names in _GATES.items()},
    aten.tanh.default: _plain("tanh"),
}
#: Operators that may be steps.
STEP_OPERATORS = frozenset(_STEPS)

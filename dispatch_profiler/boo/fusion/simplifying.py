"""Leaves out of an inference graph what changes nothing: regions then follow each other, and are longer.

    matrix product -> dropout, which is a copy -> add        without the copy, the sum is a step of the product
    pad by nothing, as windows of Swin transformers          such a copy would be a kernel

Masks and indices that are made "like" an activation depend on its type only, so they do not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten, value
from dispatch_profiler.boo.fusion.strides import kept_views, name_same_memory, shared_memory
from dispatch_profiler.boo.launching.torch_types import NAMES
from dispatch_profiler.operations import element_type


def simplify(graph: Any) -> None:
    """Replace operators of an inference graph, in place. No results share memory that did not share it before."""
    (output,) = [node for node in graph.nodes if node.op == "output"]
    returned = {_storage(node) for node in output.all_input_nodes}
    kept = kept_views(shared_memory(graph))
    for node in list(graph.nodes):
        if node.op != "call_function" or node in kept or not node.args:
            continue
        if node.target is aten.cat.default:
            _drop_empty_parts(node)
        if node.target in _BOUNDS:
            _bound_by_number(graph, node)
        elif _adds_whole_zeros(node) and _storage(node) not in returned:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in _COPIES and _storage(node) not in returned and _COPIES[node.target](node):
            node.replace_all_uses_with(_copied(node))
            graph.erase_node(node)
        elif node.target in _FILLED:
            _fill(graph, node)


def _storage(node: Node) -> Any:
    tensor = value(node)
    return None if tensor is None or tensor.layout is not torch.strided else tensor.untyped_storage()._cdata


def _drop_empty_parts(node: Node) -> None:
    """Let a `cat` join only what has elements, as the parts of embeddings that are rotated, and those that are not."""
    parts = [each for each in node.args[0] if value(each) is None or value(each).numel()]
    if parts and all(value(each) is not None and value(each).dtype == value(node).dtype for each in parts):
        node.args = (parts, *node.args[1:])


def _copied(node: Node) -> Node:
    """What a copy reads."""
    source = node.args[1 if node.target is aten.copy.default else 0]
    return source[0] if isinstance(source, (list, tuple)) else source


def _is_same(node: Node) -> bool:
    """Whether a copy has the elements of its argument, computed by an operator, in the same places."""
    source = _copied(node)
    before, copied = value(source), value(node)
    if before is None or copied is None or source.op != "call_function":
        return False
    return (
        before.layout is copied.layout is torch.strided
        and before.dtype == copied.dtype
        and before.device == copied.device
        and before.shape == copied.shape
        and name_same_memory(before.shape, before.stride(), copied.stride())
    )


#: Operators that copy -> whether a node does nothing else.
_COPIES: dict[Any, Callable[[Node], bool]] = {
    aten.cat.default: lambda node: len(node.args[0]) == 1 and _is_same(node),
    aten.clone.default: _is_same,
    aten.copy.default: _is_same,
    aten.constant_pad_nd.default: lambda node: not any(node.args[1]) and _is_same(node),
    aten.roll.default: lambda node: node.args[1] in ([], [0] * len(node.args[1])) and _is_same(node),
}
#: Operators that fill a tensor with a number, and the number.
_FILLED: dict[Any, Callable[[Node], Any]] = {
    aten.new_zeros.default: lambda node: 0,
    aten.zeros_like.default: lambda node: 0,
    aten.new_ones.default: lambda node: 1,
    aten.ones_like.default: lambda node: 1,
    aten.new_full.default: lambda node: node.args[2],
    aten.full_like.default: lambda node: node.args[1],
}


#: Operators that bound a tensor by another one -> operators that bound it by a number.
_BOUNDS: dict[Any, Any] = {
    aten.maximum.default: aten.clamp_min.default,
    aten.minimum.default: aten.clamp_max.default,
}


def _filled_with(node: Any) -> Any:
    """The number in each element of a tensor, also if it was converted or viewed; None if there is no such number.

    Nor for a number that is rounded in the type of the tensor, or of one that was converted.
    """
    types = []
    while isinstance(node, torch.fx.Node) and value(node) is not None:
        types.append(value(node).dtype)
        if node.target is aten.full.default:
            number: Any = node.args[1]
            is_plain = type(number) in (int, float) and all(_holds(each, number) for each in types)
            return number if is_plain else None
        if node.target not in (aten.view.default, aten._to_copy.default):
            return None
        node = node.args[0]
    return None


def _holds(dtype: torch.dtype, number: float) -> bool:
    """Whether a type of ours has a number exactly."""
    if dtype not in NAMES or not math.isfinite(number):
        return False
    type_ = element_type(NAMES[dtype])
    if type_.is_integer:
        limits = np.iinfo(type_.dtype)
        return number == int(number) and limits.min <= number <= limits.max
    with np.errstate(over="ignore"):
        return float(np.float64(number).astype(type_.dtype)) == number


def _bound_by_number(graph: Any, node: Node) -> None:
    """Let a node that bounds a tensor by one that is filled with a number read the number."""
    first, second = node.args
    for tensor, other in ((first, second), (second, first)):
        number, made = _filled_with(other), value(tensor)
        if (
            number is None
            or made is None
            or (made.shape, made.dtype) != (value(node).shape, value(node).dtype)
        ):
            continue
        with graph.inserting_before(node):
            bounded = graph.call_function(_BOUNDS[node.target], (tensor, number))
        bounded.meta.update(node.meta)
        node.replace_all_uses_with(bounded)
        graph.erase_node(node)
        return


def _adds_whole_zeros(node: Node) -> bool:
    """Whether a node adds integers to a floating-point tensor, all of which are 0, such as zero points."""
    if node.target is not aten.add.Tensor or not isinstance(node.args[1], torch.fx.Node):
        return False
    read, zeros, made = value(node.args[0]), value(node.args[1]), value(node)
    return (
        read is not None
        and read.is_floating_point()
        and not zeros.is_floating_point()
        and (read.shape, read.dtype, read.stride()) == (made.shape, made.dtype, made.stride())
        and _filled_with(node.args[1]) == 0
    )


def _fill(graph: Any, node: Node) -> None:
    """Let a node that fills a contiguous tensor of fixed shape read no other tensor."""
    made, number = value(node), _FILLED[node.target](node)
    is_plain = made is not None and made.layout is torch.strided and made.is_contiguous()
    if (
        not is_plain
        or not all(type(extent) is int for extent in made.shape)
        or isinstance(number, torch.fx.Node)
    ):
        return
    with graph.inserting_before(node):
        options = {"dtype": made.dtype, "device": made.device}
        filled = graph.call_function(aten.full.default, (list(made.shape), number), options)
    filled.meta.update(node.meta)
    node.replace_all_uses_with(filled)
    graph.erase_node(node)

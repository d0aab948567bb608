"""Lets kernels of this package compute the attention of inference graphs on GPUs.

    _scaled_dot_product_flash_attention(query, key, value)[0]  ->  dispatch_profiler::attention(query, key, value)

The same for torch's other operators of attention on GPUs. The operator keeps no tensors, so it may be in CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, added_call, aten, first_result, value
from dispatch_profiler.boo.fusion.strides import is_dense
from dispatch_profiler.boo.ops.attention import ATTENTION
from dispatch_profiler.boo.ops.layouts import storage_order

#: torch's operators, whose first result is the attention.
_OPERATORS = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


@dataclass(frozen=True)
class AttentionCall:
    """A call of torch's operator, and what the operator of this package would take instead."""

    node: Node
    query: Node
    key: Node
    value: Node
    mask: Node | None
    is_causal: bool
    scale: float | None

    @property
    def tensors(self) -> tuple[Node | None, ...]:
        """The query, the key, the value and the mask."""
        return self.query, self.key, self.value, self.mask

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of `dispatch_profiler::attention`."""
        return *self.tensors, self.is_causal, self.scale


def place_attention(graph: Any, is_ours: Callable[[AttentionCall], bool]) -> None:
    """Replace the calls of torch's attention for which `is_ours` holds, in place."""
    found = False
    for node in list(graph.nodes):
        if node.target in _OPERATORS:
            found |= is_placed(graph, node, is_ours)
    if found:
        graph.eliminate_dead_code()


def is_placed(graph: Any, node: Node, is_ours: Callable[[AttentionCall], bool]) -> bool:
    """Replace a call of one of torch's operators if `is_ours` holds for it. Returns whether it does."""
    call = _call(node)
    if call is None or not is_ours(call):
        return False
    _replace(graph, call)
    return True


# -- matching --------------------------------------------------------------------------------------


def _call(node: Node) -> AttentionCall | None:
    """The call of one of torch's operators; None if it has dropout, sizes that vary, or other results that are read."""
    given = _arguments(node)
    query, key, values, mask = (given.get(each) for each in ("query", "key", "value", "attn_bias"))
    result = first_result(node)
    if given["dropout_p"] != 0.0 or result is None or not is_dense(value(result)):
        return None
    if not all(map(_is_static, filter(None, (query, key, values, mask)))):
        return None
    shared = _shared_heads(key), _shared_heads(values)
    if None not in shared and value(shared[0]).shape[1] == value(shared[1]).shape[1]:
        key, values = shared
    reduced = None if mask is None else _unexpanded(mask)
    return AttentionCall(node, query, key, values, reduced, given["is_causal"], given["scale"])


def _arguments(node: Node) -> dict[str, Any]:
    """All arguments of a call by name."""
    names = [each.name for each in node.target._schema.arguments]
    defaults = {
        each.name: each.default_value for each in node.target._schema.arguments if each.has_default_value()
    }
    return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}


def _is_static(node: Node) -> bool:
    tensor = value(node)
    return tensor is not None and all(type(extent) is int for extent in (*tensor.shape, *tensor.stride()))


def _shared_heads(node: Node) -> Any:
    """Keys or values before torch repeated each head for several heads of queries; None if it did not."""
    if node.target not in _VIEWS or value(node).dim() != 4:
        return None
    copy = node.args[0]
    expanded = copy.args[0] if copy.target is aten.clone.default else copy
    if expanded.target is not aten.expand.default or value(expanded).dim() != 5:
        return None
    single = expanded.args[0]
    if single.target is not aten.unsqueeze.default or single.args[1] not in (2, -3):
        return None
    batch, heads, repeats, positions, size = value(expanded).shape
    source = single.args[0]
    is_repeated = tuple(value(node).shape) == (batch, heads * repeats, positions, size)
    return source if is_repeated and tuple(value(source).shape) == (batch, heads, positions, size) else None


def _unexpanded(mask: Node) -> Node:
    """A mask before torch padded and expanded it, with four axes."""
    scores = value(mask).shape
    found = mask
    while True:
        if mask.target is aten.expand.default:
            mask = mask.args[0]
        elif mask.target is aten.slice.Tensor and mask.args[0].target is aten.constant_pad_nd.default:
            mask = mask.args[0].args[0]  # torch aligns the rows of masks
        else:
            return found
        extents = tuple(value(mask).shape)
        if len(extents) != 4 or any(one not in (1, all_) for one, all_ in zip(extents, scores, strict=True)):
            return found
        found = mask


# -- rewriting -------------------------------------------------------------------------------------


def _replace(graph: Any, call: AttentionCall) -> None:
    replaced: Node = first_result(call.node)
    with graph.inserting_before(replaced):
        result = added_call(graph, ATTENTION, *call.arguments)
        result = _with_order(graph, result, value(replaced))
    result.meta = {**replaced.meta, "val": result.meta["val"]}
    replaced.replace_all_uses_with(result)
    # To torch, the operator has a random state, so it is no dead code.
    for node in (*call.node.users, call.node):
        graph.erase_node(node)


def _with_order(graph: Any, node: Node, like: Any) -> Node:
    """`node` with its axes in memory in the order of `like`: later nodes may be views of it."""
    axes = storage_order(like.stride())
    if value(node).permute(axes).is_contiguous():
        return node
    ordered = added_call(graph, aten.permute.default, node, axes)
    ordered = added_call(graph, aten.clone.default, ordered, memory_format=torch.contiguous_format)
    return added_call(graph, aten.permute.default, ordered, [axes.index(axis) for axis in range(like.dim())])

"""Finds attention that inference graphs write out as products and a softmax, so that one kernel computes it.

    softmax(query @ key.T / c + mask) @ value
        -> _scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask, scale=1 / c)

The operator reads queries, keys and values where they are, while the products need copies of them, and the scores are
never stored. On GPUs, it is that of `gpu_attention`, in the type that was converted to f32 for the products: torch itself writes out
attention with a mask so. As in torch's fused attention, scores of narrow types are not rounded, and a query whose scores are all minus
infinity has zeros, not NaN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dispatch_profiler.boo.fusion.gpu_attention import AttentionCall, is_placed
from dispatch_profiler.boo.fusion.nodes import Node, added_call, aten, value

#: Operators that keep the order of the elements.
_RENAMES = (
    aten.alias.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.clone.default,
)
_TRANSPOSES = (aten.transpose.int, aten.permute.default)
_SOFTMAXES = (aten._softmax.default, aten._safe_softmax.default)
_FACTORS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
#: On GPUs, until the operator of this package replaces it.
_ON_GPUS = aten._scaled_dot_product_efficient_attention.default
#: What the sizes of heads, and the numbers of keys of a mask, are multiples of on GPUs.
_ALIGNED = 8
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Queries at least: the lanes of the kernel's vectors are queries, and products take as long with one.
_LEAST_QUERIES = 8


def restore_attention(graph: Any, is_ours: Callable[[AttentionCall], bool] = lambda _: False) -> None:
    """Replace attention that is written out by its operator, in place.

    On GPUs, by the operator of this package where `is_ours` holds; the rest stays as it is, since torch's operator does not
    take every type on every GPU.
    """
    found = False
    for node in list(graph.nodes):
        if node.target is aten.bmm.default:
            attention = _attention(node)
            if attention is not None:
                found |= _is_replaced(graph, node, attention, is_ours)
    if found:
        graph.eliminate_dead_code()


@dataclass(frozen=True)
class _Scores:
    """What a softmax reads: scale * query @ transposed + masks."""

    query: Node
    #: Batches of transposed keys.
    transposed: Node
    scale: float = 1.0
    #: Masks, and the shapes of the scores when they are added.
    masks: tuple[tuple[Node, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class _Attention:
    scores: _Scores
    value: Node
    #: Extents: batch, heads, queries, keys, elements.
    extents: tuple[int, ...]
    is_on_gpu: bool


# -- matching --------------------------------------------------------------------------------------


def _attention(product: Node) -> _Attention | None:
    """The attention whose last product is `product`; None if it is another product."""
    softmax = _source(product.args[0])
    if softmax.target not in _SOFTMAXES or len(softmax.users) != 1 or not _is_plain(softmax):
        return None
    shape = _shape(softmax)
    if softmax.args[1] % len(shape) != len(shape) - 1 or len(shape) not in (3, 4):
        return None
    scores = _scores(softmax.args[0])
    if scores is None or not all(map(_is_plain, (scores.query, scores.transposed, product.args[1]))):
        return None
    size = _shape(scores.query)[2]
    extents = (*((1, *shape) if len(shape) == 3 else shape), size)
    types = {value(each).dtype for each in (scores.query, scores.transposed, product.args[1], product)}
    is_on_gpu = value(product).device.type == "cuda"
    if is_on_gpu and (size % _ALIGNED or (scores.masks and shape[-1] % _ALIGNED)):
        return None
    fits = (
        _shape(product.args[1]) == (math.prod(shape[:-2]), shape[-1], size)
        and types <= set(_TYPES)
        and len(types) == 1
        and extents[2] >= _LEAST_QUERIES
        and all(_is_plain(mask) and value(mask).dtype in _types_of_masks(product) for mask, _ in scores.masks)
    )
    return _Attention(scores, product.args[1], extents, is_on_gpu) if fits else None


def _types_of_masks(product: Node) -> Sequence[Any]:
    """On GPUs, queries may have been converted, and masks not."""
    return _TYPES if value(product).device.type == "cuda" else (value(product).dtype,)


def _scores(node: Node) -> _Scores | None:
    """The scores that `node` is, if nothing else reads what they are made of."""
    if len(node.users) != 1 or not _is_plain(node):
        return None
    if node.target is aten.bmm.default:
        return _Scores(*node.args)
    if node.target in _RENAMES or _changes_type(node) or _expands_nothing(node):
        return _scores(node.args[0])
    if (factor := _factor(node)) is not None:
        found = _scores(node.args[0])
        if found is None or found.masks:
            return None
        return replace(found, scale=found.scale * factor)
    if node.target is aten.add.Tensor and not node.kwargs:
        for term, mask in (node.args, node.args[::-1]):
            found = _scores(term) if isinstance(term, torch.fx.Node) and _is_term(term, node) else None
            if found is not None and isinstance(mask, torch.fx.Node):
                return replace(found, masks=(*found.masks, (mask, _shape(node))))
    return None


def _is_term(term: Node, total: Node) -> bool:
    return _is_plain(term) and _shape(term) == _shape(total)


def _source(node: Node) -> Node:
    """What `node` is before changes of shape and type."""
    while (node.target in _RENAMES or _changes_type(node) or _expands_nothing(node)) and len(node.users) == 1:
        node = node.args[0]
    return node


def _is_plain(node: Node) -> bool:
    """Whether a node is a tensor on the CPU or a GPU, of fixed shape."""
    tensor = value(node)
    return (
        tensor is not None
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and all(type(extent) is int for extent in tensor.shape)
    )


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(value(node).shape)


def _changes_type(node: Node) -> bool:
    """Whether a node converts between types that attention has."""
    return node.target is aten._to_copy.default and all(
        _is_plain(each) and value(each).dtype in _TYPES for each in (node, node.args[0])
    )


def _expands_nothing(node: Node) -> bool:
    return node.target is aten.expand.default and _shape(node) == _shape(node.args[0])


def _factor(node: Node) -> float | None:
    """The number that a node multiplies a tensor by."""
    if node.target not in _FACTORS or not isinstance(node.args[1], (int, float)) or node.kwargs:
        return None
    number = float(node.args[1])
    if node.target in (aten.mul.Tensor, aten.mul.Scalar):
        return number
    return 1.0 / number if number else None


# -- rewriting -------------------------------------------------------------------------------------


def _is_replaced(
    graph: Any, product: Node, found: _Attention, is_ours: Callable[[AttentionCall], bool]
) -> bool:
    before = set(graph.nodes)
    batch, heads, queries, keys, size = found.extents
    scores, dtype = found.scores, value(product).dtype
    with graph.inserting_before(product):
        (query, query_scale), (transposed, key_scale), (values, value_scale) = _operands(graph, found)
        mask = _mask(graph, scores.masks, (batch, heads, queries, keys), value(query).dtype)
        key = _with_rows(graph, added_call(graph, aten.transpose.int, transposed, -1, -2))
        operands = (_with_rows(graph, query), key, _with_rows(graph, values))
        scale = scores.scale * query_scale * key_scale
        if found.is_on_gpu:
            attended = added_call(graph, _ON_GPUS, *operands, mask, False, scale=scale)
        else:
            named = {"scale": scale} if mask is None else {"attn_mask": mask, "scale": scale}
            attended = added_call(graph, _ATTENTION, *operands, **named)
        result = added_call(graph, operator.getitem, attended, 0)
        if value(result).dtype != dtype:
            result = added_call(graph, aten._to_copy.default, result, dtype=dtype)
        if value_scale != 1.0:
            result = added_call(graph, aten.mul.Tensor, result, value_scale)
        # As contiguous as the product's result: what reads it may be views.
        result = added_call(graph, aten.clone.default, result, memory_format=torch.contiguous_format)
        result = added_call(graph, aten.view.default, result, [batch * heads, queries, size])
    result.meta = {**product.meta, "val": result.meta["val"]}
    if found.is_on_gpu and not is_placed(graph, attended, is_ours):
        for node in reversed([each for each in graph.nodes if each not in before]):
            graph.erase_node(node)
        return False
    product.replace_all_uses_with(result)
    return True


def _operands(graph: Any, found: _Attention) -> list[tuple[Node, float]]:
    """Queries, transposed keys, and values, as `_operand` finds them: on GPUs before conversions, if all have one type then.

    Masks of wider types have numbers that the narrower type may lack.
    """
    batch, heads, queries, keys, size = found.extents
    wanted = (
        (found.scores.query, (batch, heads, queries, size), -1),
        (found.scores.transposed, (batch, heads, size, keys), -2),
        (found.value, (batch, heads, keys, size), -1),
    )
    operands = [_operand(graph, *each) for each in wanted]
    if found.is_on_gpu:
        sources = [_unconverted(graph, node) for node, _ in operands]
        types = {value(node).dtype for node in sources}
        if types >= {value(mask).dtype for mask, _ in found.scores.masks} and len(types) == 1:
            return [(node, scale) for node, (_, scale) in zip(sources, operands, strict=True)]
    return operands


def _unconverted(graph: Any, node: Node) -> Node:
    """An operand before it was converted, and then possibly transposed."""
    if _changes_type(node):
        return node.args[0]
    if node.target in _TRANSPOSES and _changes_type(node.args[0]):
        return added_call(graph, node.target, node.args[0].args[0], *node.args[1:])
    return node


def _operand(graph: Any, node: Node, shape: tuple[int, ...], axis: int) -> tuple[Node, float]:
    """The tensor of `shape` that a product reads, before copies for the product; and the number it is multiplied by.

    If possible, elements along `axis` follow each other in memory.
    """
    at, scale = node, 1.0
    found: tuple[Node, float] | None = None
    while True:
        if _shape(at) == shape and (found is None or _is_dense(at, axis)):
            found = at, scale
        factor = _factor(at)
        if factor is None and at.target not in _RENAMES and not _expands_nothing(at):
            break
        if not _is_plain(at.args[0]) or value(at.args[0]).dtype != value(at).dtype:
            break
        at, scale = at.args[0], scale * (1.0 if factor is None else factor)
    if found is not None:
        return found
    return added_call(graph, aten.view.default, node, list(shape)), 1.0


def _is_dense(node: Node, axis: int) -> bool:
    tensor = value(node)
    return tensor.shape[axis] == 1 or tensor.stride(axis) == 1


def _with_rows(graph: Any, node: Node) -> Node:
    """An operand whose rows are consecutive elements, as torch's kernel reads them."""
    if _is_dense(node, -1):
        return node
    return added_call(graph, aten.clone.default, node, memory_format=torch.contiguous_format)


def _mask(
    graph: Any, masks: Sequence[tuple[Node, tuple[int, ...]]], shape: tuple[int, ...], dtype: Any
) -> Node | None:
    """The sum of masks in `dtype`, which may have fewer elements than scores of `shape`."""
    total = None
    for mask, added in masks:
        own = _shape(mask)
        if math.prod(added) == math.prod(added[-4:]) and _of_four(added) == shape:
            part = added_call(graph, aten.view.default, mask, list(_of_four(own)))
        else:
            part = added_call(graph, aten.expand.default, mask, list(added))
            part = added_call(graph, aten.clone.default, part, memory_format=torch.contiguous_format)
            part = added_call(graph, aten.view.default, part, list(shape))
        if value(part).dtype != dtype:
            part = added_call(graph, aten._to_copy.default, part, dtype=dtype)
        total = part if total is None else added_call(graph, aten.add.Tensor, total, part)
    return None if total is None else added_call(graph, aten.expand.default, total, list(shape))


def _of_four(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The last four extents, with ones before them if there are fewer."""
    return (1,) * (4 - len(shape)) + shape[-4:]

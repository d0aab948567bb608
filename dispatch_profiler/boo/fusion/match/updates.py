"""Updates of caches: operators that replace rows of an input, where the graph writes the result back to the input.

    updated = index_put(keys, [None, None, positions], rows)
    ...
    copy_(keys, updated)

Nothing else reads the input, so a kernel can write the rows to the input at once.
"""

from __future__ import annotations

from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten, value
from dispatch_profiler.boo.fusion.programs.operators import NAMES, UPDATES
from dispatch_profiler.boo.fusion.programs.values import TYPES
from dispatch_profiler.boo.launching.torch_types import NAMES as TYPE_NAMES


def is_update(node: Node) -> bool:
    """Whether the operator of a node replaces rows of a tensor."""
    return NAMES.get(node.target) in UPDATES


def cache_updates(graph: Any) -> frozenset[Node]:
    """The nodes of a graph that a kernel can compute in the memory of an input."""
    (output,) = [node for node in graph.nodes if node.op == "output"]
    returned = {_memory(each) for each in output.all_input_nodes}
    nodes = [node for node in graph.nodes if node.op == "call_function" and is_update(node)]
    return frozenset(node for node in nodes if _memory(node) not in returned and _is_in_place(node))


def _is_written_back(node: Node) -> bool:
    """Whether the graph writes the result of an update to the input that is updated, and nothing else reads the input."""
    cache = node.args[0]
    others = [user for user in cache.users if user is not node]
    if cache.op != "placeholder" or len(others) != 1:
        return False
    (last,) = others
    return last.target is aten.copy_.default and last.args[0] is cache and last.args[1] is node


def _memory(node: Node) -> Any:
    tensor = value(node)
    return None if tensor is None else tensor.untyped_storage()._cdata


def _is_in_place(node: Node) -> bool:
    cache, axis, positions, rows = _parts(node)
    tensors = list(map(value, (cache, positions, rows)))
    if not _is_written_back(node) or positions is None or any(each is None for each in tensors):
        return False
    kept, places, new = tensors
    if not all(type(extent) is int and extent > 0 for each in tensors for extent in each.shape):
        return False
    shape = [*kept.shape[:axis], *places.shape, *kept.shape[axis + 1 :]]
    missing = len(shape) - new.dim()  # an assignment drops the first axes if they have one element
    return (
        places.dim() == 1
        and places.dtype is torch.int64
        and kept.is_contiguous()
        and TYPE_NAMES.get(kept.dtype) in TYPES
        and kept.dtype is new.dtype
        and all(each.device.type == "cpu" and each.layout is torch.strided for each in tensors)
        and [1] * missing + [*new.shape] == shape
    )


def _parts(node: Node) -> tuple[Node, int, Node | None, Node]:
    """The tensor that a node updates, the axis, the positions along it, or None if there are several, and the rows."""
    if node.target is aten.index_copy.default:
        cache, axis, positions, rows = node.args
        return cache, axis % max(1, value(cache).dim()), positions, rows
    cache, given, rows, *accumulates = node.args
    indexed = [(at, each) for at, each in enumerate(given) if each is not None]
    if len(indexed) != 1 or any(accumulates) or node.kwargs:
        return cache, 0, None, rows
    ((axis, positions),) = indexed
    return cache, axis, positions, rows

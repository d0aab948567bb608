"""Results of a graph that are views: of each other, or of a part of what the graph computes.

Results that share memory in eager torch do so in the graph that AOTAutograd makes of it, whose fake tensors share their
storages. What regions compute has memory of its own, and may have other strides. So the node that owns shared memory is
given the strides that it was traced with, and the views behind it stay as they are.

    base -> slice -> result        base and the result share memory: the slice is kept
    base -> view -> result         where base is no result, the view may be computed by a kernel
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node


@dataclass
class SharedMemory:
    """The memory of `base`, of which results of the graph are views: `views` has them and the nodes in between."""

    base: Node
    views: set[Node] = field(default_factory=set)


def kept_views(shared: Iterable[SharedMemory]) -> frozenset[Node]:
    """The nodes that stay as they are, so that results share memory."""
    return frozenset(node for each in shared for node in each.views)


def shared_memory(graph: Any) -> list[SharedMemory]:
    """The memory that results of a graph share with each other, or that is larger than the one result that has it.

    The graph's inputs are left out: AOTAutograd makes views of them itself, and their strides are those of the caller.
    """
    (output,) = [node for node in graph.nodes if node.op == "output"]
    results: dict[Any, list[Node]] = {}
    for node in output.all_input_nodes:
        storage = _storage(node)
        if storage is not None:
            results.setdefault(storage, []).append(node)
    found = []
    for nodes in results.values():
        shared = _shared(nodes)
        if shared.base.op != "placeholder" and not _is_whole(nodes):
            found.append(shared)
    return found


def _shared(results: list[Node]) -> SharedMemory:
    """The memory of results that have the same storage."""
    views = set[Node]()
    base = results[0]
    for result in results:
        lineage = [result, *_sources(result)]
        while not isinstance(lineage[-1].meta["val"], torch.Tensor):
            lineage.pop()  # an operator that returns a list of one
        base = lineage.pop()
        views.update(lineage)
    return SharedMemory(base, views)


def _sources(node: Node) -> Iterator[Node]:
    """The nodes with the memory of `node` that it is a view of, the nearest first."""
    storage, last = _storage(node), node
    while last is not None:
        last = next((each for each in last.all_input_nodes if _storage(each) == storage), None)
        if last is not None:
            yield last


def _is_whole(results: list[Node]) -> bool:
    """Whether there is one result alone, with all elements of its memory."""
    if len(results) > 1:
        return False
    tensor = results[0].meta["val"]
    extents = (*tensor.shape, *tensor.stride())
    if not all(type(each) is int for each in extents) or tensor.storage_offset() != 0:
        return False
    order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
    count = tensor.numel() * tensor.element_size()
    return bool(tensor.permute(order).is_contiguous()) and tensor.untyped_storage().nbytes() == count


def _storage(node: Node) -> Any:
    """What identifies the memory of a node's tensor, or that all tensors of its list share; None if nothing does."""
    found = node.meta.get("val")
    tensors = found if isinstance(found, (tuple, list)) else [found]
    storages = {
        each.untyped_storage()._cdata if isinstance(each, torch.Tensor) and _has_storage(each) else None
        for each in tensors
    }
    return storages.pop() if len(storages) == 1 else None


def _has_storage(tensor: Any) -> bool:
    return tensor.layout is torch.strided

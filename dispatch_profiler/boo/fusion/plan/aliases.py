"""Results of a graph that are views: of each other, or of a part of what the graph computes.

Results that share memory in eager torch do so in the graph that AOTAutograd makes of it, whose fake tensors share their
storages. What regions compute has memory of its own, and may have other strides. So the node that owns shared memory is
given the strides that it was traced with, and the views behind it stay as they are.

    base -> slice -> result        base and the result share memory: the slice is kept
    base -> view -> result         where base is no result, the view may be computed by a kernel

`as_strided` reads the memory of its argument, of which it may take elements that the argument does not have. What lies
between it and the node that owns that memory is kept, too.

    base -> slice -> as_strided    the slice is kept
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten
from dispatch_profiler.boo.fusion.plan.strides import renames_strides


@dataclass
class SharedMemory:
    """The memory of `base`, of which results of the graph or what `as_strided` yields are views.

    `views` has them and the nodes in between.
    """

    base: Node
    views: set[Node] = field(default_factory=set)


def kept_views(shared: Iterable[SharedMemory]) -> frozenset[Node]:
    """The nodes that stay as they are, so that results share memory and `as_strided` finds the elements it reads."""
    return frozenset(node for each in shared for node in each.views)


def shared_memory(graph: Any) -> list[SharedMemory]:
    """The memory that results of a graph share, that is larger than the one result that has it, or that is read anew.

    Inputs that only results share are left out: AOTAutograd makes views of them itself. The strides of inputs are those
    of the caller in any case.
    """
    (output,) = [node for node in graph.nodes if node.op == "output"]
    readers = [node for node in graph.nodes if _reads_memory(node)]
    users: dict[Any, list[Node]] = {}
    for node in dict.fromkeys((*output.all_input_nodes, *readers)):
        storage = _storage(node)
        if storage is not None:
            users.setdefault(storage, []).append(node)
    found = []
    for nodes in users.values():
        shared = _shared(nodes)
        is_input = shared.base.op == "placeholder"
        if any(map(_reads_memory, nodes)) or not (is_input or _is_whole(nodes)):
            found.append(shared)
    return found


def _reads_memory(node: Node) -> bool:
    """Whether a node may read elements that its argument does not have, from the memory in which it lies."""
    return node.target is aten.as_strided.default and not renames_strides(node)


def _shared(users: list[Node]) -> SharedMemory:
    """The memory of nodes that have the same storage."""
    views = set[Node]()
    base = users[0]
    for user in users:
        lineage = [user, *_sources(user)]
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

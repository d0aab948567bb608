"""Finds results of a graph that are views of each other or of other tensors in the graph.

In a graph of AOTAutograd, the fake tensors of results that share memory in eager torch share a storage. The results of
regions have new memory, and may have other strides. So the node that owns shared memory gets the strides that it was
traced with, and views of it are kept:

    base -> slice -> result        base and the result share memory: the slice is kept
    base -> view -> result         if base is not a result, a kernel may compute the view

`as_strided` reads the memory of its argument, even elements that the argument does not have. Nodes between it and the
owner of the memory are kept, too:

    base -> slice -> as_strided    the slice is kept
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten
from dispatch_profiler.boo.fusion.strides import is_dense, renames_strides


@dataclass
class SharedMemory:
    """The memory of `base`, shared by results of the graph or by results of `as_strided`.

    `views` has these results, and the nodes between them and `base`.
    """

    base: Node
    views: set[Node] = field(default_factory=set)


def kept_views(shared: Iterable[SharedMemory]) -> frozenset[Node]:
    """The nodes that must be kept, so that results share memory and `as_strided` finds its elements."""
    return frozenset(node for each in shared for node in each.views)


def shared_memory(graph: Any) -> list[SharedMemory]:
    """Memory that several results of a graph share, that is larger than its only result, or that `as_strided` reads.

    Inputs that only results share are left out: AOTAutograd makes views of inputs itself, with the caller's strides.
    """
    (output,) = [node for node in graph.nodes if node.op == "output"]
    readers = [node for node in graph.nodes if _reads_memory(node)]
    users: dict[Any, list[Node]] = {}
    for node in dict.fromkeys((*output.all_input_nodes, *readers)):
        storage = _storage(node)
        if storage is not None:
            users.setdefault(storage, []).append(node)
    every = []
    for nodes in users.values():
        shared = _shared(nodes)
        is_input = shared.base.op == "placeholder"
        if any(map(_reads_memory, nodes)) or not (is_input or _is_whole(nodes)):
            every.append(shared)
    return every


def _reads_memory(node: Node) -> bool:
    """Whether a node may read elements that its argument does not have, from the argument's memory."""
    return node.target is aten.as_strided.default and not renames_strides(node)


def _shared(users: list[Node]) -> SharedMemory:
    """The shared memory of nodes with the same storage."""
    views = set[Node]()
    base = users[0]
    for user in users:
        lineage = [user, *_sources(user)]
        while not isinstance(lineage[-1].meta["val"], torch.Tensor):
            lineage.pop()  # an operator that returns a list of one tensor
        base = lineage.pop()
        views.update(lineage)
    return SharedMemory(base, views)


def _sources(node: Node) -> Iterator[Node]:
    """The nodes that `node` is a view of, nearest first."""
    storage, last = _storage(node), node
    while last is not None:
        last = next((each for each in last.all_input_nodes if _storage(each) == storage), None)
        if last is not None:
            yield last


def _is_whole(results: list[Node]) -> bool:
    """Whether there is only one result, and it has all elements of its memory."""
    if len(results) > 1:
        return False
    tensor = results[0].meta["val"]
    extents = (*tensor.shape, *tensor.stride())
    if not all(type(each) is int for each in extents) or tensor.storage_offset() != 0:
        return False
    count = tensor.numel() * tensor.element_size()
    return is_dense(tensor) and bool(tensor.untyped_storage().nbytes() == count)


def _storage(node: Node) -> Any:
    """Identifies the storage of a node's tensor, or of all tensors in its list; None if there is no common storage."""
    fake = node.meta.get("val")
    tensors = fake if isinstance(fake, (tuple, list)) else [fake]
    storages = {
        each.untyped_storage()._cdata
        if isinstance(each, torch.Tensor) and each.layout is torch.strided
        else None
        for each in tensors
    }
    return storages.pop() if len(storages) == 1 else None

"""Strides of tensors in a graph, and results that share memory.

Some operators are known to compute the same elements, as precisely, for any strides of their arguments.

torch chose the operators in a graph of AOTAutograd for the strides with which it was traced. Checks and copies that
eager torch makes before operators, such as group norms and attention, are no longer there. So arguments of operators
keep their strides unless the operator is known to take any strides.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten, value
from dispatch_profiler.boo.ops.layouts import storage_order

_BelowViews: Any = torch._C._AutoDispatchBelowADInplaceOrView
#: Operators that take any strides, besides pointwise operators and views. Not all versions of torch have all of them.
#: Batch norms in training and norms of vectors are not among them: in channels_last memory, torch adds their terms one
#: after another, with errors up to 1,000 times as large as in contiguous memory.
_NAMES = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _log_softmax _log_softmax_backward_data
    _native_batch_norm_legit_no_training _prelu_kernel _softmax _softmax_backward_data _to_copy
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d adaptive_max_pool2d addmm all amax amin any argmax argmin
    avg_pool2d avg_pool2d_backward avg_pool3d baddbmm bmm cat clone constant_pad_nd convolution copy cumsum
    embedding empty_like flip full_like gather hardswish index index_select lift_fresh_copy
    logsumexp max max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices mean min mm
    native_layer_norm ones_like pixel_shuffle pixel_unshuffle prod reflection_pad1d reflection_pad2d
    repeat replication_pad1d replication_pad2d sort stack std std_mean sum
    topk upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d var var_mean zeros_like
"""
KNOWN = frozenset(getattr(aten, name) for name in _NAMES.split() if hasattr(aten, name))
#: Operators that keep the memory format of their arguments, but whose fake versions do not, so the format is unknown.
_FORGETFUL = frozenset((aten.roll, aten.hardswish_backward, aten.reflection_pad3d, aten.replication_pad3d))
#: Operators that view memory, not elements.
_OF_MEMORY = frozenset((aten.as_strided, aten.view_as_real, aten.view_as_complex))
#: Views that are legal only for some strides -> operators that copy otherwise.
_RESHAPED = {aten.view.default: aten.reshape.default, aten._unsafe_view.default: aten.reshape.default}


def takes_any_strides(target: Any) -> bool:
    """Whether the elements of a result depend only on the elements of the arguments, not on their strides.

    The strides of the result may still depend on the arguments' strides.
    """
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    packet = target.overloadpacket
    if (
        packet in _OF_MEMORY
        or packet in _FORGETFUL
        or target is aten.view.dtype
        or torch.Tag.nondeterministic_seeded in target.tags
    ):
        return False
    return target.is_view or torch.Tag.pointwise in target.tags or packet in KNOWN


def copy_if_needed(node: Node) -> None:
    """Let a node that changes shapes copy if the strides of its argument do not allow a view."""
    node.target = _RESHAPED.get(node.target, node.target)


def let_views_copy(module: Any) -> None:
    """Apply `copy_if_needed` to all nodes of a graph module, before it is compiled.

    Compilers replace operators by others, whose results may have other strides than the graph was traced with. For
    example, inductor replaces `cat` of a repeated tensor by an expanded copy.
    """
    for node in module.graph.nodes:
        copy_if_needed(node)
    module.recompile()  # for compilers that call the module


def renames_strides(node: Node) -> bool:
    """Whether a node is an `as_strided` that only changes strides along axes with one element.

    torch's average pooling of images in channels_last memory has such a node.
    """
    if node.target is not aten.as_strided.default:
        return False
    source, size, stride, *offset = node.args
    tensor = value(source)
    if tensor is None or list(tensor.shape) != list(size):
        return False
    numbers = [*size, *stride, *tensor.stride(), *offset]
    if not all(type(each) is int for each in numbers) or offset not in ([], [tensor.storage_offset()]):
        return False
    return name_same_memory(size, stride, tensor.stride())


def name_same_memory(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two sets of strides for a tensor select the same memory: they differ only along axes with one element."""
    return all(extent == 1 or a == b for extent, a, b in zip(shape, one, other, strict=True))


def is_dense(tensor: Any) -> bool:
    """Whether the elements of a tensor lie in memory without gaps, in some order of the axes."""
    return bool(tensor.permute(storage_order(tensor.stride())).is_contiguous())


def with_strides(tensor: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """`tensor`, which has this shape, with other strides: in the same memory if the strides select the same elements.

    Autograd does not treat the result as a view: it replaces a tensor that is not a view in eager torch, and that may be
    detached in place.
    """
    if name_same_memory(shape, tensor.stride(), strides):
        with _BelowViews():
            return tensor.as_strided(shape, strides)
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


# -- shared memory ---------------------------------------------------------------------------------

# Finds results of a graph that are views of each other or of other tensors in the graph.
#
# In a graph of AOTAutograd, the fake tensors of results that share memory in eager torch share a storage. The results of
# regions have new memory, and may have other strides. So the node that owns shared memory gets the strides that it was
# traced with, and views of it are kept:
#
#     base -> slice -> result        base and the result share memory: the slice is kept
#     base -> view -> result         if base is not a result, a kernel may compute the view
#
# `as_strided` reads the memory of its argument, even elements that the argument does not have. Nodes between it and the
# owner of the memory are kept, too:
#
#     base -> slice -> as_strided    the slice is kept


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


def drop_aliases(graph: Any) -> None:
    """Let what reads an `alias` read its argument, unless results share its memory."""
    kept = kept_views(shared_memory(graph))
    (output,) = [node for node in graph.nodes if node.op == "output"]
    returned = set(output.all_input_nodes)
    for node in list(graph.nodes):
        if node.target is aten.alias.default and node not in kept and node not in returned:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


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

"""Knows the operators that compute the same elements, as precisely, for any strides of their arguments.

torch chose the operators in a graph of AOTAutograd for the strides with which it was traced. Checks and copies that
eager torch makes before operators, such as group norms and attention, are no longer there. So arguments of operators
keep their strides unless the operator is known to take any strides.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
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
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa adaptive_max_pool2d addmm all amax amin any argmax argmin
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

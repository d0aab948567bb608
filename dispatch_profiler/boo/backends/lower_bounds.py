"""A lower bound on the time of a graph with inductor: torch's kernels for its convolutions and products, without the rest.

Inductor calls the same kernels, so that a graph which takes less time than these need not be compiled by inductor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dispatch_profiler.boo.backends.measuring import samples
from dispatch_profiler.boo.fusion.nodes import Node, argument, aten, is_frozen, value
from dispatch_profiler.runtime._base import seconds_of

_torch: Any = torch
#: Operators that inductor leaves to torch's kernels; it generates its own code for others, such as norms.
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
_VIEWS = (aten.t.default, aten.transpose.int, aten.permute.default)
#: Calls of each way to compute an operator; the fastest one counts.
_CALLS = 3
#: Channels-last memory formats, by the number of axes.
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

_Call = Callable[[], Any]


def kernels_alone(graph: Any) -> _Call | None:
    """A function that computes the convolutions and products of a graph of aten operators, each in the fastest way.

    The ways are the operator as in the graph; a convolution in channels-last memory; and for frozen weights, torch's
    operators with packed weights. Each weight has memory of its own, as in a model. Returns None for a graph without
    convolutions and products. Raises the errors of torch.
    """
    fastest: dict[Any, int] = {}
    shared: dict[Any, Any] = {}
    calls = []
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in (aten.convolution.default, *_PRODUCTS):
            continue
        tensors = _tensors(node, shared)
        numbers = str([each for each in node.args if not isinstance(each, torch.fx.Node)])
        key = node.target, numbers, *map(_kind, tensors), _has_frozen_weight(node)
        if key not in fastest:
            taken = [min(seconds_of(call) for _ in range(_CALLS)) for call in _ways(node, tensors)]
            fastest[key] = taken.index(min(taken))
        calls.append(next(call for at, call in enumerate(_ways(node, tensors)) if at == fastest[key]))
    if not calls:
        return None

    def compute() -> None:
        for call in calls:
            call()

    return compute


def _tensors(node: Node, shared: dict[Any, Any]) -> list[Any]:
    """Real tensors for the tensors among a node's arguments. Nodes share inputs of equal shape, but no weights."""
    weight = _weight(node)
    found = []
    for each in node.args:
        if not isinstance(each, torch.fx.Node):
            continue
        kind = _kind(value(each))
        if each is weight:
            found += samples([value(each)], ())
        else:
            if kind not in shared:
                (shared[kind],) = samples([value(each)], ())
            found.append(shared[kind])
    return found


def _kind(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride()


def _weight(node: Node) -> Node:
    return node.args[1] if node.target is aten.convolution.default else node.args[-1]


def _has_frozen_weight(node: Node) -> bool:
    weight = _weight(node)
    while weight.op == "call_function" and weight.target in _VIEWS:
        weight = weight.args[0]
    return weight.op == "placeholder" and is_frozen(weight)


def _ways(node: Node, tensors: Sequence[Any]) -> Iterator[_Call]:
    """Calls that compute a node on `tensors`, which replace the tensors among its arguments: first as in the graph."""
    left = iter(tensors)
    given = [next(left) if isinstance(each, torch.fx.Node) else each for each in node.args]
    yield lambda: node.target(*given)
    if node.target is aten.convolution.default:
        yield from _convolutions(node, given)
    elif _has_frozen_weight(node) and node.target is not aten.bmm.default:
        yield from _packed_product(given)


def _convolutions(node: Node, given: Sequence[Any]) -> Iterator[_Call]:
    images, filters, bias, stride, padding, dilation, *_ = given
    format_ = _CHANNELS_LAST.get(images.dim())
    if format_ is None:
        return
    images, filters = (each.contiguous(memory_format=format_) for each in (images, filters))
    yield lambda: node.target(images, filters, bias, *given[3:])
    if not _has_frozen_weight(node) or argument(node, 6, "transposed", False) or not _packs(images):
        return
    groups = argument(node, 8, "groups", 1)
    window = padding, stride, dilation, groups
    reorder = getattr(aten, f"mkldnn_reorder_conv{images.dim() - 2}d_weight")
    try:
        packed = reorder(filters.to_mkldnn(), *window, list(images.shape))
    except RuntimeError:  # oneDNN does not pack it, also for inductor
        return
    convolve = _torch.ops.mkldnn._convolution_pointwise
    yield lambda: convolve(images, packed, bias, *window, "none", [], "")


def _packed_product(given: Sequence[Any]) -> Iterator[_Call]:
    """The product of mm or addmm with a packed weight."""
    bias, lhs, rhs = given if len(given) > 2 else (None, *given)
    if not _packs(lhs) or (bias is not None and bias.dim() != 1):
        return
    stored, rows = rhs.mT.contiguous(), lhs.shape[0]
    if _torch._C.has_mkl and lhs.dtype is torch.float32:
        of_mkl = _torch.ops.mkl._mkl_reorder_linear_weight(stored, rows)
        yield lambda: _torch.ops.mkl._mkl_linear(lhs, of_mkl, stored, bias, rows)
    packed = _torch.ops.mkldnn._reorder_linear_weight(stored, rows)
    yield lambda: _torch.ops.mkldnn._linear_pointwise(lhs, packed, bias, "none", [], "")


def _packs(tensor: Any) -> bool:
    """Whether torch has operators with packed weights for tensors of this type."""
    has_type = {
        torch.float32: lambda: True,
        torch.bfloat16: _torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: _torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }.get(tensor.dtype)
    return bool(_torch.backends.mkldnn.is_available() and has_type is not None and has_type())

"""Determines the strides that real operators give their results, where fake tensors may have others.

Fake operators have their own rules for strides. Real operators return other strides along axes with one element, where
strides do not matter, for batch norms of images in an unusual order, and for gradients of layer norms:

    relu(8x1x1 pixels, channels_last)       fake: (8, 1, 8, 8)      real: (8, 1, 1, 1)

They keep channels_last memory where they shuffle channels, which fake operators do not.

Results of regions must have the real strides, too. So such operators are tried on zeros.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten
from dispatch_profiler.boo.fusion.strides import name_same_memory, takes_any_strides
from dispatch_profiler.boo.ops.layouts import dense_strides
from dispatch_profiler.boo.weights.memory import spanned_elements

_torch: Any = torch
_tree_map_only: Any = torch.utils._pytree.tree_map_only
#: Operators are not tried on tensors with more elements.
_MOST_ELEMENTS = 1 << 26
_BATCH_NORMS = frozenset(
    getattr(getattr(aten, name), overload)
    for name, overload in (
        ("_native_batch_norm_legit_no_training", "default"),
        ("_native_batch_norm_legit_functional", "default"),
        ("_native_batch_norm_legit", "no_stats"),
        ("native_batch_norm", "default"),
    )
    if hasattr(aten, name)
)
_LAYER_NORM_GRADIENTS = frozenset((aten.native_layer_norm_backward.default,))
#: They keep the memory format of images; their fake versions return contiguous memory.
_SHUFFLES = frozenset(
    getattr(aten, name).default
    for name in ("channel_shuffle", "native_channel_shuffle")
    if hasattr(aten, name)
)
#: Operator -> number of leading arguments that are images, whose strides may mislead the fake operator.
_IMAGES = {aten.convolution.default: 1, aten.convolution_backward.default: 2}


def correct_strides(graph: Any, fake_mode: Any, inputs: Sequence[Any] = ()) -> None:
    """Give the fake tensors of a graph's nodes the strides of real tensors. Their storages stay the same.

    Operators whose results may have other strides, and operators that read such results, are tried on zeros on the CPU.
    The strides of `inputs`, in order, replace the strides of the graph's placeholders.
    """
    placeholders = (node for node in graph.nodes if node.op == "placeholder")
    corrected = {
        node for node, each in zip(placeholders, inputs, strict=False) if _correct(node, each, fake_mode)
    }
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        reads_corrected = not corrected.isdisjoint(node.all_input_nodes)
        if node.target is operator.getitem:
            if reads_corrected:
                node.meta["val"] = node.args[0].meta["val"][node.args[1]]
                corrected.add(node)
            continue
        if not _is_of_torch(node.target) or not (reads_corrected or _may_differ(node)):
            continue
        real = _tried(node)
        if real is not None and _correct(node, real, fake_mode):
            corrected.add(node)


def correct_strides_behind(nodes: Iterable[Node], graph: Any, fake_mode: Any) -> dict[int, tuple[int, ...]]:
    """Correct the fake tensors of `nodes`, and of nodes behind them, if the strides select other elements of memory.

    All other fake tensors stay as they are, since compilers keep their strides, except along axes with one element.
    Returns the strides that eager torch gives results with such axes on the CPU: place among the results -> strides.
    """
    fakes = {node: node.meta["val"] for node in graph.nodes if "val" in node.meta}
    correct_strides(graph, fake_mode)
    (output,) = [node for node in graph.nodes if node.op == "output"]
    ambiguous = {
        place: node.meta["val"].stride()
        for place, node in enumerate(output.args[0])
        if _has_any_strides(node)
    }
    behind = set(nodes)
    for node, fake in fakes.items():
        if not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
        if node not in behind or _names_same_memory(fake, node.meta["val"]):
            node.meta["val"] = fake
    return ambiguous


def _names_same_memory(fake: Any, corrected: Any) -> bool:
    if fake is corrected:
        return True
    if isinstance(fake, (tuple, list)):
        return all(map(_names_same_memory, fake, corrected))
    return name_same_memory(fake.shape, fake.stride(), corrected.stride())


def report_strides(graph: Any, fake_mode: Any) -> None:
    """Report the strides that eager torch gives the results of a forward graph to AOTAutograd, for the backward.

    The graph's fake tensors get these strides, too.
    """
    context = _torch._guards.TracingContext.try_get()
    if context is None or context.output_strides is None or context.output_strides:
        return
    correct_strides(graph, fake_mode)
    (output,) = [node for node in graph.nodes if node.op == "output"]
    values = [each.meta.get("val") if isinstance(each, torch.fx.Node) else each for each in output.args[0]]
    context.output_strides.extend(
        each.stride() if isinstance(each, torch.Tensor) and _can_be_tried(each) else None for each in values
    )


def corrected_result(node: Node, fake: Any, fake_mode: Any) -> Any:
    """`fake`, the result of a node's fake operator, with the strides of a real result."""
    before = node.meta.get("val")
    node.meta["val"] = fake
    if _is_of_torch(node.target) and _may_differ(node):
        real = _tried(node)
        if real is not None:
            _correct(node, real, fake_mode)
    fake, node.meta["val"] = node.meta["val"], before
    return fake


def _has_any_strides(node: Any) -> bool:
    """Whether a node is known to compute a tensor on the CPU with axes of one element."""
    if not isinstance(node, torch.fx.Node) or node.op == "placeholder":
        return False
    tensor = node.meta.get("val")
    return isinstance(tensor, torch.Tensor) and _can_be_tried(tensor) and 1 in tensor.shape


def _is_of_torch(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"


def _may_differ(node: Node) -> bool:
    """Whether the real operator may give its result other strides than the fake operator, for the same arguments."""
    known = (_IMAGES, _BATCH_NORMS, _LAYER_NORM_GRADIENTS, _SHUFFLES)
    if not takes_any_strides(node.target) and all(node.target not in each for each in known):
        return False
    tensors = _tensors([each.meta.get("val") for each in node.all_input_nodes[: _IMAGES.get(node.target)]])
    results = _tensors([node.meta.get("val")])
    if not all(map(_can_be_tried, (*tensors, *results))):  # comparing symbolic extents would add guards
        return False
    if node.target in _BATCH_NORMS and not _is_usual(tensors[0]):
        return True
    if node.target in (_LAYER_NORM_GRADIENTS | _SHUFFLES) and not all(map(_is_dense, tensors)):
        return True
    if node.target is aten.stack.default and any(1 in each.shape for each in tensors):
        return True
    if node.target is aten.view.default and any(1 in each.shape and not _is_dense(each) for each in tensors):
        return True
    return any(map(_is_ambiguous, (*tensors, *results)))


def _tensors(values: Iterable[Any]) -> list[Any]:
    """The tensors among values, also in lists."""
    return [each for each in _torch.utils._pytree.tree_leaves(list(values)) if isinstance(each, torch.Tensor)]


def _is_usual(tensor: Any) -> bool:
    """Whether a tensor has the usual strides of contiguous or channels_last memory, even along axes with one element."""
    return tensor.stride() in (dense_strides(tensor.shape, range(tensor.dim())), _channels_last(tensor.shape))


def _is_ambiguous(tensor: Any) -> bool:
    """Whether a tensor has axes with one element, and strides that operators may interpret in several ways."""
    shape = tuple(tensor.shape)
    if 1 not in shape or _is_dense(tensor):
        return False
    return 1 in shape[1:] or tensor.stride() != _channels_last(shape)


def _is_dense(tensor: Any) -> bool:
    """Whether a tensor has the usual strides of contiguous memory, even along axes with one element."""
    return bool(tensor.stride() == dense_strides(tensor.shape, range(tensor.dim())))


def _channels_last(shape: Sequence[int]) -> tuple[int, ...] | None:
    return dense_strides(shape, [0, *range(2, len(shape)), 1]) if len(shape) in (4, 5) else None


def _tried(node: Node) -> Any:
    """The result of a node's operator for zeros with the strides of its arguments; None if it cannot be tried."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    unset: Any = unset_fake_temporarily
    values = [each.meta.get("val") for each in node.all_input_nodes]
    if not all(_can_be_tried(each) for each in _tensors([*values, node.meta.get("val")])):
        return None
    try:
        with unset(), _torch._guards.tracing(None), torch.no_grad(), torch.random.fork_rng(devices=()):
            args, kwargs = torch.fx.map_arg(
                (node.args, node.kwargs), lambda each: _tree_map_only(torch.Tensor, _zeros, each.meta["val"])
            )
            return node.target(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return None


def _can_be_tried(tensor: Any) -> bool:
    shape, strides = tensor.shape, tensor.stride()
    is_static = all(type(each) is int for each in (*shape, *strides, tensor.storage_offset()))
    return is_static and tensor.device.type == "cpu" and spanned_elements(shape, strides) <= _MOST_ELEMENTS


def _zeros(fake: Any) -> Any:
    shape, strides, offset = fake.shape, fake.stride(), fake.storage_offset()
    memory = torch.zeros(offset + spanned_elements(shape, strides), dtype=fake.dtype, device="cpu")
    return memory.as_strided(shape, strides, offset)


def _correct(node: Node, real: Any, fake_mode: Any) -> bool:
    """Give the fake tensors of a node the strides of `real`. Returns whether any strides changed."""
    before = node.meta["val"]
    with fake_mode:
        node.meta["val"] = after = _restrided(before, real)
    return after is not before


def _restrided(fake: Any, real: Any) -> Any:
    if isinstance(fake, (tuple, list)) and isinstance(real, (tuple, list)) and len(fake) == len(real):
        each = [_restrided(one, other) for one, other in zip(fake, real, strict=True)]
        is_changed = any(one is not other for one, other in zip(each, fake, strict=True))
        return type(fake)(each) if is_changed else fake
    # For some unneeded gradients, real operators return None, and fake operators a tensor.
    if not isinstance(fake, torch.Tensor) or not isinstance(real, torch.Tensor):
        return fake
    if fake.shape != real.shape or fake.stride() == real.stride():
        return fake
    return fake.as_strided(real.shape, real.stride(), fake.storage_offset())

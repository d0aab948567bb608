"""Gradients of convolutions by torch, as an operator whose tensors inductor leaves in their memory format.

    dispatch_profiler::convolution_gradients(Tensor dy, Tensor x, Tensor weight, ...) -> Tensor[]

Arguments are as for `aten::convolution_backward`, and the results are its results without those that `output_mask` leaves
out. Inductor chooses the memory format of the images of `aten::convolution_backward` after the strides of the weight. With
one channel in each group, these do not say where channels are, so inductor permutes images in channels_last memory to
another order (n, h, c, w), and torch permutes them back: a seventh of the time of a training step of MobileNetV3.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten, value
from dispatch_profiler.boo.launching.torch_types import EXACT_STRIDES, OUTSIDE_OF_CUDA_GRAPHS, Tensor
from dispatch_profiler.boo.ops.flops import count_flops
from dispatch_profiler.boo.ops.library import LIBRARY, NAMESPACE

_NAME = "convolution_gradients"
_torch: Any = torch
LIBRARY.define(
    f"{_NAME}(Tensor dy, Tensor x, Tensor weight, int[]? bias_sizes, int[] stride, int[] padding, int[] dilation, "
    "bool transposed, int[] output_padding, int groups, bool[3] output_mask) -> Tensor[]",
    tags=(EXACT_STRIDES, *OUTSIDE_OF_CUDA_GRAPHS),
)


def _gradients(*arguments: Any) -> list[Tensor]:
    results = aten.convolution_backward.default(*arguments)
    return [each for each, is_wanted in zip(results, arguments[-1], strict=True) if is_wanted]


LIBRARY.impl(_NAME, _gradients, "CPU")
_torch.library.register_fake(f"{NAMESPACE}::{_NAME}", _gradients, lib=LIBRARY)

CONVOLUTION_GRADIENTS: Any = getattr(_torch.ops.dispatch_profiler, _NAME).default


def keep_memory_formats(graph: Any) -> None:
    """Let gradients of convolutions on the CPU read images in channels_last memory where they are stored."""
    for node in list(graph.nodes):
        if node.target is aten.convolution_backward.default and _reads_channels_last(node):
            _replace(graph, node)


def _reads_channels_last(node: Node) -> bool:
    images = [value(each) for each in node.args[:2]]
    return all(
        each is not None
        and each.device.type == "cpu"
        and each.dim() == 4
        and each.is_contiguous(memory_format=torch.channels_last)
        for each in images
    )


def _replace(graph: Any, node: Node) -> None:
    """Replace a node that computes gradients, and the nodes that read its results, by nodes of our operator."""
    places = [at for at, is_wanted in enumerate(node.args[-1]) if is_wanted]
    readers = []
    for each in list(node.users):
        if each.target is operator.getitem and not each.users:
            graph.erase_node(each)
        elif each.target is operator.getitem and each.args[1] in places:
            readers.append(each)
        else:
            return
    with graph.inserting_before(node):
        made = graph.call_function(CONVOLUTION_GRADIENTS, node.args)
    made.meta["val"] = [node.meta["val"][at] for at in places]
    for each in readers:
        with graph.inserting_before(each):
            result = graph.call_function(operator.getitem, (made, places.index(each.args[1])))
        result.meta.update(each.meta)
        each.replace_all_uses_with(result)
        graph.erase_node(each)
    graph.erase_node(node)


def _flops(dy: Any, x: Any, weight: Any, *options: Any, **_: Any) -> int:
    """As torch's counter, which is imported by now, counts them."""
    count: int = _torch.utils.flop_counter.conv_backward_flop(
        dy, x, weight, *options, out_val=(x, weight, None)
    )
    return count


count_flops(_NAME, _flops)

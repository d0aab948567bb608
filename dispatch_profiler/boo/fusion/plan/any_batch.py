"""Regions of graphs with dynamic shapes: products with any number of rows, and constant weights.

Regions are found as if all sizes were those of the call that compiles the graph. Those that depend on nothing but the
number of rows are then replaced, in the graph as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from dispatch_profiler.boo.fusion.execute.batch_operator import BATCH_REGION
from dispatch_profiler.boo.fusion.match.matching import VIEWS, Region
from dispatch_profiler.boo.fusion.nodes import Node, value
from dispatch_profiler.boo.fusion.roots.product import MATRIX_PRODUCT
from dispatch_profiler.boo.fusion.spec import RunSpec
from dispatch_profiler.targets import of_any_batch

_torch: Any = torch


def has_dynamic_shapes(graph: Any) -> bool:
    """Whether a tensor of a graph has a size that is known in each call only."""
    return any(_is_dynamic(each) for each in map(value, graph.nodes) if each is not None)


def _is_dynamic(tensor: Any) -> bool:
    return any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *_strides(tensor)))


def _strides(tensor: Any) -> Sequence[Any]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


@contextlib.contextmanager
def sized_as_traced(graph: Any, fake_mode: Any) -> Iterator[None]:
    """Within the context, a graph has the sizes of the call that it was traced for, if these are known.

    They are the sizes of tensors, and arguments of operators.
    """
    tensors = {node: value(node) for node in graph.nodes if value(node) is not None}
    arguments = {node: node.args for node in graph.nodes if any(map(_is_size, node.all_input_nodes))}
    try:
        for node, tensor in tensors.items():
            if _is_dynamic(tensor):
                sized = _as_traced(tensor, fake_mode)
                node.meta["val"] = tensor if sized is None else sized
        for node, given in arguments.items():
            node.args = torch.fx.map_arg(given, _argument_as_traced)
        yield
    finally:
        for node, tensor in tensors.items():
            node.meta["val"] = tensor
        for node, given in arguments.items():
            node.args = given


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def _argument_as_traced(node: Node) -> Any:
    size = _hint(node.meta["val"]) if _is_size(node) else None
    return node if size is None else size


def _as_traced(tensor: Any, fake_mode: Any) -> Any:
    """A fake tensor with the sizes of the traced call; None if one is unknown."""
    found = [_hint(each) for each in (*tensor.shape, *tensor.stride())]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    sizes, strides = known[: tensor.dim()], known[tensor.dim() :]
    with fake_mode:
        return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)


def _hint(size: Any) -> int | None:
    if not isinstance(size, torch.SymInt):
        return int(size)
    return size.node.hint if size.node.has_hint() else None


def of_rows(region: Region) -> Region | None:
    """A region for any number of rows; None if it is none. Call this while the graph is `sized_as_traced`."""
    spec = region.spec
    if region.root != MATRIX_PRODUCT or not spec.packs_weight or of_any_batch(spec.operation) is None:
        return None
    if any(source.reading != "rows" for source in spec.sources):
        return None
    return replace(region, spec=replace(spec, any_batch=True))


def varies_in_batch_only(region: Region) -> bool:
    """Whether the number of rows of a region is dynamic in its graph, and all of its sizes follow from it.

    Its result must be stored row by row.
    """
    operation = region.spec.operation
    (output,), (_, columns) = region.outputs, operation.results[0].shape
    result = value(output)
    rows = result.numel() // columns
    if not (
        _is_dynamic(result) and statically_known_true(result.shape[-1] == columns) and _is_row_major(result)
    ):
        return False
    for source, tensor in zip(region.spec.sources, operation.operands, strict=True):
        given = value(region.inputs[source.inputs[0]])
        of_rows = tensor.name != "rhs" and len(tensor.shape) > 1
        width = tensor.shape[-1] if of_rows else 1
        expected = rows * width if of_rows else tensor.elements
        if not statically_known_true(given.numel() == expected):
            return False
        if of_rows and not statically_known_true(given.shape[-1] == width):
            return False
    return True


def _is_row_major(tensor: Any) -> bool:
    elements: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not statically_known_true(stride == elements):
            return False
        elements = elements * size
    return True


def replace_regions(graph: Any, regions: Sequence[Region], fake_mode: Any) -> None:
    """Replace `regions` of a graph by calls of `BATCH_REGION`, in place."""
    replaced: dict[Node, Node] = {}
    for region in regions:
        _replace(graph, region, replaced, fake_mode)
    graph.eliminate_dead_code()
    graph.lint()


def _replace(graph: Any, region: Region, replaced: dict[Node, Node], fake_mode: Any) -> None:
    last = max(region.nodes)  # nodes compare by their positions in the graph
    inputs = [replaced.get(each, each) for each in region.inputs]
    text = RunSpec.of(region.spec).text
    with graph.inserting_after(last):
        made = call = graph.call_function(BATCH_REGION, (inputs, text))
    with fake_mode:
        call.meta["val"] = BATCH_REGION([value(each) for each in inputs], text)
    views = [node for node in region.nodes if node.target in VIEWS]
    if views:
        # The last view has the shape of the result: steps keep it.
        with graph.inserting_after(call):
            made = graph.call_function(views[-1].target, (call, views[-1].args[1]))
        made.meta["val"] = value(last)
    last.replace_all_uses_with(made)
    replaced[last] = made

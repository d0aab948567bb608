"""Regions of graphs with dynamic shapes: products of any number of rows, and convolutions of any number of images.

Regions are found with the sizes of the call that compiles the graph. Regions that depend on nothing but the number of rows
or images are then replaced, in the graph as it is. Weights have to be constants.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from dispatch_profiler.boo.fusion.execute.batch_operator import BATCH_REGIONS
from dispatch_profiler.boo.fusion.match.matching import VIEWS, Region, find_regions
from dispatch_profiler.boo.fusion.nodes import Node, aten, fake_mode, value
from dispatch_profiler.boo.fusion.plan.joining import join_runs
from dispatch_profiler.boo.fusion.schema import FusionSchema
from dispatch_profiler.boo.fusion.spec import RunSpec
from dispatch_profiler.boo.ops.layouts import storage_order
from dispatch_profiler.targets import of_any_batch

_torch: Any = torch
#: Reading of a result -> readings that operands may have. The operator takes all their tensors as they are.
_READINGS = {"rows": ("rows",), "channels": ("channels", "filter", "rows", "scale", "shift")}


def has_dynamic_shapes(graph: Any) -> bool:
    """Whether a tensor of a graph has a size that is known in each call only."""
    return any(_is_dynamic(each) for each in map(value, graph.nodes) if each is not None)


def _is_dynamic(tensor: Any) -> bool:
    return any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *_strides(tensor)))


def _strides(tensor: Any) -> Sequence[Any]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def any_batch_regions(graph: Any, schema: FusionSchema) -> list[Region]:
    """The regions of any number of rows or images in a graph with dynamic shapes."""
    mode = fake_mode(graph)
    if mode is None:
        return []
    with sized_as_traced(graph, mode):
        found = [_with_any_batch(each) for each in find_regions(graph, schema)[0]]
    return [each for each in found if each is not None and _varies_in_batch_only(each)]


def inputs_as_traced(inputs: Sequence[Any], mode: Any) -> list[Any]:
    """The inputs of a graph with the sizes of the call that it was traced for, so that nothing depends on other sizes."""
    made = []
    for each in inputs:
        if isinstance(each, torch.Tensor):
            sized = _as_traced(each, mode) if _is_dynamic(each) else each
        else:
            sized = _hint(each) if isinstance(each, torch.SymInt) else each
        made.append(each if sized is None else sized)
    return made


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


def _with_any_batch(region: Region) -> Region | None:
    """A region for any number of rows or images; None if its kernel cannot be for any. Call this while the graph is `sized_as_traced`."""
    spec = region.spec
    if not spec.packs_weight or len(spec.results) != 1 or of_any_batch(spec.operation) is None:
        return None
    ((_, reading),) = spec.results
    if any(source.reading not in _READINGS[reading] for source in spec.sources):
        return None
    return replace(region, spec=replace(spec, any_batch=True))


def _varies_in_batch_only(region: Region) -> bool:
    """Whether the number of rows or images of a region is dynamic in its graph, and all of its sizes follow from it.

    Rows of a result must be stored one after another.
    """
    (output,) = region.outputs
    result = value(output)
    if not _is_dynamic(result):
        return False
    ((_, reading),) = region.spec.results
    return _images_vary(region, result) if reading == "channels" else _rows_vary(region, result)


def _images_vary(region: Region, result: Any) -> bool:
    spec = region.spec
    ((shape, _),) = spec.results
    images = {at for source in spec.sources if source.reading == "channels" for at in source.inputs}
    sized = [(result, shape, True)] + [
        (value(node), spec.inputs[at], at in images) for at, node in enumerate(region.inputs)
    ]
    return all(
        _is_shape(given.shape, (result.shape[0], *expected[1:]) if has_images else expected)
        for given, expected, has_images in sized
    )


def _is_shape(shape: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(shape) == len(expected) and all(
        statically_known_true(one == other) for one, other in zip(shape, expected, strict=True)
    )


def _rows_vary(region: Region, result: Any) -> bool:
    operation = region.spec.operation
    _, columns = operation.results[0].shape
    rows = result.numel() // columns
    if not (statically_known_true(result.shape[-1] == columns) and _is_row_major(result)):
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


def computes_more(graph: Any, regions: Sequence[Region]) -> bool:
    """Whether a graph computes tensors outside of `regions`, other than views."""
    inside = {node for each in regions for node in each.nodes}
    others = (node for node in graph.nodes if node.op == "call_function" and node not in inside)
    return any(value(node) is not None and node.target not in VIEWS for node in others)


def replace_regions(graph: Any, regions: Sequence[Region], fake_mode: Any) -> None:
    """Replace `regions` of a graph by calls of `BATCH_REGIONS`, in place."""
    replaced = _Replaced({}, {})
    for region in regions:
        _replace(graph, region, replaced, fake_mode)
    graph.eliminate_dead_code()
    join_runs(graph, BATCH_REGIONS)
    graph.lint()


@dataclass(frozen=True)
class _Replaced:
    """Last nodes of regions -> what has taken their place; and the results of calls, with how their memory is read."""

    by: dict[Node, Node]
    results: dict[Node, tuple[Node, str]]

    def inputs(self, region: Region) -> list[Node]:
        """What a region reads: of results as they are stored, without a view or copy for the rest of the graph."""
        return [self._input(node, _readings(region, at)) for at, node in enumerate(region.inputs)]

    def _input(self, node: Node, readings: set[str]) -> Node:
        found = self.by.get(node, node)
        result, reading = self.results.get(found, (found, ""))
        return result if readings == {reading} else found


def _readings(region: Region, at: int) -> set[str]:
    return {source.reading for source in region.spec.sources if at in source.inputs}


def _replace(graph: Any, region: Region, replaced: _Replaced, fake_mode: Any) -> None:
    last = max(region.nodes)  # nodes compare by their positions in the graph
    inputs = replaced.inputs(region)
    run = RunSpec.of(region.spec)
    with graph.inserting_after(last):
        call = graph.call_function(BATCH_REGIONS, (inputs, run.text))
    with graph.inserting_after(call):
        result = graph.call_function(operator.getitem, (call, 0))
    with fake_mode:
        call.meta["val"] = BATCH_REGIONS([value(each) for each in inputs], run.text)
    (result.meta["val"],) = call.meta["val"]
    ((_, reading),) = region.spec.results
    made = (
        _with_strides(graph, result, last, fake_mode)
        if reading == "channels"
        else _with_view(graph, result, region, last)
    )
    replaced.results[made] = result, reading
    last.replace_all_uses_with(made)
    replaced.by[last] = made


def _with_view(graph: Any, result: Node, region: Region, last: Node) -> Node:
    """The rows of `result` in the shape that the region has in the graph, which is the last view's: steps keep it."""
    views = [node for node in region.nodes if node.target in VIEWS]
    if not views:
        return result
    with graph.inserting_after(result):
        made: Node = graph.call_function(views[-1].target, (result, views[-1].args[1]))
    made.meta["val"] = value(last)
    return made


def _with_strides(graph: Any, result: Node, last: Node, fake_mode: Any) -> Node:
    """The images of `result` with the strides of the graph: a copy, unless they have them."""
    wanted, made = value(last), result
    if _is_shape(wanted.stride(), value(result).stride()):
        return result
    order = storage_order(wanted.stride())
    back = [order.index(axis) for axis in range(len(order))]
    for target, arguments in (
        (aten.permute.default, (order,)),
        (aten.clone.default, ()),
        (aten.permute.default, (back,)),
    ):
        options = {"memory_format": torch.contiguous_format} if target is aten.clone.default else {}
        with graph.inserting_after(made):
            after = graph.call_function(target, (made, *arguments), options)
        with fake_mode:
            after.meta["val"] = target(value(made), *arguments, **options)
        made = after
    return made

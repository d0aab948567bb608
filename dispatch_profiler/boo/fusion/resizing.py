"""Finds resized images in inference graphs: torch traces `interpolate` as gathers with constant indices, and weights.

    a = x[:, :, rows, columns]; b = x[:, :, rows, columns + 1]; ...; a + (b - a) * weights
        -> upsample_bilinear2d(x, size)

The operator is found if it computes what the gathers compute of an image of random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import Node, aten, value

_GATHERS = (aten._unsafe_index.Tensor, aten.index.Tensor)
#: Number of axes -> operators that take the size and scales, that also take `align_corners`, and that gather 4 pixels an axis.
_NEAREST = {
    1: (aten.upsample_nearest1d.default, aten._upsample_nearest_exact1d.default),
    2: (aten.upsample_nearest2d.default, aten._upsample_nearest_exact2d.default),
    3: (aten.upsample_nearest3d.default, aten._upsample_nearest_exact3d.default),
}
_LINEAR = {
    1: aten.upsample_linear1d.default,
    2: aten.upsample_bilinear2d.default,
    3: aten.upsample_trilinear3d.default,
}
_CUBIC = {2: aten.upsample_bicubic2d.default}
#: Elements of an image, and of a constant, that are computed to compare operators.
_MOST_ELEMENTS = 2**24
#: Results between gathers and the resized image that are compared with operators.
_MOST_SINKS = 4


def restore_resizing(graph: Any) -> None:
    """Replace gathers of images in f32 with constant indices, and what adds them, by operators that resize, in place."""
    groups: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.target in _GATHERS and _is_resizing(node):
            groups.setdefault((node.args[0], tuple(value(node).shape)), []).append(node)
    constants = _constants(graph) if groups else set()
    for gathers in groups.values():
        if all(each in constants for node in gathers for each in node.args[1] if each is not None):
            _restore(graph, gathers, constants)
    for node in reversed(list(graph.nodes)):
        if node in constants and not node.users:
            graph.erase_node(node)


def _is_resizing(node: Node) -> bool:
    """Whether a gather may be of an image with fixed extents: an index for each axis but those of images and channels."""
    x, found, indices = value(node.args[0]), value(node), node.args[1]
    if x is None or found is None or x.dtype is not torch.float32 or x.dim() not in (3, 4, 5):
        return False
    extents = (*x.shape, *found.shape)
    return (
        all(type(each) is int for each in extents)
        and x.shape[:2] == found.shape[:2]
        and found.dim() == x.dim() == len(indices)
        and indices[:2] == [None, None]
        and None not in indices[2:]
        and math.prod(extents[2 : x.dim()]) + math.prod(found.shape[2:]) <= _MOST_ELEMENTS
    )


def _constants(graph: Any) -> set[Node]:
    """Nodes that no input and no random number influences."""
    constants = set[Node]()
    for node in graph.nodes:
        tags = getattr(node.target, "tags", None)
        if node.op != "call_function" or (tags is not None and torch.Tag.nondeterministic_seeded in tags):
            continue
        if not all(each in constants for each in node.all_input_nodes):
            continue
        tensor = value(node)
        if tensor is None or all(type(extent) is int for extent in tensor.shape):
            constants.add(node)
    return constants


def _restore(graph: Any, gathers: Sequence[Node], constants: set[Node]) -> None:
    for members in _sinks(gathers, constants):
        found = _operator(members, gathers, constants)
        if found is None:
            continue
        operator, arguments = found
        sink = members[-1]
        with graph.inserting_before(sink):
            resized = graph.call_function(operator, (gathers[0].args[0], *arguments))
        resized.meta.update(sink.meta)
        sink.replace_all_uses_with(resized)
        for node in reversed(members):
            graph.erase_node(node)
        return


def _sinks(gathers: Sequence[Node], constants: set[Node]) -> Iterator[list[Node]]:
    """The nodes from the gathers to each node that everything between flows into, in the order of the graph."""
    members: list[Node] = []
    inside, waiting, found = set[Node](), set(gathers), 0
    node = gathers[0]
    while node.op != "root" and found < _MOST_SINKS:
        follows = inside.intersection(node.all_input_nodes) and all(
            each in inside or each in constants for each in node.all_input_nodes
        )
        if node in waiting or (follows and node.op == "call_function"):
            members.append(node)
            inside.add(node)
            waiting.discard(node)
            if not waiting and all(inside.issuperset(each.users) for each in members[:-1]):
                found += 1
                yield list(members)
        node = node.next


def _operator(
    members: Sequence[Node], gathers: Sequence[Node], constants: set[Node]
) -> tuple[Any, list[Any]] | None:
    """The operator that computes what `members` compute, and its arguments behind the image; None if there is none."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    x, result = value(gathers[0].args[0]), value(members[-1])
    if result is None or result.dtype is not x.dtype or result.shape[:2] != x.shape[:2]:
        return None
    unset: Any = unset_fake_temporarily
    with unset(), torch.no_grad():
        image = torch.rand((1, 1, *x.shape[2:]), generator=torch.Generator().manual_seed(1), device="cpu")
        try:
            expected = _evaluated(members, constants, {gathers[0].args[0]: image})
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        size = list(result.shape[2:])
        tolerance = 1e-6 * max(*x.shape[2:], *size, 8)
        for operator, arguments in _candidates(gathers, size):
            found = operator(image, *arguments)
            if found.shape == expected.shape and torch.allclose(found, expected, rtol=0, atol=tolerance):
                return operator, arguments
    return None


def _evaluated(members: Sequence[Node], constants: set[Node], known: dict[Node, Any]) -> Any:
    """The value of the last of `members`, which take constants, each other, and what is `known`."""

    def computed(node: Node) -> Any:
        if node not in known:
            assert node in constants or node in members, node
            arguments, named = torch.fx.map_arg((node.args, node.kwargs), computed)
            known[node] = node.target(*arguments, **named)
        return known[node]

    return computed(members[-1])


def _candidates(gathers: Sequence[Node], size: Sequence[int]) -> Iterator[tuple[Any, list[Any]]]:
    """Operators that gather as many pixels, with each of their options."""
    axes = len(size)
    nothing: list[float | None] = [None] * axes
    factors = [list(map(_scale, gathers[0].args[1][2:])), nothing]
    if len(gathers) == 1:
        for operator, each in product(_NEAREST[axes], factors):
            yield operator, [list(size), *each]
        return
    found = {2**axes: _LINEAR.get(axes), 4**axes: _CUBIC.get(axes)}.get(len(gathers))
    for each, aligns in product(factors if found else (), (False, True)):
        yield found, [list(size), aligns, *each]


def _scale(index: Node) -> float | None:
    """The factor by which an axis grows, according to the formula of an index; None if it has no product."""
    waiting = [index]
    while waiting:
        node = waiting.pop()
        if node.target is aten.mul.Tensor and isinstance(node.args[1], float) and node.args[1] > 0:
            return 1.0 / node.args[1]
        waiting.extend(node.all_input_nodes)
    return None

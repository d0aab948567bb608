"""Finds where the memory format of images changes between regions and torch's operators.

Kernels read and write images in channels_last memory. Images stay in this format between regions, and across operators
of torch that take any strides. Elsewhere they are copied: before a region that reads an image with other strides, and
after a region whose result must have other strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.boo.fusion.match.matching import Region
from dispatch_profiler.boo.fusion.nodes import Node, value
from dispatch_profiler.boo.fusion.strides import takes_any_strides


@dataclass(frozen=True)
class Borders:
    """The copies at the borders of a region: places of copied inputs among its inputs, and of copied results."""

    inputs: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.results)


def borders_of(regions: Sequence[Region]) -> list[Borders]:
    """The borders of each region of a graph, provided that our kernels compute all of them."""
    if not regions:
        return []
    moved = _moved(regions)
    computed = {node for region in regions for node in region.nodes}
    return [
        Borders(
            frozenset(
                at
                for at in image_places(region)
                if region.inputs[at] not in moved and not _is_channels_last(value(region.inputs[at]))
            ),
            frozenset(
                at
                for at, (node, (_, reading)) in enumerate(
                    zip(region.outputs, region.spec.results, strict=True)
                )
                if node is not None and reading == "channels" and _is_restored(node, computed)
            ),
        )
        for region in regions
    ]


def image_places(region: Region) -> set[int]:
    """The places of the inputs, except weights, that kernels read in channels_last memory."""
    return {at for source in region.spec.sources if source.reading == "channels" for at in source.inputs}


def _moved(regions: Sequence[Region]) -> set[Node]:
    """The nodes whose results are in channels_last memory because the results of regions are."""
    inside = {node for region in regions for node in region.nodes}
    moved = {
        node
        for region in regions
        for node, (_, reading) in zip(region.outputs, region.spec.results, strict=True)
        if node is not None and reading == "channels"
    }
    for node in next(iter(moved)).graph.nodes if moved else ():
        is_of_torch = node.op == "call_function" and node not in inside and takes_any_strides(node.target)
        if is_of_torch and moved.intersection(node.all_input_nodes):
            moved.add(node)
    return moved


def _is_restored(node: Node, computed: set[Node]) -> bool:
    """Whether something that reads a result needs the strides that the result has in the graph without regions."""
    if _is_channels_last(value(node)):
        return False
    return any(
        user not in computed and (user.op != "call_function" or not takes_any_strides(user.target))
        for user in node.users
    )


def _is_channels_last(tensor: Any) -> bool:
    return bool(tensor.permute(0, *range(2, tensor.dim()), 1).is_contiguous())

"""Splits operators that compute several gradients, some of which kernels compute."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dispatch_profiler.boo.fusion.nodes import Node, aten, is_getitem

Graph = Any
_BIAS = 2


def leave_to_torch(graph: Graph, gradients: Node) -> None:
    """Let an operator compute only the gradients that are still read.

    If only the gradient of a convolution's bias is left, a sum computes it.
    """
    read = {at: each for each in gradients.users for at in range(3) if is_getitem(each, at) and each.users}
    if set(read) == {_BIAS} and gradients.target is aten.convolution_backward.default:
        dy, bias = gradients.args[0], read[_BIAS]
        with graph.inserting_before(bias):
            total = graph.call_function(aten.sum.dim_IntList, (dy, [0, *range(2, dy.meta["val"].dim())]))
        total.meta["val"] = bias.meta["val"]
        bias.replace_all_uses_with(total)
    elif read:
        compute_only(gradients, read)


def compute_only(gradients: Node, places: Iterable[int]) -> None:
    """Let an operator compute only the gradients at `places` among input, weight and bias, with its last argument."""
    wanted = set(places)
    *arguments, _ = gradients.args
    gradients.args = (*arguments, [at in wanted for at in range(3)])
    values = gradients.meta.get("val")
    if values is not None:
        gradients.meta["val"] = tuple(each if at in wanted else None for at, each in enumerate(values))

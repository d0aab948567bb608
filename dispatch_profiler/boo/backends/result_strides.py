"""Strides of results along axes with one element, behind a compiler.

Such strides mean nothing, but programs see them. Eager torch and inductor have rules of their own for each operator, so
results get those of eager torch, which were found when regions replaced the operators that they follow from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dispatch_profiler.boo.fusion.rewriting import RESULT_STRIDES
from dispatch_profiler.boo.fusion.strides import name_same_memory


def with_eager_strides(function: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """`function`, which computes the graph of `module` with fused regions, but with the strides of eager torch."""
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    wanted: Mapping[int, tuple[int, ...]] = output.meta.get(RESULT_STRIDES, {})
    if not wanted:
        return function

    def call(*inputs: Any) -> Any:
        results = function(*inputs)
        for place, strides in wanted.items():
            found = results[place]
            if found.stride() != strides and name_same_memory(found.shape, found.stride(), strides):
                # In place: another tensor would be a view that was made without gradients, which programs that compute
                # gradients may not write to.
                found.as_strided_(found.shape, strides)
        return results

    return call

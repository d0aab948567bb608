"""Strides of results behind a compiler.

Eager torch and inductor have rules of their own for strides along axes with one element, which mean nothing, but programs
see them. And inductor may replace operators by others, whose results follow the strides of regions. So results get the
strides of eager torch, which were found when regions replaced the operators that they follow from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dispatch_profiler.boo.fusion.plan.rewriting import RESULT_STRIDES
from dispatch_profiler.boo.fusion.plan.strides import name_same_memory, with_strides


def with_eager_strides(
    function: Callable[..., Any], module: Any, copied: int | None = None
) -> Callable[..., Any]:
    """`function`, which computes the graph of `module` with fused regions, but with the strides of eager torch.

    Of results with the elements in another order, the first `copied` are copied, or all if it is None.
    """
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    wanted: Mapping[int, tuple[int, ...]] = output.meta.get(RESULT_STRIDES, {})
    if not wanted:
        return function

    def call(*inputs: Any) -> Any:
        results = list(function(*inputs))
        for place, strides in wanted.items():
            found = results[place]
            if not isinstance(found, torch.Tensor) or found.stride() == strides:
                continue
            if name_same_memory(found.shape, found.stride(), strides):
                # In place: another tensor would be a view that was made without gradients, which programs that compute
                # gradients may not write to.
                found.as_strided_(found.shape, strides)
            elif copied is None or place < copied:
                results[place] = with_strides(found, found.shape, strides)
        return results

    return call

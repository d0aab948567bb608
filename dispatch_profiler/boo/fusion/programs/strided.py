"""Where the elements of an operand are in the memory of an input, behind views: an offset and strides."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.operators import (
    MOVES,
    OPERATORS,
    evaluate,
    in_torch_order,
    stored,
)
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.operations.strided import Strided

#: Elements of all operands at most: their places are computed one by one.
_MOST_ELEMENTS = 2**27


def _shared(heads: Sequence[int]) -> int:
    """How many successive heads are in the same place."""
    count = next((at for at, place in enumerate(heads) if place != heads[0]), len(heads))
    return count if len(heads) % count == 0 else 1


def strided(every: Any, starts: Sequence[int]) -> Strided:
    """A tensor of places in the memory of inputs that begin at `starts`. Raises NotFusible if it has no strides."""
    axes = every.dim()
    first = int(every[(0,) * axes])
    shared = _shared(every.reshape(*every.shape[:2], -1)[0, :, 0].tolist())
    places = every[:, ::shared]
    if shared > 1 and not torch.equal(every, places.repeat_interleave(shared, 1)):
        raise NotFusible("heads share an operand in part")
    strides = [
        int(places.select(axis, 1)[(0,) * (axes - 1)]) - first if extent > 1 else 0
        for axis, extent in enumerate(places.shape)
    ]
    expected = torch.tensor(first, device="cpu")
    for axis, (stride, extent) in enumerate(zip(strides, places.shape, strict=True)):
        expected = expected + (torch.arange(extent, device="cpu") * stride).reshape(
            [-1, *[1] * (axes - 1 - axis)]
        )
    if not torch.equal(places, expected):
        raise NotFusible("an operand or its result has no strides")
    source = bisect_right(starts, first) - 1
    return Strided(source, first - starts[source], tuple(strides), shared)


def places(
    program: Calls, others: Mapping[str, Callable[..., Any]], unread: Container[int] = ()
) -> tuple[Any, list[int]]:
    """The result of a program of views and `others`, of inputs whose elements are their own places in memory.

    Also returns the places where the inputs begin. Inputs that are `unread` have no elements. Raises NotFusible if the
    program has something else, or several results.
    """
    if len(program.returned) != 1:
        raise NotFusible("it has several results")
    counts = [0 if at in unread else math.prod(each.shape) for at, each in enumerate(program.inputs)]
    starts = list(accumulate(counts, initial=0))
    if starts[-1] > _MOST_ELEMENTS:
        raise NotFusible("its operands are too large")
    values = [
        in_torch_order(torch.arange(start, start + count, device="cpu").reshape(each.stored), each)
        if count
        else None
        for each, start, count in zip(program.inputs, starts, counts, strict=False)
    ]
    operators = {name: OPERATORS[name] for name in MOVES} | dict(others)
    for name, _, _ in program.parsed_calls:
        if name not in operators:
            raise NotFusible(f"{name} is no view")
    return evaluate(program, values, operators=operators)[0], starts


def result_places(program: Calls, returned: Any, shape: Sequence[int]) -> Strided:
    """Where a tensor of this `shape` is in the memory of a program's result, which has `returned` of its elements' numbers."""
    found = torch.empty(math.prod(shape), dtype=torch.int64, device="cpu")
    if returned.numel() != found.numel():
        raise NotFusible("its result has other elements")
    found[stored(returned, program.outputs[0]).reshape(-1)] = torch.arange(found.numel(), device="cpu")
    return replace(strided(found.reshape(shape), [0, found.numel()]), source=len(program.inputs))

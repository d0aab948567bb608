"""Where the elements of an operand of attention are in the memory of an input: an offset and strides."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible


@dataclass(frozen=True)
class Strided:
    """A tensor with four axes in the memory of the input `source`, or of the result: offset and strides in elements.

    The stride of the second axis, the heads, is that of `shared` successive heads, which are one in memory.
    """

    source: int
    offset: int
    strides: tuple[int, ...]
    shared: int = 1


def _shared(heads: Sequence[int]) -> int:
    """How many successive heads are in the same place."""
    count = next((at for at, place in enumerate(heads) if place != heads[0]), len(heads))
    return count if len(heads) % count == 0 else 1


def strided(every: Any, starts: Sequence[int]) -> Strided:
    """A tensor of places in the memory of inputs that begin at `starts`. Raises NotFusible if it has no strides."""
    first = int(every[0, 0, 0, 0])
    shared = _shared(every[0, :, 0, 0].tolist())
    places = every[:, ::shared]
    if shared > 1 and not torch.equal(every, places.repeat_interleave(shared, 1)):
        raise NotFusible("heads share an operand in part")
    strides = [
        int(places.select(axis, 1)[0, 0, 0]) - first if extent > 1 else 0
        for axis, extent in enumerate(places.shape)
    ]
    expected = torch.tensor(first)
    for axis, (stride, extent) in enumerate(zip(strides, places.shape, strict=True)):
        expected = expected + (torch.arange(extent) * stride).reshape([-1, *[1] * (3 - axis)])
    if not torch.equal(places, expected):
        raise NotFusible("an operand or its result has no strides")
    source = bisect_right(starts, first) - 1
    return Strided(source, first - starts[source], tuple(strides), shared)

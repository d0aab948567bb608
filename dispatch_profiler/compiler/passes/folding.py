"""Finding the loops of an operation that the compiler has folded (see `Lowering.folded`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dispatch_profiler.configurations import Groups
from dispatch_profiler.operations import Loop


def fold_groups(loops: Sequence[Loop], real: Sequence[tuple[int, bool]]) -> Groups | None:
    """The indices of `loops` that each of the loops `real` combines; None if they do not match.

    Folding keeps the order of parallel loops and the order of reduction loops; loops of extent 1 may vanish.
    loops n=8 oh=56 ow=56 oc=256 | kh=1 kw=1 ic=64, real 25088 256 | 64  ->  ((0, 1, 2), (3,), (6,))
    """
    groups: dict[int, tuple[int, ...]] = {}
    for reduction in (False, True):
        waiting = [i for i, loop in enumerate(loops) if (loop.iterator == "reduction") == reduction]
        for position, (extent, is_reduction) in enumerate(real):
            if is_reduction != reduction:
                continue
            taken: list[int] = []
            while waiting and (not taken or math.prod(loops[i].extent for i in taken) < extent):
                taken.append(waiting.pop(0))
            if not taken or math.prod(loops[i].extent for i in taken) != extent:
                return None
            groups[position] = tuple(taken)
        if any(loops[i].extent != 1 for i in waiting):
            return None
    return tuple(groups[position] for position in range(len(real)))

"""Loops that the compiler has folded together, and the tiles that belong to what it made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dispatch_profiler.configurations import Lowering, lowering_config_text
from dispatch_profiler.operations import Loop

#: For each real loop, the loops of the operation that it stands for.
Groups = tuple[tuple[int, ...], ...]


def fold_groups(loops: Sequence[Loop], real: Sequence[tuple[int, bool]]) -> Groups | None:
    """Which of `loops` each real loop stands for, if it is `loops` with some folded together.

    Folding keeps the order among parallel and among reduction loops; loops of extent 1 may vanish.
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


def folded_config(lowering: Lowering, groups: Groups) -> str:
    """The attribute that asks for the tiles of `lowering` on an operation with folded loops."""
    return lowering_config_text(lowering.dialect, fold_levels(lowering.levels, groups))


def fold_levels(
    levels: Sequence[tuple[str, tuple[int, ...]]], groups: Groups
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Tiles of the real loops: the product of the tiles of the loops that were folded into each."""
    return tuple(
        (level, tuple(math.prod(tiles[i] for i in group) for group in groups)) for level, tiles in levels
    )

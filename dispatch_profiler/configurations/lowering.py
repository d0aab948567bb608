"""Tiles as the compiler takes them: attributes of an operation, in MLIR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dispatch_profiler.operations import Loop

#: For each loop of a folded operation, the indices of the unfolded loops that it combines.
Groups = tuple[tuple[int, ...], ...]
#: (level, a tile for each loop) pairs.
Levels = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Lowering:
    """Tiles that a configuration requests from the compiler, by level and loop.

    The level `("distribution", (64, 128, 0))` has one tile for each of `loops`; 0 leaves a loop untiled.
    `options` are unit attributes of the pipeline, such as `enable_loop_peeling`.
    """

    #: Whether the compiler must keep the requested pipeline and launch. Otherwise it may choose another
    #: pipeline for an operation that it has folded.
    owns_translation: ClassVar[bool] = False

    dialect: str
    pipeline: str
    loops: tuple[Loop, ...]
    levels: Levels
    options: tuple[str, ...] = ()

    @property
    def root_loops(self) -> tuple[Loop, ...]:
        """Loops of the operation that carries the tiles; the tiles apply to `loops`."""
        return self.loops

    @property
    def others(self) -> tuple[str, ...]:
        """`lowering_config` of operations around the root, which must be applied too."""
        return ()

    def folded(self, groups: Groups) -> Lowering:
        """This lowering for an operation with folded loops; `loops` is then empty."""
        return replace(self, loops=(), levels=fold_levels(self.levels, groups))

    @property
    def lowering_config(self) -> str:
        """`#iree_cpu.lowering_config<distribution = [64, 128, 0], ...>`"""
        return lowering_config_text(self.dialect, self.levels)

    @property
    def translation_info(self) -> str:
        """`#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<...>[, {options}]>`"""
        options = f", {{{', '.join(self.options)}}}" if self.options else ""
        return (
            f"#iree_codegen.translation_info<pipeline = #{self.dialect}.pipeline<{self.pipeline}>{options}>"
        )

    @property
    def compilation_info(self) -> str:
        """The attribute of the operation in the generated MLIR."""
        return (
            "#iree_codegen.compilation_info<"
            f"lowering_config = {self.lowering_config}, translation_info = {self.translation_info}>"
        )


def fold_levels(levels: Levels, groups: Groups) -> Levels:
    """Tiles of the folded loops: the product of the tiles of the loops that each combines."""
    return tuple(
        (level, tuple(math.prod(tiles[i] for i in group) for group in groups)) for level, tiles in levels
    )


def lowering_config_text(dialect: str, levels: Levels) -> str:
    """The levels in the given order: `#iree_cpu.lowering_config<a = [1, 2], b = [0, 0]>`."""
    body = ", ".join(f"{level} = {listed(tiles)}" for level, tiles in levels)
    return f"#{dialect}.lowering_config<{body}>"


def listed(values: Sequence[int]) -> str:
    """`[1, 2]`, as MLIR writes a list."""
    return f"[{', '.join(map(str, values))}]"

"""Attributes that GPU configurations pass to the compiler: tiles, launch and pipeline options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dispatch_profiler.configurations.lowering import Groups, Lowering, fold_levels, listed
from dispatch_profiler.operations import Loop

#: The level that counts subgroups along each loop, which has its own syntax.
BASIS = "subgroup_basis"


@dataclass(frozen=True)
class GpuLowering(Lowering):
    """For `#iree_gpu.pipeline`: TileAndFuse and VectorDistribute.

    `attributes` are written beside the levels, `pipeline_options` in the pipeline's options. `root` has the
    operation's loops if the tiles apply to the loops of its implicit GEMM.
    """

    owns_translation: ClassVar[bool] = True

    attributes: tuple[tuple[str, str], ...] = ()
    threads: int = 1
    subgroup_size: int = 32
    pipeline_options: tuple[tuple[str, str], ...] = ()
    root: tuple[Loop, ...] = ()

    @property
    def root_loops(self) -> tuple[Loop, ...]:
        return self.root or self.loops

    def folded(self, groups: Groups) -> Lowering:
        if self.root:
            # All reductions are one loop of the GEMM, whatever was folded among them.
            parallel = tuple(g for g in groups if self.root[g[-1]].iterator == "parallel")
            groups = (*parallel, (len(self.loops) - 1,))
        return replace(self, loops=(), root=(), levels=fold_levels(self.levels, groups))

    @property
    def lowering_config(self) -> str:
        """`#iree_gpu.lowering_config<{mma_kind = ..., subgroup = [4, 8, 0], ...}>`"""
        tiles = ((name, _basis(level) if name == BASIS else listed(level)) for name, level in self.levels)
        return f"#{self.dialect}.lowering_config<{{{_assigned((*self.attributes, *tiles))}}}>"

    @property
    def translation_info(self) -> str:
        options = f"#iree_gpu.pipeline_options<{_assigned(self.pipeline_options)}>"
        return (
            f"#iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<{self.pipeline}> "
            f"workgroup_size = [{self.threads}, 1, 1] subgroup_size = {self.subgroup_size}, "
            f"{{gpu_pipeline_options = {options}}}>"
        )


@dataclass(frozen=True)
class SpirvLowering(Lowering):
    """For `#iree_gpu.spirv_pipeline`: levels by position, and threads along n and m."""

    owns_translation: ClassVar[bool] = True

    workgroup_size: tuple[int, int, int] = (1, 1, 1)

    @property
    def lowering_config(self) -> str:
        """`#iree_codegen.lowering_config<tile_sizes = [[32, 64, 0], [4, 8, 0], [0, 0, 4]]>`"""
        tiles = ", ".join(listed(level) for _, level in self.levels)
        return f"#{self.dialect}.lowering_config<tile_sizes = [{tiles}]>"

    @property
    def translation_info(self) -> str:
        return (
            f"#iree_codegen.translation_info<pipeline = #iree_gpu.spirv_pipeline<{self.pipeline}> "
            f"workgroup_size = {listed(self.workgroup_size)}>"
        )


def _basis(counts: tuple[int, ...]) -> str:
    """`[[2, 4, 1], [0, 1, 2]]`: the subgroups along each loop, and the order of the loops."""
    return f"[{listed(counts)}, {listed(range(len(counts)))}]"


def _assigned(pairs: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in pairs)

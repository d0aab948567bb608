"""A vector kernel that the generator writes, for products of few rows with weights that may change, on CPUs.

Other microkernels multiply a term of many filters at a time. They need filters side by side, and where each filter's terms
are side by side, they copy all filters first: with few rows, that takes most of the time. This kernel multiplies terms that
are side by side, in each lane those with the same remainder, and adds up the lanes of a sum at the end. It reads each
filter once, as it is stored, and nothing else of its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    WrittenKernel,
    backend_invalid_reason,
    by,
    check_choice,
    convert_tiles,
)
from dispatch_profiler.configurations.cpu.microkernel import registers_reason, vector_lanes
from dispatch_profiler.configurations.cpu.plans.dot import FILTERS, DotPlan, dot_plan, shape_reason
from dispatch_profiler.configurations.cpu.plans.fours import i8_reason
from dispatch_profiler.configurations.cpu.plans.microkernel import AVX2_LANES, LANES
from dispatch_profiler.configurations.space import Axis, Space, tile_axes, tiles_of
from dispatch_profiler.configurations.splits import SlicedSums
from dispatch_profiler.operations import ErrorBound, Operation

#: Rows of a register tile at most.
ROWS = 6


@dataclass(frozen=True)
class DotMicrokernel(WrittenKernel):
    """Tiles in elements: `DotMicrokernel((8, 96), (4, 4))`.

    distribution  rows and filters that a workgroup computes
    registers     rows, and filters, whose sums stay in registers: a vector of terms for each
    lanes         elements of a vector: 16, or 8 for CPUs without AVX-512
    """

    kind: ClassVar[str] = "dot_microkernel"
    yaml_key: ClassVar[str] = "dot_microkernel"
    yaml_field: ClassVar[str] = "registers"
    template: ClassVar[str] = "dot_microkernel.mlir.j2"
    kernel_suffix: ClassVar[str] = "_dot"

    distribution: tuple[int, int]
    registers: tuple[int, int]
    lanes: int = LANES

    def __post_init__(self) -> None:
        check_choice("lanes", self.lanes, (LANES, AVX2_LANES))
        convert_tiles(self, "a dot microkernel", distribution=2, registers=2)

    @property
    def name(self) -> str:
        """`tile_config_dot_microkernel_8x96_4x4[_lanes8]`"""
        lanes = f"_lanes{self.lanes}" if self.lanes != LANES else ""
        return f"tile_config_dot_microkernel_{by(self.distribution)}_{by(self.registers)}{lanes}"

    def plan(self, operation: Operation) -> DotPlan:
        """The loops and shuffles that the template writes."""
        return dot_plan(operation, self.distribution, self.registers, self.lanes)

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        plan = self.plan(operation)
        return None if plan.is_i8 else SlicedSums(plan.longest_chain)

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        reason = backend_invalid_reason("dot microkernels are", "llvm-cpu", limits)
        reason = reason or shape_reason(operation) or i8_reason(operation, limits)
        if reason:
            return reason
        plan = self.plan(operation)
        return plan.invalid_reason() or self._registers_reason(plan)

    def _registers_reason(self, plan: DotPlan) -> str | None:
        if self.registers[1] not in FILTERS or self.registers[1] > self.lanes:
            known = ", ".join(str(each) for each in FILTERS if each <= self.lanes)
            return f"a register tile has {self.registers[1]} filters, but must have one of {known}"
        return registers_reason(self.registers, registers_needed(plan), self.lanes)

    # -- the search space ---------------------------------------------------------------------

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        if limits.backend != "llvm-cpu" or shape_reason(operation) or i8_reason(operation, limits):
            return None
        lanes = vector_lanes(limits)
        whole = dot_plan(operation, (1, FILTERS[0]), (1, FILTERS[0]), lanes)
        distribution = {
            "rows": tiles_of(whole.rows, whole.rows),
            "filters": tiles_of(whole.filters, whole.filters),
        }
        registers = {
            "rows": tuple(range(1, min(ROWS, whole.rows) + 1)),
            "filters": tuple(each for each in FILTERS if each <= min(lanes, whole.filters)),
        }
        return Space(
            cls,
            (
                *tile_axes("distribution", distribution),
                *tile_axes("registers", registers),
                *((Axis("lanes", (lanes,)),) if lanes != LANES else ()),
            ),
        )


def registers_needed(plan: DotPlan) -> int:
    """Vector registers of a tile: its sums, the terms of its rows or of its filters, one more, and of i8, two constants."""
    return plan.vectors_of_sums + min(plan.registers) + 1 + (2 if plan.is_i8 else 0)

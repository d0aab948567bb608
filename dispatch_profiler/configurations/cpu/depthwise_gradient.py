"""A vector kernel that the generator writes, for the gradient of depthwise filters on CPUs.

The sums are as few as the filters, and each adds up the products of all pixels. So the vectors of a row of taps stay in
registers while the pixels of a strip of rows pass by; each pixel is loaded once for all taps of a row that read it.
Workgroups share the strips as well as the channels, and another dispatch adds up their partial sums.
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
from dispatch_profiler.configurations.cpu.plans.depthwise_gradient import (
    DepthwiseGradientPlan,
    depthwise_gradient_plan,
    shape_reason,
)
from dispatch_profiler.configurations.cpu.plans.microkernel import AVX2_LANES, LANES
from dispatch_profiler.configurations.space import Axis, Space, tile_axes, tiles_of
from dispatch_profiler.configurations.splits import SlicedSums
from dispatch_profiler.operations import ErrorBound, Operation

#: Pixels of a tile, and vectors of a block, that a search tries at most.
_PIXELS, _VECTORS = 8, 4


@dataclass(frozen=True)
class DepthwiseGradient(WrittenKernel):
    """Tiles in elements: `DepthwiseGradient((16, 64), (1, 4, 32))`.

    distribution  strips of rows, and channels, of a workgroup
    registers     rows of a strip; pixels of a row, and channels (a block), that are multiplied at a time
    lanes         elements of a vector: 16, or 8 for CPUs without AVX-512
    """

    kind: ClassVar[str] = "depthwise_gradient"
    yaml_key: ClassVar[str] = "depthwise_gradient"
    yaml_field: ClassVar[str] = "registers"
    template: ClassVar[str] = "depthwise_gradient.mlir.j2"
    kernel_suffix: ClassVar[str] = "_depthwise_gradient"

    distribution: tuple[int, int]
    registers: tuple[int, int, int]
    lanes: int = LANES

    def __post_init__(self) -> None:
        check_choice("lanes", self.lanes, (LANES, AVX2_LANES))
        convert_tiles(self, "a depthwise gradient", distribution=2, registers=3)

    @property
    def name(self) -> str:
        """`tile_config_depthwise_gradient_16x64_1x4x32[_lanes8]`"""
        lanes = f"_lanes{self.lanes}" if self.lanes != LANES else ""
        return f"tile_config_depthwise_gradient_{by(self.distribution)}_{by(self.registers)}{lanes}"

    def plan(self, operation: Operation) -> DepthwiseGradientPlan:
        """The loops and addresses that the template writes."""
        return depthwise_gradient_plan(operation, self.distribution, self.registers, self.lanes)

    def error_bound(self, operation: Operation) -> ErrorBound:
        return SlicedSums(self.plan(operation).longest_chain)

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        reason = backend_invalid_reason("depthwise gradients are", "llvm-cpu", limits)
        reason = reason or shape_reason(operation)
        if reason:
            return reason
        plan = self.plan(operation)
        return plan.invalid_reason() or self._registers_reason(plan)

    def _registers_reason(self, plan: DepthwiseGradientPlan) -> str | None:
        return registers_reason(self.registers, registers_needed(plan), self.lanes)

    # -- the search space ---------------------------------------------------------------------

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        if limits.backend != "llvm-cpu" or shape_reason(operation):
            return None
        lanes = vector_lanes(limits)
        whole = depthwise_gradient_plan(operation, (1, lanes), (1, 1, lanes), lanes)
        vectors = whole.padded_channels // lanes
        shares = {-(-vectors // parts) * lanes for parts in range(1, vectors + 1)}
        return Space(
            cls,
            (
                *tile_axes(
                    "distribution",
                    {"strips": tiles_of(whole.strips, whole.strips), "channels": tuple(sorted(shares))},
                ),
                *tile_axes(
                    "registers",
                    {
                        "rows": tiles_of(whole.rows, whole.rows),
                        "pixels": tuple(range(1, min(whole.columns, _PIXELS) + 1)),
                        "channels": tuple(lanes * n for n in range(1, min(vectors, _VECTORS) + 1)),
                    },
                ),
                *((Axis("lanes", (lanes,)),) if lanes != LANES else ()),
            ),
        )


def registers_needed(plan: DepthwiseGradientPlan) -> int:
    """Vector registers of a tile: its sums, the output's gradient of its pixels for one vector of channels, and one pixel."""
    return plan.right.taps * plan.vectors + plan.registers[1] + 1

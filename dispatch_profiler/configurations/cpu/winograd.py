"""A vector kernel that computes a convolution by Winograd's form in one pass over the image, for f32 on CPUs.

As kernels of the compiler (`forms.winograd`), each step of the form reads and writes all tiles in memory. Here a workgroup
takes a strip of tiles through all steps, so that what lies between them stays in its cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    WrittenKernel,
    backend_invalid_reason,
    by,
    check_choice,
    check_whole,
    convert_tiles,
)
from dispatch_profiler.configurations.cpu.microkernel import (
    registers_available,
    registers_needed,
    vector_lanes,
    widest_unroll,
)
from dispatch_profiler.configurations.cpu.plans.microkernel import AVX2_LANES, LANES
from dispatch_profiler.configurations.cpu.plans.winograd import (
    WinogradPlan,
    forward_geometry,
    shape_reason,
    winograd_plan,
)
from dispatch_profiler.configurations.forms.builder import Barrier, Builder, Labeled, Step
from dispatch_profiler.configurations.forms.winograd import (
    FOUR,
    TWO,
    Transforms,
    WinogradBound,
    transformed_filters,
)
from dispatch_profiler.configurations.lowering import Lowering
from dispatch_profiler.configurations.space import Axis, Space, divisors, tile_axes
from dispatch_profiler.operations import ErrorBound, Operation

#: Rows of a tile of the result -> the transforms.
TRANSFORMS = {2: TWO, 4: FOUR}
#: Workgroups that keep a few cores busy.
_WORKGROUPS = (2, 4, 8, 16)
#: Of the search space: vectors of a register tile, parts of the tiles, and tiles of a strip, at most.
_VECTORS, _PARTS, _LONGEST_STRIP = 4, 64, 128


@dataclass(frozen=True)
class WinogradMicrokernel(WrittenKernel):
    """Tiles of `pixels` x `pixels` of the result: `WinogradMicrokernel(4, (98, 64), 14, (14, 32))`.

    pixels        rows, and columns, of a tile of the image: 2 or 4
    distribution  tiles and filters that a workgroup computes
    strip         tiles that it takes through all steps at a time
    registers     tiles and filters whose sums stay in registers
    lanes         elements of a vector: 16, or 8 for CPUs without AVX-512
    """

    kind: ClassVar[str] = "winograd_microkernel"
    yaml_key: ClassVar[str] = "winograd"
    yaml_field: ClassVar[str] = "pixels"
    template: ClassVar[str] = "winograd.mlir.j2"
    kernel_suffix: ClassVar[str] = "_winograd"

    pixels: int
    distribution: tuple[int, int]
    strip: int
    registers: tuple[int, int]
    lanes: int = LANES

    def __post_init__(self) -> None:
        check_choice("pixels", self.pixels, tuple(TRANSFORMS))
        check_choice("lanes", self.lanes, (LANES, AVX2_LANES))
        convert_tiles(self, "a Winograd microkernel", distribution=2, registers=2)
        check_whole("strip", self.strip)

    @property
    def name(self) -> str:
        """`tile_config_packed_winograd4_98x64_14_14x32[_lanes8]`"""
        lanes = f"_lanes{self.lanes}" if self.lanes != LANES else ""
        tiles = f"{by(self.distribution)}_{self.strip}_{by(self.registers)}"
        return f"tile_config_packed_winograd{self.pixels}_{tiles}{lanes}"

    @property
    def transforms(self) -> Transforms:
        return TRANSFORMS[self.pixels]

    def plan(self, operation: Operation) -> WinogradPlan:
        """The loops and addresses that the template writes."""
        unroll = widest_unroll(forward_geometry(operation).channels, 4)
        return winograd_plan(
            operation, self.transforms, self.distribution, self.strip, self.registers, unroll, self.lanes
        )

    def error_bound(self, operation: Operation) -> ErrorBound:
        return WinogradBound(self.transforms)

    def flops(self, operation: Operation) -> int:
        plan = self.plan(operation)
        return min(operation.flops, 2 * plan.products * plan.tiles * plan.terms * plan.filters)

    # -- packing ------------------------------------------------------------------------------

    @property
    def packs_weight(self) -> bool:
        return True

    def packing(self, operation: Operation) -> tuple[Step, ...]:
        """Transformed filters as panels: products x blocks of filters x terms x filters of a block."""
        plan, geometry, builder = self.plan(operation), forward_geometry(operation), Builder()
        names = {axis: f"k{axis}" for axis in geometry.spatial_letters}
        filters = Labeled(operation.operands[1], tuple(geometry.filter_layout)).renamed(names)
        is_reversed = geometry is not operation.convolution
        filters = transformed_filters(
            builder, filters, self.transforms.filter_matrix(is_reversed=is_reversed)
        )
        planes = ("kd",) if "kd" in filters.axes else ()
        merged = builder.merge(filters, {"g": ("x", "y"), "c": (*planes, "c"), "f": ("f",)})
        padded = builder.pad(merged, {"f": (0, plan.blocks * plan.block - plan.filters)})
        divided = builder.split(padded, "f", {"p": plan.blocks, "f": plan.block})
        panels = builder.arrange("panels", divided, ("g", "p", "c", "f")).tensor
        return (*builder.steps, Barrier(replace(panels, name="packed"), panels, packs=True))

    # -- rules --------------------------------------------------------------------------------

    def tiling(self, operation: Operation) -> Lowering:
        """Its workgroup and register tiles as compiler tiles, so that models of compiler tiles apply."""
        plan = self.plan(operation)
        area = plan.pixels**2
        of_loops = {
            "oh": (self.distribution[0] * area, self.registers[0] * area, 0),
            "ow": (1, 1, 0),
            "oc": (self.distribution[1], self.registers[1], 0),
            "ic": (0, 0, plan.unroll),
        }
        each = (of_loops.get(loop.name, (0, 0, 1)) for loop in operation.loops)
        names = ("distribution", "vector_common_parallel", "vector_reduction")
        levels = tuple(zip(names, zip(*each, strict=True), strict=True))
        return Lowering("iree_cpu", "Default", operation.loops, levels)

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        reason = backend_invalid_reason("Winograd microkernels are", "llvm-cpu", limits) or shape_reason(
            operation
        )
        return reason or self.plan(operation).invalid_reason() or self._registers_reason()

    def _registers_reason(self) -> str | None:
        needed = registers_needed(self.registers[0], 1, self.registers[1], self.lanes)
        available = registers_available(self.lanes)
        if needed > available:
            return f"{by(self.registers)} needs {needed} vector registers, but {available} are available"
        return None

    # -- suggestions and the search space -----------------------------------------------------

    @classmethod
    def likely(
        cls, operation: Operation, limits: Limits, *, packed_weights: bool = False
    ) -> tuple[WinogradMicrokernel, ...]:
        if limits.backend != "llvm-cpu" or not packed_weights or shape_reason(operation):
            return ()
        lanes = vector_lanes(limits)
        suggested = []
        for pixels in (4, 2):
            tiles = cls(pixels, (1, lanes), 1, (1, lanes), lanes).plan(operation).tiles
            for block in (2 * lanes, 4 * lanes):
                filters = -(-operation.results[0].shape[-1] // block) * block
                height = registers_available(lanes) * lanes // block - 2
                for workgroups in _WORKGROUPS:
                    share = -(-tiles // workgroups)
                    strip = min(share, 2 * height)
                    suggested.append(cls(pixels, (share, filters), strip, (min(height, strip), block), lanes))
        return tuple(each for each in suggested if each.invalid_reason(operation, limits) is None)

    @classmethod
    def packed_spaces(cls, operation: Operation, limits: Limits) -> Iterator[Space[Configuration]]:
        """One for each size of tiles, which have different numbers of them."""
        if limits.backend == "llvm-cpu" and not shape_reason(operation):
            for pixels in TRANSFORMS:
                yield cls._space(pixels, operation, vector_lanes(limits))

    @classmethod
    def _space(cls, pixels: int, operation: Operation, lanes: int) -> Space[Configuration]:
        whole = cls(pixels, (1, lanes), 1, (1, lanes), lanes).plan(operation)
        blocks = tuple(lanes * n for n in range(1, _VECTORS + 1))
        tiles = {-(-whole.tiles // parts) for parts in range(1, _PARTS + 1)}
        filters = {block * n for block in blocks for n in divisors(-(-whole.filters // block), whole.filters)}
        heights = tuple(range(1, min(registers_available(lanes) - 2, whole.tiles) + 1))
        return Space(
            cls,
            (
                Axis("pixels", (pixels,)),
                *tile_axes(
                    "distribution", {"tiles": tuple(sorted(tiles)), "filters": tuple(sorted(filters))}
                ),
                Axis("strip", tuple(range(1, min(whole.tiles, _LONGEST_STRIP) + 1))),
                *tile_axes("registers", {"tiles": heights, "filters": blocks}),
                *((Axis("lanes", (lanes,)),) if lanes != LANES else ()),
            ),
        )

"""A kernel of AMX instructions that the generator writes, for products and convolutions of bf16 and i8 on CPUs.

IREE 3.13 has no AMX. One instruction of AMX multiplies 16 x 32 by 32 x 16 elements of bf16, or twice as many terms of
i8. The filters are packed into the tiles that it reads, once when they are loaded if they are constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    WrittenKernel,
    backend_invalid_reason,
    by,
    check_flag,
    convert_tiles,
)
from dispatch_profiler.configurations.cpu.plans.amx import SIDE, AmxPlan, amx_plan, shape_reason
from dispatch_profiler.configurations.forms.builder import Barrier, Builder, Labeled, Step
from dispatch_profiler.configurations.lowering import Lowering
from dispatch_profiler.configurations.space import Axis, Space, tile_axes
from dispatch_profiler.operations import Operation, Tensor

#: Register blocks that the eight tiles of AMX suffice for: the sums, the pixels, and the filters.
REGISTERS = ((32, 32), (16, 48), (48, 16), (16, 32), (32, 16), (16, 16))


class Prepared(NamedTuple):
    """The operands as the kernel reads them: steps that pad the images, and steps that pack the filters."""

    steps: tuple[Step, ...]
    image: Tensor
    packing: tuple[Step, ...]
    panels: Tensor


@dataclass(frozen=True)
class AmxMicrokernel(WrittenKernel):
    """Tiles in elements: `AmxMicrokernel((64, 128), (32, 32))`.

    distribution  pixels and filters that a workgroup computes; of a product, its rows and columns
    registers     pixels and filters whose sums stay in the tile registers of AMX: multiples of 16
    packed        the filters are packed at load time: they must be constants
    """

    kind: ClassVar[str] = "amx_microkernel"
    yaml_key: ClassVar[str] = "amx"
    yaml_field: ClassVar[str] = "registers"
    template: ClassVar[str] = "amx.mlir.j2"
    kernel_suffix: ClassVar[str] = "_amx"

    distribution: tuple[int, int]
    registers: tuple[int, int] = REGISTERS[0]
    packed: bool = False

    def __post_init__(self) -> None:
        convert_tiles(self, "an AMX microkernel", distribution=2, registers=2)
        check_flag("packed", self.packed)

    @property
    def name(self) -> str:
        """`tile_config_[packed_]amx_64x128_32x32`"""
        label = "packed_amx" if self.packed else "amx"
        return f"tile_config_{label}_{by(self.distribution)}_{by(self.registers)}"

    def plan(self, operation: Operation) -> AmxPlan:
        """The loops and addresses that the template writes."""
        return amx_plan(operation, self.distribution, self.registers)

    # -- operands -----------------------------------------------------------------------------

    def prepared(self, operation: Operation) -> Prepared:
        """The operands that the kernel reads, and the steps that make them."""
        plan, builder = self.plan(operation), Builder()
        image = operation.operands[0]
        if plan.padding:
            axes = ("n", *map(str, range(len(plan.padding))), "c")
            amounts = dict(zip(axes[1:-1], plan.padding, strict=True))
            image = builder.pad(Labeled(image, axes), amounts).tensor
        steps = tuple(builder.steps)
        panels = _packed_into_tiles(builder, operation, plan)
        stored = Barrier(replace(panels, name="packed"), panels, packs=self.packed)
        return Prepared(steps, image, (*builder.steps[len(steps) :], stored), stored.result)

    @property
    def packs_weight(self) -> bool:
        return self.packed

    def with_packed_weight(self, operation: Operation) -> AmxMicrokernel | None:
        return None if self.packed else replace(self, packed=True)

    def packing(self, operation: Operation) -> tuple[Step, ...]:
        return self.prepared(operation).packing if self.packed else ()

    # -- rules --------------------------------------------------------------------------------

    def tiling(self, operation: Operation) -> Lowering:
        """Its workgroup and register tiles as compiler tiles, so that models of compiler tiles apply."""
        plan = self.plan(operation)
        (rows, filters), (pixels, block) = self.distribution, self.registers
        others = len(operation.loops) - 2
        is_product = operation.convolution is None
        outer, inner = (
            ((rows, filters), (pixels, block)) if is_product else ((1, rows, filters), (1, pixels, block))
        )
        levels = (
            ("distribution", (*outer, *(0 for _ in operation.loops[len(outer) :]))),
            ("vector_common_parallel", (*inner, *(0 for _ in operation.loops[len(inner) :]))),
            ("vector_reduction", (*(0 for _ in range(others + 1)), plan.step)),
        )
        return Lowering("iree_cpu", "Default", operation.loops, levels)

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        reason = backend_invalid_reason("AMX microkernels are", "llvm-cpu", limits) or shape_reason(operation)
        if reason:
            return reason
        type_ = operation.as_contraction().types.inputs
        if type_ not in limits.amx_types:
            return f"the target has no instructions of AMX for {type_}"
        return self.plan(operation).invalid_reason()

    # -- suggestions and the search space -----------------------------------------------------

    @classmethod
    def likely(
        cls, operation: Operation, limits: Limits, *, packed_weights: bool = False
    ) -> tuple[AmxMicrokernel, ...]:
        if limits.backend != "llvm-cpu" or shape_reason(operation):
            return ()
        candidates = (
            cls((rows, filters), registers, packed_weights)
            for registers in REGISTERS[:2]
            for rows, filters in ((64, 4 * registers[1]), (128, 8 * registers[1]))
            if rows % registers[0] == 0
        )
        return tuple(each for each in candidates if each.invalid_reason(operation, limits) is None)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        return _space(cls, operation, limits, packed=False)

    @classmethod
    def packed_space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        return _space(cls, operation, limits, packed=True)


def _space(
    kind: type[AmxMicrokernel], operation: Operation, limits: Limits, *, packed: bool
) -> Space[Configuration] | None:
    """The search space; None if AMX does not compute `operation` on the target."""
    if limits.backend != "llvm-cpu" or shape_reason(operation):
        return None
    if operation.as_contraction().types.inputs not in limits.amx_types:
        return None
    plan = amx_plan(operation, (SIDE, SIDE), (SIDE, SIDE))
    tile: dict[str, tuple[int, ...]] = {"pixels": (16, 32, 48), "filters": (16, 32, 48)}
    workgroup = {
        "pixels": _multiples(plan.lines.all_tiles),
        "filters": _multiples(plan.blocks),
    }
    return Space(
        kind,
        (
            *tile_axes("distribution", workgroup),
            *tile_axes("registers", tile),
            *((Axis("packed", (True,)),) if packed else ()),
        ),
    )


def _multiples(tiles: int) -> tuple[int, ...]:
    """Elements of 1, 2, 3, 4, 6, 8, 12, ... tiles, up to the first number that has all `tiles`."""
    powers = [2**exponent for exponent in range(tiles.bit_length() + 1)]
    counts = sorted({*powers, *(3 * power for power in powers)})
    return tuple(SIDE * each for each, before in zip(counts, (0, *counts), strict=False) if before < tiles)


def _packed_into_tiles(builder: Builder, operation: Operation, plan: AmxPlan) -> Tensor:
    """The filters in tiles, block by block, in the order in which the kernel reads them.

    64 x 3 x 3 x 64 (fhwc), blocks of 32 -> 2 x 18 x 2 x 16 x 16 x 2: blocks, instructions, tiles of a block, groups of
    terms, filters, terms of a group
    """
    convolution, product = operation.convolution, operation.product
    if convolution is not None:
        axes, terms = tuple(convolution.filter_layout), (*convolution.spatial_letters, "c")
    else:
        assert product is not None
        axes, terms = tuple("fk" if product.rhs_layout == "n" else "kf"), ("k",)
    order = ("f", *terms) if axes[0] == "f" else (*terms, "f")
    value = builder.arrange("arranged", Labeled(operation.operands[1], axes), order)
    value = builder.merge(
        value, {each: ("f",) if each == "f" else terms for each in ("fk" if axes[0] == "f" else "kf")}
    )
    value = builder.pad(value, {"f": (0, plan.blocks * plan.registers[1] - plan.filters)})
    value = builder.split(value, "f", {"p": plan.blocks, "v": plan.tiles[1], "f": SIDE})
    value = builder.split(value, "k", {"i": plan.instructions, "g": plan.step // plan.group, "q": plan.group})
    return builder.gather("panels", value, {axis: value.extents[axis] for axis in "pivgfq"}).tensor

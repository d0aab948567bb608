"""A vector kernel that the generator writes, for products with weights of 4-bit numbers on CPUs (see `kernels/int4.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    backend_invalid_reason,
    by,
    check_flag,
    check_whole,
)
from dispatch_profiler.configurations.cpu.kernels.int4 import Int4Kernel, Int4Plan
from dispatch_profiler.configurations.cpu.kernels.int4_integers import RELATIVE_ERROR, Int4IntegersKernel
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.configurations.cpu.microkernel import registers_reason, vector_lanes
from dispatch_profiler.configurations.space import Axis, Space, tiles_of
from dispatch_profiler.configurations.splits import SlicedSums
from dispatch_profiler.operations import ErrorBound, GroupedIntegers, Operation

#: Rows of a register tile at most: of terms that are unpacked in registers, and in memory.
MOST_UNPACKED_ROWS, MOST_ROWS = 5, 6
#: Terms of a block at most.
_MOST_TERMS = 512
#: Terms of a group at most whose products with bytes are added in i32.
_MOST_EXACT = 256
#: MiB of the scratch memory of all workgroups.
MOST_SCRATCH = 256


@dataclass(frozen=True)
class Int4Microkernel(Configuration):
    """`Int4Microkernel(1, 4)`, `Int4Microkernel(4, 4, integers=True)`, or `Int4Microkernel(6, 4, 128, 96)`.

    rows   of a register tile
    share  panels, of 64 columns, of a workgroup
    block  terms that are unpacked into memory at a time, for many rows; 0: a term is unpacked in registers
    part   rows of a workgroup; 0: all
    integers  whether elements of rows are multiplied as whole numbers of 16 bits, which is for bf16 and f16 only: see
              `kernels/int4_integers.py`
    """

    kind: ClassVar[str] = "int4_microkernel"
    yaml_key: ClassVar[str] = "int4_microkernel"
    yaml_field: ClassVar[str] = "rows"
    template: ClassVar[str] = "written.mlir.j2"
    kernel_suffix: ClassVar[str] = "_kernel"
    can_be_inner: ClassVar[bool] = False
    provider: ClassVar[str] = "Microkernel"
    field_names: ClassVar[tuple[str, ...]] = ("distribution_tile", "vector_tile")
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    rows: int
    share: int
    block: int = 0
    part: int = 0
    integers: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "share", "block", "part"):
            check_whole(name, getattr(self, name), 0 if name in ("block", "part") else 1)
        check_flag("integers", self.integers)

    @property
    def name(self) -> str:
        """`tile_config_int4_microkernel_6x4[_block128][_part96][_integers]`"""
        block = f"_block{self.block}" if self.block else ""
        part = f"_part{self.part}" if self.part else ""
        integers = "_integers" if self.integers else ""
        return f"tile_config_int4_microkernel_{self.rows}x{self.share}{block}{part}{integers}"

    def fields(self) -> dict[str, str]:
        tiles = (self.part, self.share), (self.rows, self.block)
        return dict(zip(self.field_names, map(by, tiles), strict=True))

    def plan(self, operation: Operation) -> Int4Plan:
        """How the kernel computes `operation`, which is a product with a weight of 4-bit numbers."""
        product = operation.int4_product
        assert product is not None
        return Int4Plan(
            product=product,
            rows=min(self.rows, product.m),
            share=self.share,
            block=self.block,
            part=min(self.part or product.m, product.m),
            widens=bool(self.block) and operation.element_type.name != "f32",
            integers=self.integers,
        )

    def kernel_text(self, operation: Operation, function: str) -> str:
        """MLIR text with the kernel and the function `function`, which launches it."""
        writer = Int4IntegersKernel if self.integers else Int4Kernel
        return writer(function, operation.operands, operation.results, self.plan(operation)).finished()

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        chain = self.plan(operation).longest_chain
        return GroupedIntegers(chain, RELATIVE_ERROR) if self.integers else SlicedSums(chain)

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        if reason := shape_reason(operation, limits):
            return reason
        if self.integers and (reason := self._integers_reason(operation, limits)):
            return reason
        plan = self.plan(operation)
        product = plan.product
        most = MOST_ROWS if self.block else MOST_UNPACKED_ROWS
        if self.rows > min(most, product.m):
            return f"a register tile has at most {min(most, product.m)} rows, but this one has {self.rows}"
        if self.share > product.panels:
            return f"a workgroup has {self.share} panels, but there are {product.panels}"
        if self.block % product.group or not self.block <= min(_MOST_TERMS, product.k):
            return f"a block of {self.block} terms is not a multiple of {product.group} up to {min(_MOST_TERMS, product.k)}"
        if self.part % self.rows or self.part > product.m:
            return f"{self.part} rows of a workgroup are not a multiple of {self.rows} up to {product.m}"
        scratch = 4 * plan.scratch * plan.workgroups[0] * plan.workgroups[1] / 2**20
        if scratch > MOST_SCRATCH:
            return f"scratch memory takes {scratch:.0f} MiB, but at most {MOST_SCRATCH} are allowed"
        needed = (plan.rows + 1) * plan.vectors + plan.rows + 1
        return registers_reason((self.rows, product.panel), needed, LANES) if not self.block else None

    def _integers_reason(self, operation: Operation, limits: Limits) -> str | None:
        if self.block:
            return "terms that are multiplied as whole numbers are unpacked in registers, not in blocks"
        return integers_reason(operation, limits)

    # -- the search space ---------------------------------------------------------------------

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        if shape_reason(operation, limits):
            return None
        product = operation.int4_product
        assert product is not None
        blocks = (
            0,
            *(each for each in (64, 128, 256, 512) if each % product.group == 0 and each <= product.k),
        )
        parts = (0, *(each for each in (48, 96, 192) if each < product.m))
        return Space(
            cls,
            (
                Axis("rows", tuple(range(1, min(MOST_ROWS, product.m) + 1))),
                Axis("share", tiles_of(product.panels, product.panels)),
                *((Axis("block", blocks),) if len(blocks) > 1 else ()),
                *((Axis("part", parts),) if len(parts) > 1 else ()),
                *((Axis("integers", (False, True)),) if integers_reason(operation, limits) is None else ()),
            ),
        )


def integers_reason(operation: Operation, limits: Limits) -> str | None:
    """Why elements of rows cannot be multiplied as whole numbers; None if they can."""
    product = operation.int4_product
    if product is None or operation.element_type.name == "f32":
        return "whole numbers of 16 bits are too short for the precision of f32"
    if not limits.multiplies_i8:
        return "the target has no instructions of AVX-512-VNNI, which multiply whole numbers"
    if product.group > _MOST_EXACT:
        return f"sums of at most {_MOST_EXACT} whole numbers are exact, but a group has {product.group}"
    return None


def shape_reason(operation: Operation, limits: Limits) -> str | None:
    """Why no such kernel computes `operation` on a target with `limits`; None if one may."""
    what = "4-bit microkernels"
    if reason := backend_invalid_reason(f"{what} are", "llvm-cpu", limits):
        return reason
    product = operation.int4_product
    if product is None:
        return f"{what} are for products with weights of 4-bit numbers, not for {operation.kind}"
    if vector_lanes(limits) != LANES:
        return f"{what} have vectors of {LANES} elements, which this CPU lacks"
    if product.group % LANES:
        return f"{what} need groups of a multiple of {LANES} terms, but got {product.group}"
    return None

"""GPU tile configurations that use matrix instructions (tensor cores, matrix cores)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    GpuLimits,
    Limits,
    by,
    check_choice,
    check_tiles,
    contraction_invalid_reason,
)
from dispatch_profiler.configurations.gpu.gpu_tiles import (
    BASIS,
    GPU_BACKENDS,
    ORDERS,
    GpuLowering,
    GpuTiles,
    form_axis,
    nearest_divisor,
    reduction_of,
    rounded_up,
    workgroup_axes,
)
from dispatch_profiler.configurations.gpu.intrinsics import (
    FAMILIES,
    INSTRUCTIONS,
    INTRINSICS,
    Intrinsic,
    core_of,
    intrinsics_for,
)
from dispatch_profiler.configurations.lowering import Levels
from dispatch_profiler.configurations.space import (
    Axis,
    Point,
    Space,
    divisors,
    powers_of_two,
    slices_of,
    tile_axes,
)
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation

_PIPELINES = ("TileAndFuse", "VectorDistribute")
#: Accumulator types; empty for the operation's.
_ACCUMULATORS = ("", "f16", "bf16")
#: Bytes that a thread loads at once.
_LOAD_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class MmaTiles(GpuTiles):
    """Tiles of a workgroup, and how its subgroups share them.

    subgroups    subgroups along each parallel axis; each computes an equal part of the workgroup's tile.
                 Empty: as many as give each 64 x 64, at least two per axis
    instruction  a family, such as `mmasync` or `mfma`; the element types select the instruction
    shape        m, n, k of the instruction if the family has several; empty: the first
    pipeline     TileAndFuse, or VectorDistribute, whose tiles must divide the problem
    accumulator  type of the sums; empty: the operation's. `f16` is faster and less accurate; results are
                 verified with the wider bound
    """

    kind: ClassVar[str] = "mma_tiles"
    yaml_key: ClassVar[str] = "instruction"

    subgroups: tuple[int, ...] = ()
    instruction: str = "mmasync"
    shape: tuple[int, ...] = ()
    subgroup_size: int = 0
    accumulator: str = ""

    def __post_init__(self) -> None:
        check_choice("instruction", self.instruction, INSTRUCTIONS)
        usual_size = 64 if self.instruction == "mfma" else 32
        object.__setattr__(self, "subgroup_size", self.subgroup_size or usual_size)
        self._check(_PIPELINES)
        subgroups = check_tiles("subgroups", self.subgroups) or usual_subgroups(self.workgroup)
        object.__setattr__(self, "subgroups", subgroups)
        object.__setattr__(self, "shape", check_tiles("shape", self.shape))
        if len(self.subgroups) != len(self.workgroup):
            raise ConfigurationError(
                "subgroups needs a number for each tile of workgroup, "
                f"but got {list(self.subgroups)}, {list(self.workgroup)}"
            )
        check_choice("accumulator", self.accumulator, _ACCUMULATORS)
        if len(self.shape) not in (0, 3):
            raise ConfigurationError(f"shape needs m, n and k, but got {list(self.shape)}")

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        gpu = limits.gpu
        if gpu is None or limits.backend not in GPU_BACKENDS or contraction_invalid_reason("", operation):
            return None
        if operation.convolution is not None and operation.convolution.variant == "depthwise":
            return None
        names = _instructions(operation, gpu)
        if not names:
            return None
        size = 64 if names[0].startswith("mfma") else 32
        *outer, _, _ = operation.parallel_axes
        subgroups = {
            axis: (1, 2) if axis in outer else powers_of_two(1, 8) for axis in operation.parallel_axes
        }
        axes = (
            Axis("instruction", names),
            *form_axis(operation),
            Axis("pipeline", _PIPELINES),
            Axis("stages", gpu.stages),
            Axis("shared_padding", (True, False)),
            Axis("order", ORDERS),
            Axis("split_k", slices_of(operation)),
            Axis("subgroup_size", (size,)),
            Axis("accumulator", ("",)),
            *workgroup_axes(operation, _workgroup_tiles),
            *tile_axes("subgroups", subgroups),
            Axis("k", powers_of_two(4, 256)),
        )
        return _MmaSpace(cls, axes, operation)

    @property
    def name(self) -> str:
        usual_size = 64 if self.instruction == "mfma" else 32
        return self._name(
            core_of(self.instruction),
            self.instruction,
            by(self.shape),
            "" if self.subgroups == usual_subgroups(self.workgroup) else f"s{by(self.subgroups)}",
            "vd" if self.pipeline == "VectorDistribute" else "",
            "" if self.subgroup_size == usual_size else f"w{self.subgroup_size}",
            f"sums{self.accumulator}" if self.accumulator else "",
        )

    def fields(self) -> dict[str, str]:
        return self._fields(core_of(self.instruction), self.instruction, self.subgroups)

    # -- lowering -----------------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return math.prod(self.subgroups) * self.subgroup_size

    def effective_operation(self, operation: Operation) -> Operation:
        contraction = operation.contraction
        if contraction is None or not self.accumulator or self.accumulator != operation.element_type.name:
            return operation
        return replace(contraction, types=replace(contraction.types, sums=self.accumulator))  # type: ignore[type-var]

    def intrinsic(self, operation: Operation) -> Intrinsic | None:
        """The instruction for the types of `operation`; None if the family has none of that shape."""
        for each in intrinsics_for(
            self.instruction, self.effective_operation(operation).as_contraction().types
        ):
            if self.shape in ((), each.shape):
                return each
        return None

    def lowering(self, operation: Operation) -> GpuLowering:
        # Without a matching instruction, request an instruction that the compiler rejects: the compiler's own
        # choice must never run under this name.
        intrinsic = self.intrinsic(operation) or _first(self.instruction)
        promoted = (("mma_kind", f"#iree_gpu.mma_layout<{intrinsic.name}>"), ("promote_operands", "[0, 1]"))
        levels = self._distributed(operation, intrinsic)
        return self._gpu_lowering(operation, levels, promoted, self.threads)

    def _distributed(self, operation: Operation, intrinsic: Intrinsic) -> Levels:
        tiles, counts = self._tiles(operation), self._counts(operation)
        parallel = self._level(operation, tiles, "parallel")
        reduction = self._level(operation, tiles, "reduction")
        if self.pipeline == "VectorDistribute":
            basis = tuple(counts.get(loop.name, 1) for loop in self._loops(operation))
            return (("reduction", reduction), (BASIS, basis), ("workgroup", parallel))
        unit = self._units(operation, intrinsic)
        of_intrinsics = {axis: tile // unit.get(axis, 1) for axis, tile in tiles.items()}
        of_subgroup = {axis: of_intrinsics[axis] // count for axis, count in counts.items()}
        levels: Levels = (
            ("reduction", self._level(operation, of_intrinsics, "reduction")),
            ("subgroup", self._level(operation, of_subgroup, "parallel")),
            ("workgroup", parallel),
        )
        if self._is_padded(operation):
            padding = tuple(max(tile) for tile in zip(parallel, reduction, strict=True))
            return (("padding", padding), *levels)
        return levels

    def _counts(self, operation: Operation) -> dict[str, int]:
        return dict(zip(operation.parallel_axes, self.subgroups, strict=True))

    def _units(self, operation: Operation, intrinsic: Intrinsic) -> dict[str, int]:
        """Axis -> elements per instruction: m along the second-to-last parallel axis, n along the last."""
        *_, m, n = operation.parallel_axes
        k = "k" if self.is_implicit_gemm(operation) else operation.reduction_axes[-1]
        return dict(zip((m, n, k), intrinsic.shape, strict=True))

    def _is_padded(self, operation: Operation) -> bool:
        """Whether operands are padded because a tile does not divide the problem."""
        extents = self._extents(operation)
        return any(extents.get(axis, tile) % tile for axis, tile in self._tiles(operation).items())

    # -- validity -----------------------------------------------------------------------------------

    def unsupported_reason(self, operation: Operation, limits: Limits) -> str | None:
        gpu = limits.gpu
        if gpu is None:
            return None
        types = self.effective_operation(operation).as_contraction().types
        possible = [
            each.name
            for each in INTRINSICS.values()
            if each.name in gpu.intrinsics
            and (each.input, each.accumulator) == (types.input.name, types.accumulator.name)
        ]
        intrinsic = self.intrinsic(operation)
        if intrinsic is not None and intrinsic.name in possible:
            return None
        wanted = f"{self.instruction} {by(self.shape)}".strip()
        return (
            f"IREE 3.13 has no {wanted} for {types.input.name} inputs with sums in {types.accumulator.name} "
            f"on {gpu.arch}; available: {', '.join(possible) or 'none'}"
        )

    def _violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        known = {FAMILIES[INTRINSICS[name].family] for name in gpu.intrinsics}
        if self.instruction not in known:
            yield f"{gpu.arch} has no {self.instruction}; available: {', '.join(sorted(known)) or 'none'}"
        if (
            self.accumulator
            and (operation.element_type.name, operation.results[0].type.name) != (self.accumulator,) * 2
        ):
            yield (
                f"accumulator={self.accumulator} needs {self.accumulator} inputs and results, but got "
                f"{operation.element_type.name} inputs and {operation.results[0].type.name} results"
            )
        yield from self._operation_violations(operation)
        yield from self._launch_violations(self.threads, gpu)
        intrinsic = self.intrinsic(operation)
        if intrinsic is None:
            # The other rules need an instruction; `unsupported_reason` explains why there is none.
            return
        yield from self._tile_violations(operation, intrinsic)
        if self.pipeline == "VectorDistribute" or self._is_direct(operation):
            yield from self._divisibility_violations(operation)
        if self.pipeline == "VectorDistribute":
            yield from self._copy_violations(operation)
        yield from self._pipelining_violations(self.threads)
        yield from self._register_violations(self.effective_operation(operation), self.threads, gpu)
        yield from self._shared_violations(self._operand_bytes(operation), gpu)

    def _is_direct(self, operation: Operation) -> bool:
        return operation.convolution is not None and not self.is_implicit_gemm(operation)

    def _operation_violations(self, operation: Operation) -> Iterator[str]:
        if self.order != "none" and self.pipeline != "VectorDistribute":
            yield f"{self.pipeline} does not reorder workgroups, so order={self.order} has no effect"
        convolution = operation.convolution
        if convolution is None:
            return
        if convolution.variant == "depthwise":
            yield "matrix instructions do not support depthwise convolutions"
        if self.is_implicit_gemm(operation) and self.pipeline == "VectorDistribute":
            yield "VectorDistribute supports only direct convolutions: give tiles for kh, kw and ic"
        if self._is_direct(operation) and convolution.stride != (1, 1):
            yield (
                f"a direct convolution needs stride 1, but got {by(convolution.stride)}: give one tile for the "
                "reduction, which selects an implicit GEMM"
            )
        if self._is_direct(operation) and self.reduction[:-1] != (1, 1):
            yield f"a direct convolution needs tiles of 1 for kh and kw, but got {by(self.reduction[:-1])}"

    def _tile_violations(self, operation: Operation, intrinsic: Intrinsic) -> Iterator[str]:
        tiles, counts, extents = self._tiles(operation), self._counts(operation), self._extents(operation)
        units = self._units(operation, intrinsic)
        for axis, tile in tiles.items():
            unit, count = units.get(axis, 1), counts.get(axis, 1)
            if axis not in extents:
                if tile > 1:
                    yield f"this {operation.kind} has no loop {axis}, but its tile is {tile}"
                continue
            if tile % (unit * count):
                parts = f"{count} subgroups of {intrinsic.name}" if count > 1 else intrinsic.name
                yield f"tile {tile} along {axis} is not a multiple of {unit * count}, the size of {parts}"
            if tile > rounded_up(extents[axis], unit):
                yield f"tile {tile} exceeds {axis}={extents[axis]}"

    def _divisibility_violations(self, operation: Operation) -> Iterator[str]:
        for axis, extent in self._extents(operation).items():
            tile = self._tiles(operation).get(axis, 1)
            if extent % tile:
                what = "VectorDistribute" if self.pipeline == "VectorDistribute" else "a direct convolution"
                yield f"tile {tile} does not divide {axis}={extent}, and {what} does not pad"

    def _copy_violations(self, operation: Operation) -> Iterator[str]:
        """VectorDistribute copies operand tiles in equal loads, which the threads must share evenly."""
        load = _LOAD_BYTES // operation.element_type.bytes
        for role, (rows, row) in self._operand_tiles(operation).items():
            lanes = max(1, row // load)
            deep = max(1, self.threads // lanes)
            along = lanes % self.threads == 0 or self.threads % lanes == 0
            even = row % min(row, load) == 0 and along and (rows % deep == 0 or deep % rows == 0)
            share, rest = divmod(rows * row, self.threads)
            if not even and (rest or share >= load):
                yield (
                    f"{self.threads} threads cannot evenly share the {role} tile ({rows} rows of {row}) in "
                    f"loads of {counted(load, 'element')}"
                )

    def _operand_tiles(self, operation: Operation) -> dict[str, tuple[int, int]]:
        """Role -> (rows, row length) of each operand's tile in memory."""
        m, n, k = math.prod(self.workgroup[:-1]), self.workgroup[-1], self.reduction[-1]
        lhs, rhs, _ = operation.as_contraction().layouts
        return {
            "lhs": (k, m) if lhs in ("n", "nchw") else (m, k),
            "rhs": (n, k) if rhs in ("n", "fchw") else (k, n),
        }


@dataclass(frozen=True)
class _MmaSpace(Space[Configuration]):
    """Tiles of matrix instructions. `instruction` is a family, with a shape if the family has several.

    Points are rounded to valid values: tiles to multiples of the instruction's shape, subgroups to counts
    that divide the tiles evenly.
    """

    operation: Operation

    def fields(self, point: Point) -> dict[str, Any]:
        fields = super().fields(point)
        family, _, shape = fields["instruction"].partition(" ")
        fields["instruction"] = family
        fields["shape"] = tuple(map(int, shape.split("x"))) if shape else ()
        unit_m, unit_n, unit_k = (
            fields["shape"] or intrinsics_for(family, self.operation.as_contraction().types)[0].shape
        )
        extents = {loop.name: loop.extent for loop in self.operation.loops}
        axes = self.operation.parallel_axes
        units = (*(1 for _ in axes[:-2]), unit_m, unit_n)
        # In units of the instruction.
        tiles = [
            min(max(1, tile // unit), -(-extents[axis] // unit))
            for axis, tile, unit in zip(axes, fields["workgroup"], units, strict=True)
        ]
        fields["workgroup"] = tuple(tile * unit for tile, unit in zip(tiles, units, strict=True))
        fields["subgroups"] = tuple(map(nearest_divisor, tiles, fields["subgroups"]))
        form, k = fields.pop("form", ""), fields.pop("k")
        if fields["pipeline"] == "VectorDistribute":
            form = "direct"  # of a convolution: it does not gather windows
        else:
            fields["order"] = "none"
        last = extents[self.operation.reduction_axes[-1]]
        whole = last if form == "direct" else self.operation.accumulations
        k = rounded_up(min(k, whole // fields["split_k"]), unit_k)
        fields["reduction"] = reduction_of(self.operation, form, k)
        return fields


def _workgroup_tiles(extent: int) -> tuple[int, ...]:
    """Powers of two, and the other divisors of `extent` (56 = 7 * 8)."""
    return tuple(
        sorted({*powers_of_two(8, 512), *(d for d in divisors(extent, 512) if d >= 8 and d % 4 == 0)})
    )


def _instructions(operation: Operation, gpu: GpuLimits) -> tuple[str, ...]:
    """The instructions for the types of `operation`: `mmasync`, or `mfma 32x32x8` if a family has several."""
    types = (operation.element_type.name, operation.accumulator.name)
    fitting = [x for x in map(INTRINSICS.__getitem__, gpu.intrinsics) if (x.input, x.accumulator) == types]
    families = [FAMILIES[each.family] for each in fitting]
    return tuple(
        f"{family} {by(each.shape)}" if families.count(family) > 1 else family
        for family, each in zip(families, fitting, strict=True)
    )


def with_narrow_sums(space: Space[Configuration], operation: Operation) -> Space[Configuration]:
    """`space` extended by sums in the type of the inputs, which are faster and less accurate."""
    name = operation.element_type.name
    return space.with_choices("accumulator", "", name) if name in ("f16", "bf16") else space


def usual_subgroups(workgroup: tuple[int, ...]) -> tuple[int, ...]:
    """Subgroups that compute 64 x 64 each, at least two per axis, as in the IREE dispatch profiler."""
    *outer, m, n = (1, *workgroup)
    return (*outer[1:], max(2, m // 64), max(2, n // 64))


def _first(instruction: str) -> Intrinsic:
    return next(each for each in INTRINSICS.values() if FAMILIES[each.family] == instruction)

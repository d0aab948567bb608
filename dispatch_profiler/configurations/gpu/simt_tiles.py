"""GPU tile configurations that use the ordinary (SIMT) instructions of each thread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    GpuLimits,
    Limits,
    by,
    check_flag,
    check_tiles,
    contraction_invalid_reason,
)
from dispatch_profiler.configurations.gpu.gpu_tiles import (
    GPU_BACKENDS,
    GpuTiles,
    SpirvLowering,
    form_axis,
    nearest_divisor,
    reduction_of,
    workgroup_axes,
)
from dispatch_profiler.configurations.gpu.intrinsics import INTRINSICS
from dispatch_profiler.configurations.lowering import Lowering
from dispatch_profiler.configurations.space import Axis, Point, Space, divisors, powers_of_two, tile_axes
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation, element_type

_SPIRV = "BaseVectorize"
_SPIRV_BACKENDS = ("vulkan-spirv", "metal-spirv")
#: Maximum multiply-adds per thread in one step of the reduction. The compiler unrolls them; with more,
#: compiling takes minutes.
_MAX_UNROLLED = 2048


@dataclass(frozen=True, kw_only=True)
class SimtTiles(GpuTiles):
    """Tiles of a workgroup and of each of its threads.

    thread    elements of the result per thread, along each axis
    promote   copy operands to shared memory
    pipeline  TileAndFuse, or BaseVectorize for SPIR-V, which has neither shared memory nor stages
    """

    kind: ClassVar[str] = "simt_tiles"
    yaml_key: ClassVar[str] = "thread"

    thread: tuple[int, ...]
    promote: bool = True

    def __post_init__(self) -> None:
        self._check(("TileAndFuse", _SPIRV))
        object.__setattr__(self, "thread", check_tiles("thread", self.thread))
        if len(self.thread) != len(self.workgroup):
            raise ConfigurationError(
                "thread needs a tile for each tile of workgroup, "
                f"but got {list(self.thread)}, {list(self.workgroup)}"
            )
        check_flag("promote", self.promote)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        gpu = limits.gpu
        if gpu is None or contraction_invalid_reason("", operation):
            return None
        *outer, _, _ = operation.parallel_axes
        threads = {axis: (1,) if axis in outer else powers_of_two(1, 16) for axis in operation.parallel_axes}
        tiles = (
            Axis("k", divisors(operation.accumulations, 32)),
            *workgroup_axes(operation, partial(divisors, most=256)),
            *tile_axes("thread", threads),
        )
        if limits.backend in _SPIRV_BACKENDS:
            if form_axis(operation):
                return None
            return _SimtSpace(cls, (Axis("pipeline", (_SPIRV,)), Axis("stages", (1,)), *tiles), operation)
        if limits.backend not in GPU_BACKENDS:
            return None
        options = (
            *form_axis(operation),
            Axis("stages", gpu.stages),
            Axis("subgroup_size", gpu.subgroup_sizes[:1]),
            Axis("shared_padding", (True, False)),
            Axis("promote", (True, False)),
        )
        return _SimtSpace(cls, (*options, *tiles), operation)

    @property
    def name(self) -> str:
        return self._name(
            "simt",
            "ffma",
            by(self.thread),
            "" if self.promote else "unpromoted",
            "spirv" if self.pipeline == _SPIRV else "",
            "" if self.subgroup_size == 32 else f"w{self.subgroup_size}",
        )

    def fields(self) -> dict[str, str]:
        return self._fields("simt", "ffma", self.thread)

    # -- lowering -----------------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return math.prod(self._along_axes())

    def _along_axes(self) -> tuple[int, ...]:
        """Threads along each parallel axis."""
        return tuple(outer // inner for outer, inner in zip(self.workgroup, self.thread, strict=True))

    def lowering(self, operation: Operation) -> Lowering:
        tiles = self._tiles(operation)
        of_thread = dict(zip(operation.parallel_axes, self.thread, strict=True))
        reduction = ("reduction", self._level(operation, tiles, "reduction"))
        thread = ("thread", self._level(operation, of_thread, "parallel"))
        workgroup = ("workgroup", self._level(operation, tiles, "parallel"))
        if self.pipeline == _SPIRV:
            *outer, m, n = self._along_axes()
            return SpirvLowering(
                dialect="iree_codegen",
                pipeline=self.pipeline,
                loops=self._loops(operation),
                levels=(workgroup, thread, reduction),
                workgroup_size=(n, m, math.prod(outer)),
            )
        promoted = (("promote_operands", "[0, 1]" if self.promote else "[]"),)
        return self._gpu_lowering(operation, (reduction, thread, workgroup), promoted, self.threads)

    # -- validity -----------------------------------------------------------------------------------

    def _backend_reason(self, limits: Limits) -> str | None:
        if self.pipeline != _SPIRV:
            return super()._backend_reason(limits)
        if limits.backend in _SPIRV_BACKENDS:
            return None
        return f"{_SPIRV} is for {' and '.join(_SPIRV_BACKENDS)}, but the target is {limits.backend}"

    def unsupported_reason(self, operation: Operation, limits: Limits) -> str | None:
        gpu = limits.gpu
        given = next((each.type.name for each in operation.operands[:2] if each.type.is_f8), None)
        if gpu is None or self.pipeline == _SPIRV or given is None:
            return None
        # AMD GPUs that multiply f8 also convert it.
        converts = any(element_type(INTRINSICS[name].input).is_f8 for name in gpu.intrinsics)
        if converts and limits.backend != "cuda":
            return None
        return f"IREE 3.13 has no conversion from {given} on {gpu.arch}, which SIMT code needs"

    def _violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        yield from self._option_violations(operation)
        for axis, inner, outer in zip(operation.parallel_axes, self.thread, self.workgroup, strict=True):
            if outer % inner:
                yield f"workgroup tile {outer} along {axis} is not a multiple of the thread's {inner}"
        if self.pipeline == _SPIRV:
            yield from self._thread_violations(self.threads, gpu)
        else:
            yield from self._launch_violations(self.threads, gpu)
        unrolled = math.prod((*self.thread, *self.reduction))
        if unrolled > _MAX_UNROLLED:
            yield (
                f"a thread would do {unrolled} multiply-adds per step, but more than {_MAX_UNROLLED} take "
                "minutes to compile: use a smaller k or thread tile"
            )
        extents = self._extents(operation)
        for axis, tile in self._tiles(operation).items():
            if axis not in extents:
                if tile > 1:
                    yield f"this {operation.kind} has no loop {axis}, but its tile is {tile}"
            elif tile > extents[axis]:
                yield f"tile {tile} exceeds {axis}={extents[axis]}"
            elif extents[axis] % tile:
                yield f"tile {tile} does not divide {axis}={extents[axis]}"
        yield from self._register_violations(operation, self.threads, gpu)
        if self.promote and self.pipeline != _SPIRV:
            yield from self._pipelining_violations(self.threads)
            yield from self._shared_violations(self._operand_bytes(operation), gpu)

    def _operand_bytes(self, operation: Operation) -> int:
        convolution = operation.convolution
        if convolution is None or convolution.variant != "depthwise":
            return super()._operand_bytes(operation)
        # Each channel has its own pixels: the windows of all pixels of the tile, and one filter.
        tiles = self._tiles(operation)
        height, width = (
            (tiles[out] - 1) * stride + (tiles[tap] - 1) * dilation + 1
            for out, tap, stride, dilation in zip(
                ("oh", "ow"), ("kh", "kw"), convolution.stride, convolution.dilation, strict=True
            )
        )
        windows = tiles["n"] * height * width + tiles["kh"] * tiles["kw"]
        return windows * tiles["oc"] * operation.element_type.bytes

    def _option_violations(self, operation: Operation) -> Iterator[str]:
        if self.order != "none":
            yield f"{self.pipeline} does not reorder workgroups, so order={self.order} has no effect"
        if not self.promote and not self.shared_padding:
            yield "shared_padding=false has no effect without promote"
        if self.pipeline == _SPIRV and (
            not self.shared_padding or self.stages > 1 or self.subgroup_size != 32
        ):
            yield f"{_SPIRV} does not support shared_padding, stages and subgroup_size"
        if self.pipeline == _SPIRV and operation.convolution is not None:
            yield f"{_SPIRV} supports only matrix products, not {operation.kind}"


@dataclass(frozen=True)
class _SimtSpace(Space[Configuration]):
    """Tiles of threads, rounded to divisors of the workgroup's tiles."""

    operation: Operation

    def fields(self, point: Point) -> dict[str, Any]:
        fields = super().fields(point)
        fields["thread"] = tuple(map(nearest_divisor, fields["workgroup"], fields["thread"]))
        if not fields.get("promote", True):
            fields["shared_padding"] = True  # the default: shared memory is unused
        form, k = fields.pop("form", ""), fields.pop("k")
        if form == "direct":
            k = nearest_divisor(self._channels, k)
        fields["reduction"] = reduction_of(self.operation, form, k)
        return fields

    @property
    def _channels(self) -> int:
        """Extent of the last reduction axis; 1 if the operation has no such loop."""
        extents = {loop.name: loop.extent for loop in self.operation.loops}
        return extents.get(self.operation.reduction_axes[-1], 1)

"""Triton kernels of layer norms in IREE dispatches: rows and columns of a workgroup, launch and constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    GpuLimits,
    KernelSource,
    Launch,
    Limits,
    by,
    check_tiles,
    check_whole,
)
from dispatch_profiler.configurations.space import Axis, Space, powers_of_two, tile_axes
from dispatch_profiler.configurations.triton._base import TritonKernel
from dispatch_profiler.configurations.triton.limits import SCRATCH, TYPES, WARP, gpu_violations, power_of_two
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation

#: Mode of a layer norm -> operands and results that it may lack.
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "forward": ("weight", "bias"),
    "input_backward": ("weight",),
    "weight_backward": ("dbias",),
}

#: Elements of a block that a thread can hold in registers beside its sums.
_MOST_PER_THREAD = 64


@dataclass(frozen=True, kw_only=True)
class TritonRows(TritonKernel):
    """rows     rows and columns of a workgroup's block, powers of two
    warps    warps per workgroup
    stages   depth of software pipelining, in layer_norm_weight_backward

    In layer_norm and layer_norm_input_backward, a block holds whole rows. In layer_norm_weight_backward, a
    workgroup sums its columns over all rows, a block at a time.
    """

    kind: ClassVar[str] = "triton_rows"
    yaml_key: ClassVar[str] = "triton_rows"
    yaml_field: ClassVar[str] = "block"
    field_names: ClassVar[tuple[str, ...]] = ("workgroup_tile", "stages", "core", "options")
    #: The sums of a row or column are not split.
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    block: tuple[int, int]
    warps: int = 4
    stages: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", check_tiles("triton_rows", self.block))
        if len(self.block) != 2:
            raise ConfigurationError(f"triton_rows must be rows and columns, but got {list(self.block)}")
        for name in ("warps", "stages"):
            check_whole(name, getattr(self, name))

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        """Blocks of whole rows; for the gradients of weight and bias, some columns and many rows."""
        norm = operation.normalization
        if limits.gpu is None or limits.backend != "cuda" or norm is None:
            return None
        is_weight = norm.mode == "weight_backward"
        row = power_of_two(norm.size)
        tiles = {
            "rows": powers_of_two(16, 512) if is_weight else powers_of_two(1, 8),
            "columns": powers_of_two(8, 64) if is_weight else (row,),
        }
        axes = (
            *tile_axes("block", tiles),
            Axis("warps", (1, 2, 4, 8, 16)),
            Axis("stages", (1, 2, 3, 4) if is_weight else (1,)),
        )
        return Space(cls, axes)

    @property
    def name(self) -> str:
        """`triton_rows_4x1024_8w_3s`"""
        return f"triton_rows_{by(self.block)}_{self.warps}w_{self.stages}s"

    def fields(self) -> dict[str, str]:
        values = (by(self.block), str(self.stages), "triton", f"{self.warps}w")
        return dict(zip(self.field_names, values, strict=True))

    # -- launch -------------------------------------------------------------------------------------

    def launch(self, operation: Operation) -> Launch:
        norm = operation.normalization
        assert norm is not None
        extent, each = (
            (norm.size, self.block[1]) if norm.mode == "weight_backward" else (norm.rows, self.block[0])
        )
        first, *others = operation.results
        return Launch(
            entry=operation.kind,
            workgroups=(-(-extent // each), 1, 1),
            workgroup_size=(WARP * self.warps, 1, 1),
            shape=first.shape,
            type=first.type,
            scratch=SCRATCH,
            more=tuple(others),
        )

    def kernel(self, operation: Operation) -> KernelSource:
        """The kernel source with the constants of this dispatch."""
        norm = operation.normalization
        assert norm is not None
        pointers = {each.name: TYPES[each.type.name] for each in (*operation.operands, *operation.results)}
        absent = [name for name in _OPTIONAL[norm.mode] if name not in pointers]
        constants: dict[str, Any] = {
            **dict.fromkeys(absent),
            "COUNT": norm.rows,
            "SIZE": norm.size,
            **({"EPS": norm.eps} if norm.mode == "forward" else {}),
            **({"WEIGHT": norm.has_weight} if "weight" in _OPTIONAL[norm.mode] else {}),
            **({} if norm.mode == "input_backward" else {"BIAS": norm.has_bias}),
            **({"STAGES": self.stages} if norm.mode == "weight_backward" else {}),
            "ACCUMULATOR": TYPES[operation.accumulator.name],
            "ROWS": self.block[0],
            "COLUMNS": self.block[1],
        }
        return KernelSource(
            operation.kind, tuple(pointers.items()), tuple(constants.items()), self.warps, self.stages
        )

    # -- validity -------------------------------------------------------------------------------------

    def foreign_reason(self, operation: Operation) -> str | None:
        if operation.normalization is None:
            return f"triton_rows is for layer norms, not {operation.kind}"
        return None

    def violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        norm = operation.normalization
        assert norm is not None
        yield from gpu_violations(self.precision, operation, gpu)
        if operation.element_type.name not in TYPES:
            yield f"the kernels support f32, f16 and bf16, not {operation.element_type.name}"
        for what, value in (("rows", self.block[0]), ("columns", self.block[1]), ("warps", self.warps)):
            if value & (value - 1):
                yield f"{what} must be a power of two for Triton, but is {value}"
        needed = power_of_two(norm.size)
        if norm.mode != "weight_backward" and self.block[1] != needed:
            yield f"rows of {norm.size} elements need blocks of {needed} columns, but got {self.block[1]}"
        threads = self.warps * WARP
        if threads > gpu.threads:
            yield f"{self.warps} warps are {threads} threads, but {gpu.device_arch} allows {gpu.threads}"
        if self.block[0] * self.block[1] > threads * _MOST_PER_THREAD:
            yield (
                f"a block of {by(self.block)} has more than {_MOST_PER_THREAD} elements for each of {threads} "
                "threads: use a smaller block or more warps"
            )
        if norm.rows * norm.size >= 2**31:
            yield f"the kernels use 32-bit indices, but a tensor has {norm.rows * norm.size} elements"

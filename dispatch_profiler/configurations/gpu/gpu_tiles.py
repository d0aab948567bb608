"""The base class of GPU tile configurations: tiles in elements, shared memory, threads.

Tiles follow the order of `Operation.parallel_axes`, so that one configuration serves both layouts of
a convolution. `reduction` has a tile for each of `Operation.reduction_axes`; a single tile makes a
convolution an implicit GEMM with k = kh * kw * ic.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    GpuLimits,
    Limits,
    by,
    check_choice,
    check_flag,
    check_tiles,
    check_whole,
    contraction_invalid_reason,
)
from dispatch_profiler.configurations.lowering import Groups, Levels, Lowering, fold_levels, listed
from dispatch_profiler.configurations.space import Axis, divisors, tile_axes
from dispatch_profiler.configurations.splits import (
    split_invalid_reason,
    split_loops,
    split_suffix,
)
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Loop, Operation

# -- gpu lowering ----------------------------------------------------------------------------------

# Attributes that GPU configurations pass to the compiler: tiles, launch and pipeline options.


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


#: Backends whose code goes through `#iree_gpu.pipeline`.
GPU_BACKENDS = ("cuda", "rocm")
#: With this many stages or more, loads are issued two steps ahead.
_EARLY_COPIES = 3
#: Orders in which workgroups are numbered over the result.
ORDERS = ("none", "transpose")


@dataclass(frozen=True, kw_only=True)
class GpuTiles(Configuration):
    """workgroup       elements of the result per workgroup, along each axis
    reduction       elements of the reduction that are in shared memory at a time
    stages          depth of software pipelining (the compiler's `prefetch_num_stages`)
    shared_padding  pad rows in shared memory to avoid bank conflicts
    order           `transpose` numbers workgroups along m first
    split_k         slices of the reduction, for matmul
    """

    field_names: ClassVar[tuple[str, ...]] = (
        "workgroup_tile", "k_tile", "stages", "core", "instruction", "pipeline", "inner_tile", "options",
    )  # fmt: skip

    workgroup: tuple[int, ...]
    reduction: tuple[int, ...]
    stages: int = 2
    subgroup_size: int = 32
    shared_padding: bool = True
    order: str = "none"
    pipeline: str = "TileAndFuse"
    split_k: int = 1

    def _check(self, pipelines: tuple[str, ...]) -> None:
        for field in ("workgroup", "reduction"):
            object.__setattr__(self, field, check_tiles(field, getattr(self, field)))
        if not self.workgroup or not self.reduction:
            raise ConfigurationError(
                "workgroup and reduction need at least one tile each, "
                f"but got {list(self.workgroup)}, {list(self.reduction)}"
            )
        check_whole("stages", self.stages)
        check_choice("subgroup_size", self.subgroup_size, (32, 64))
        check_choice("order", self.order, ORDERS)
        check_choice("pipeline", self.pipeline, pipelines)
        check_flag("shared_padding", self.shared_padding)
        check_whole("split_k", self.split_k)

    # -- names ----------------------------------------------------------------------------------

    def _name(self, core: str, instruction: str, *more: str) -> str:
        """`tile_config_128x128_32x5_tensorcore_mmasync`, then the options that differ from the default."""
        tiles = f"{by(self.workgroup)}_{by(self.reduction)}x{self.stages}"
        parts = ["tile_config", tiles, core, instruction, *more, *self._options()]
        return "_".join(filter(None, parts)) + split_suffix(self.split_k)

    def _options(self) -> list[str]:
        unpadded = [] if self.shared_padding else ["unpadded"]
        return unpadded + ([] if self.order == "none" else [self.order])

    def _fields(self, core: str, instruction: str, inner: tuple[int, ...]) -> dict[str, str]:
        values = (
            by(self.workgroup), by(self.reduction), str(self.stages), core, instruction,
            self.pipeline, by(inner), " ".join([f"wave{self.subgroup_size}", *self._options()]),
        )  # fmt: skip
        return dict(zip(self.field_names, values, strict=True))

    # -- loops ------------------------------------------------------------------------------------

    def is_implicit_gemm(self, operation: Operation) -> bool:
        """Whether `operation` is a convolution that is computed as a product of gathered windows."""
        return operation.convolution is not None and len(self.reduction) == 1

    def _loops(self, operation: Operation) -> tuple[Loop, ...]:
        """The loops that the tiles apply to."""
        loops = split_loops(operation, self.split_k)
        if not self.is_implicit_gemm(operation):
            return loops
        parallel = (loop for loop in loops if loop.iterator == "parallel")
        return (*parallel, Loop("k", operation.accumulations, "reduction"))

    def _tiles(self, operation: Operation) -> dict[str, int]:
        """Axis -> tile."""
        reductions = ("k",) if self.is_implicit_gemm(operation) else operation.reduction_axes
        tiles = zip(operation.parallel_axes, self.workgroup, strict=False)
        return {**dict(tiles), **dict(zip(reductions, self.reduction, strict=False))}

    def _level(self, operation: Operation, tiles: dict[str, int], iterator: str) -> tuple[int, ...]:
        """A tile for each loop: 1 for untiled loops of type `iterator`, 0 for loops of the other type."""
        return tuple(
            tiles.get(loop.name, 1) if loop.iterator == iterator else 0 for loop in self._loops(operation)
        )

    def _gpu_lowering(
        self, operation: Operation, levels: Levels, attributes: tuple[tuple[str, str], ...], threads: int
    ) -> GpuLowering:
        options = [
            ("prefetch_num_stages", str(self.stages)),
            ("no_reduce_shared_memory_bank_conflicts", _text(not self.shared_padding)),
        ]
        if operation.convolution is not None:
            options.append(("use_igemm_convolution", _text(self.is_implicit_gemm(operation))))
        if self.order == "transpose":
            options.append(("reorder_workgroups_strategy", "<Transpose>"))
        return GpuLowering(
            dialect="iree_gpu",
            pipeline=self.pipeline,
            loops=self._loops(operation),
            levels=levels,
            attributes=attributes,
            threads=threads,
            subgroup_size=self.subgroup_size,
            pipeline_options=tuple(options),
            root=operation.loops if self.is_implicit_gemm(operation) else (),
        )

    # -- validity ---------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        reason = self._backend_reason(limits)
        reason = reason or contraction_invalid_reason("these tiles are for", operation)
        reason = reason or self._rank_reason(operation)
        reason = reason or split_invalid_reason(operation, self.split_k)
        if reason or limits.gpu is None:
            return reason or f"the GPU limits of {limits.backend} are unknown"
        return next(self._violations(operation, limits.gpu), None)

    def _backend_reason(self, limits: Limits) -> str | None:
        if limits.backend in GPU_BACKENDS:
            return None
        return f"{self.pipeline} is for {' and '.join(GPU_BACKENDS)}, but the target is {limits.backend}"

    def _rank_reason(self, operation: Operation) -> str | None:
        parallel, reductions = operation.parallel_axes, operation.reduction_axes
        ranks = {len(reductions), 1}
        if len(self.workgroup) == len(parallel) and len(self.reduction) in ranks:
            return None
        return (
            f"{operation.kind} needs {counted(len(parallel), 'workgroup tile')} ({', '.join(parallel)}) and "
            f"{' or '.join(map(str, sorted(ranks)))} of the reduction, "
            f"but got {len(self.workgroup)} and {len(self.reduction)}"
        )

    @abc.abstractmethod
    def _violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        """Every violated rule, the most informative first."""

    def _extents(self, operation: Operation) -> dict[str, int]:
        return {loop.name: loop.extent for loop in self._loops(operation)}

    def _launch_violations(self, threads: int, gpu: GpuLimits) -> Iterator[str]:
        if self.subgroup_size not in gpu.subgroup_sizes:
            known = " and ".join(map(str, gpu.subgroup_sizes))
            yield f"subgroups of {self.subgroup_size} threads, but {gpu.arch} has {known}"
        yield from self._thread_violations(threads, gpu)
        if threads % self.subgroup_size:
            yield f"{threads} threads are not a multiple of the subgroup size {self.subgroup_size}"

    def _thread_violations(self, threads: int, gpu: GpuLimits) -> Iterator[str]:
        if threads > gpu.threads:
            yield f"a workgroup of {threads} threads, but {gpu.arch} allows {gpu.threads}"

    def _register_violations(self, operation: Operation, threads: int, gpu: GpuLimits) -> Iterator[str]:
        needed = math.prod(self.workgroup) * operation.accumulator.bytes // 4
        per_thread = min(gpu.registers, gpu.register_file // threads if gpu.register_file else gpu.registers)
        if gpu.registers and needed > per_thread * threads:
            yield (
                f"the sums of a {by(self.workgroup)} tile need {needed // threads} registers per thread, but "
                f"{gpu.arch} has {per_thread}: use a smaller tile or more threads"
            )

    def _shared_violations(self, needed: int, gpu: GpuLimits) -> Iterator[str]:
        if needed > gpu.shared_bytes:
            yield (
                f"the tiles need {needed} B of shared memory, but {gpu.arch} has {gpu.shared_bytes}: "
                "use a smaller k or workgroup tile"
            )

    def _pipelining_violations(self, threads: int) -> Iterator[str]:
        if self.stages < _EARLY_COPIES:
            return
        k = math.prod(self.reduction)
        for role, extent in (("lhs", math.prod(self.workgroup[:-1])), ("rhs", self.workgroup[-1])):
            if extent * k % threads:
                yield (
                    f"with {self.stages} stages, {threads} threads must divide the {role} tile evenly, but it "
                    f"has {extent * k} elements: IREE 3.13 crashes"
                )

    def _operand_bytes(self, operation: Operation) -> int:
        """Bytes of both operand tiles in shared memory, without padding."""
        n, k = self.workgroup[-1], math.prod(self.reduction)
        m = math.prod(self.workgroup[:-1])
        return (m + n) * k * operation.element_type.bytes


def _text(flag: bool) -> str:
    return "true" if flag else "false"


def rounded_up(extent: int, multiple: int) -> int:
    """The smallest multiple that is at least `extent`."""
    return -(-extent // multiple) * multiple


# -- axes of search spaces -------------------------------------------------------------------------------

#: How a convolution is computed: as a product of gathered windows, or window by window.
FORMS = ("implicit_gemm", "direct")


def form_axis(operation: Operation) -> tuple[Axis, ...]:
    """The axis `form` of a convolution; a product has none."""
    if operation.convolution is None:
        return ()
    return (Axis("form", FORMS[1:] if operation.convolution.variant == "depthwise" else FORMS),)


def reduction_of(operation: Operation, form: str, k: int) -> tuple[int, ...]:
    """Tiles of the reduction with `k` channels at a time; filter taps are processed one by one."""
    if form != "direct" or len(operation.reduction_axes) == 1:
        return (k,)
    return (*(1 for _ in operation.reduction_axes[:-1]), k)


def workgroup_axes(operation: Operation, choices: Callable[[int], tuple[int, ...]]) -> tuple[Axis, ...]:
    """Axes with `choices(extent)` for the last two, and up to 8 for images and rows of pixels before them."""
    extents = {loop.name: loop.extent for loop in operation.loops}
    *outer, m, n = operation.parallel_axes
    tiles = {axis: divisors(extents[axis], 8) for axis in outer}
    return tile_axes("workgroup", {**tiles, **{axis: choices(extents[axis]) for axis in (m, n)}})


def nearest_divisor(extent: int, tile: int) -> int:
    """The largest divisor of `extent` that is at most `tile`, which is at least 1."""
    return divisors(extent, tile)[-1]

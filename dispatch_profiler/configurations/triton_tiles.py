"""Triton kernels in IREE dispatches: tiles, launch, and the constants of our kernel sources.

This module does not need Triton: the `compiler` package compiles a `KernelSource` to PTX ahead of time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    GpuLimits,
    Limits,
    backend_invalid_reason,
    by,
    check_choice,
    check_tiles,
    contraction_invalid_reason,
    epilogue_invalid_reason,
)
from dispatch_profiler.configurations.external_kernels import KernelSource, Launch
from dispatch_profiler.configurations.space import Axis, Space, powers_of_two, slices_of, tile_axes
from dispatch_profiler.configurations.splits import check_split, split_invalid_reason, split_suffix
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import ConvolutionGeometry, Operation

#: Our element type names -> Triton's pointer types.
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f8E4M3FN": "fp8e4nv", "i8": "i8", "i32": "i32"}
#: How f32 is multiplied: in f32, on tensor cores in three parts of 11 bits, or rounded to 11 bits.
PRECISIONS = ("ieee", "tf32x3", "tf32")
#: Activations that the kernels compute.
ACTIVATIONS = ("relu", "gelu", "sigmoid", "tanh")
#: Size and row alignment in bytes of a descriptor of the bulk copy engine (CUDA Driver API,
#: cuTensorMapEncodeTiled).
_DESCRIPTOR, _ALIGNMENT = 128, 16
#: Triton rejects blocks with more elements.
_BLOCK = 2**20
_WARP = 32


@dataclass(frozen=True, kw_only=True)
class TritonTiles(Configuration):
    """tile         elements per workgroup along m, n and k; powers of two
    warps        warps per workgroup
    stages       depth of software pipelining
    group        rows of tiles that are computed together, so that their columns stay in L2
    persistent   number of workgroups that loop over the tiles; 0 launches one per tile
    descriptors  load operands with the bulk copy engine (TMA)
    precision    how f32 is multiplied; must be "ieee" for other types
    split_k      slices of the reduction, for matmul

    For a convolution, m counts the output pixels of all images, n the filters of a group, and k taps
    times channels.
    """

    kind: ClassVar[str] = "triton"
    yaml_key: ClassVar[str] = "triton"
    can_be_inner: ClassVar[bool] = False
    yaml_field: ClassVar[str] = "tile"
    provider: ClassVar[str] = "Triton"
    field_names: ClassVar[tuple[str, ...]] = ("workgroup_tile", "k_tile", "stages", "core", "options")

    tile: tuple[int, int, int]
    warps: int = 8
    stages: int = 3
    group: int = 8
    persistent: int = 0
    descriptors: bool = False
    precision: str = "ieee"
    split_k: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", check_tiles("triton tile", self.tile))
        if len(self.tile) != 3:
            raise ConfigurationError(f"triton tile must be m, n and k, but got {list(self.tile)}")
        for name, least in (("warps", 1), ("stages", 1), ("group", 1), ("persistent", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigurationError(
                    f"{name} must be a whole number of at least {least}, but got {value!r}"
                )
        if not isinstance(self.descriptors, bool):
            raise ConfigurationError(f"descriptors must be true or false, but got {self.descriptors!r}")
        check_choice("precision", self.precision, PRECISIONS)
        check_split(self.split_k)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        """A persistent launch has one or two workgroups per multiprocessor of an H100 or H200."""
        gpu = limits.gpu
        if gpu is None or limits.backend != "cuda" or contraction_invalid_reason("", operation):
            return None
        if operation.convolution is not None and operation.convolution.variant == "depthwise":
            return None
        tiles = {"m": powers_of_two(16, 256), "n": powers_of_two(16, 256), "k": powers_of_two(16, 128)}
        can_describe = operation.convolution is None and gpu.device_capability >= 90
        axes = (
            Axis("warps", (4, 8)),
            Axis("stages", (2, 3, 4, 5)),
            Axis("group", (1, 4, 8)),
            Axis("persistent", (0, 132, 264)),
            Axis("descriptors", (False, True) if can_describe else (False,)),
            Axis("precision", PRECISIONS[:2] if operation.element_type.name == "f32" else PRECISIONS[:1]),
            Axis("split_k", slices_of(operation)),
            *tile_axes("tile", tiles),
        )
        return Space(cls, axes)

    @property
    def name(self) -> str:
        """`triton_128x256x64_8w_3s_g8[_tma][_persistent132][_tf32x3][_splitk4]`"""
        parts = [f"triton_{by(self.tile)}", f"{self.warps}w", f"{self.stages}s", *self._options()]
        return "_".join(parts) + split_suffix(self.split_k)

    def _options(self) -> list[str]:
        return [
            f"g{self.group}",
            *(["tma"] if self.descriptors else []),
            *([f"persistent{self.persistent}"] if self.persistent else []),
            *([self.precision] if self.precision != "ieee" else []),
        ]

    def fields(self) -> dict[str, str]:
        m, n, k = self.tile
        values = (
            by((m, n)),
            str(k),
            str(self.stages),
            "triton",
            " ".join([f"{self.warps}w", *self._options()]),
        )
        return dict(zip(self.field_names, values, strict=True))

    @property
    def module(self) -> str:
        # The driver rejects a whole module for one kernel, so IREE's kernels are in another.
        return "triton"

    # -- launch -------------------------------------------------------------------------------------

    def launch(self, operation: Operation) -> Launch:
        tiles = self._tile_count(operation)
        programs = self.persistent or tiles
        split = self.split_k > 1
        result = operation.results[0]
        # Triton passes two more pointers to every kernel: scratch memory of all programs, and a profiler's.
        descriptors = programs * 2 * _DESCRIPTOR if self.descriptors else _ALIGNMENT
        return Launch(
            entry=self._source_name(operation),
            workgroups=(programs, 1, 1),
            workgroup_size=(_WARP * self.warps, 1, 1),
            shape=(self.split_k, *result.shape) if split else result.shape,
            type=operation.accumulator if split else result.type,
            scratch=(descriptors, _ALIGNMENT),
        )

    def _source_name(self, operation: Operation) -> str:
        if operation.convolution is not None:
            return "convolution"
        return "product_by_descriptors" if self.descriptors else "product"

    def kernel(self, operation: Operation) -> KernelSource:
        """The kernel source with the constants of this dispatch."""
        written = self.launch(operation).type
        contraction = operation.as_contraction()
        # The caller adds the slices and computes the epilogue.
        simple = contraction.epilogue.bias_and_activation if self.split_k == 1 else None
        bias, activation = simple or (False, "none")
        types = contraction.types
        pointers = [("lhs", types.lhs), ("rhs", types.lhs), *([("bias", types.result)] if bias else [])]
        pointers.append(("result", written.name))
        m, n, k = self.tile
        convolution = operation.convolution
        constants: dict[str, Any] = {
            **({} if bias else {"bias": None}),
            **(_convolution_constants(convolution) if convolution else self._strides(operation)),
            "ACCUMULATOR": TYPES[types.accumulator.name],
            "HAS_BIAS": bias,
            "ACTIVATION": activation,
            "PRECISION": self.precision,
            "TILE_M": m,
            "TILE_N": n,
            "TILE_K": k,
            "GROUP": self.group,
            "PERSISTENT": self.persistent,
        }
        return KernelSource(
            self._source_name(operation),
            tuple((name, TYPES[type_]) for name, type_ in pointers),
            tuple(constants.items()),
            self.warps,
            self.stages,
        )

    def _product(self, operation: Operation) -> tuple[int, int, int, int]:
        """Batch (or slices, or groups), m, n and k of the product that the kernel computes."""
        convolution, product = operation.convolution, operation.product
        if convolution is not None:
            pixels = convolution.batch * math.prod(convolution.output_size)
            return convolution.groups, pixels, convolution.filters_per_group, operation.accumulations
        assert product is not None
        batch = product.batch if product.is_batched else self.split_k
        return batch, product.m, product.n, product.k // self.split_k

    def _tile_count(self, operation: Operation) -> int:
        batch, m, n, _ = self._product(operation)
        return batch * -(-m // self.tile[0]) * -(-n // self.tile[1])

    def _strides(self, operation: Operation) -> dict[str, int]:
        """Shape and strides in elements. Slices of k are parts of the same rows; batches are separate."""
        batch, m, n, k = self._product(operation)
        lhs, rhs, _ = operation.as_contraction().layouts
        whole = k * self.split_k
        lhs_m, lhs_k = (whole, 1) if lhs == "t" else (1, m)
        rhs_k, rhs_n = (n, 1) if rhs == "t" else (1, whole)
        sliced = self.split_k > 1
        return {
            "BATCH": batch, "M": m, "N": n, "K": k,
            "LHS_BATCH": k * lhs_k if sliced else m * k, "LHS_M": lhs_m, "LHS_K": lhs_k,
            "RHS_BATCH": k * rhs_k if sliced else n * k, "RHS_K": rhs_k, "RHS_N": rhs_n,
        }  # fmt: skip

    # -- validity -------------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        foreign = backend_invalid_reason("Triton kernels are", "cuda", limits)
        foreign = foreign or contraction_invalid_reason("Triton kernels are for", operation)
        if foreign or limits.gpu is None:
            return foreign
        return next(self._violations(operation, limits.gpu), None)

    def _violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        """Every violated rule, the most informative first."""
        split = split_invalid_reason(operation, self.split_k)
        if split:
            yield split
        elif self.split_k == 1:
            reason = epilogue_invalid_reason("the Triton kernels have", operation, ACTIVATIONS)
            if reason:
                yield reason
        yield from self._type_violations(operation, gpu)
        yield from self._tile_violations(operation, gpu)
        if operation.convolution is not None and operation.convolution.variant == "depthwise":
            yield "the Triton kernels do not support depthwise convolutions"
        tiles = self._tile_count(operation)
        if self.persistent >= tiles:
            yield (
                f"{tiles} tiles are too few for {self.persistent} persistent workgroups: each would compute at "
                "most one"
            )
        largest = max(tensor.elements for tensor in (*operation.operands, *operation.results)) * self.split_k
        if largest >= 2**31:
            yield f"the kernels use 32-bit indices, but a tensor has {largest} elements"
        if self.descriptors:
            yield from self._descriptor_violations(operation, gpu)

    def _type_violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        if gpu.device_capability < 80:
            yield f"the kernels are for sm_80 and newer, but the target is {gpu.device_arch}"
        types = operation.as_contraction().types
        if types.lhs not in TYPES or types.result not in TYPES:
            yield f"the kernels support {', '.join(t for t in TYPES if t != 'i32')}, not {types.lhs}"
        if types.result == "f8E4M3FN":
            yield "Triton saturates f8 results, but the operation overflows"
        if types.lhs == "f8E4M3FN" and gpu.device_capability < 89:
            yield f"f8E4M3FN needs sm_89 or newer, but the target is {gpu.device_arch}"
        if self.precision != "ieee" and types.lhs != "f32":
            yield f"{self.precision} applies to f32 inputs, not {types.lhs}"

    def _tile_violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        for what, value in (
            *zip(("tile m", "tile n", "tile k"), self.tile, strict=True),
            ("warps", self.warps),
        ):
            if value & (value - 1):
                yield f"{what} must be a power of two for Triton, but is {value}"
        m, n, k = self.tile
        min_k = 32 if operation.element_type.bits == 8 else 16
        if min(m, n) < 16 or k < min_k:
            yield f"tiles must be at least 16x16x{min_k} for {operation.element_type.name}, but got {by(self.tile)}"
        if max(m * n, m * k, n * k) > _BLOCK:
            yield f"a Triton block has at most {_BLOCK} elements, but {by(self.tile)} has more"
        threads = self.warps * _WARP
        if threads > gpu.threads:
            yield f"{self.warps} warps are {threads} threads, but {gpu.device_arch} allows {gpu.threads}"
        registers = m * n // threads
        if gpu.registers and registers > gpu.registers:
            yield (
                f"the sums of a {m}x{n} tile need {registers} registers per thread, but {gpu.device_arch} has "
                f"{gpu.registers}: use a smaller tile or more warps"
            )
        needed = self.shared_bytes(operation)
        if needed > gpu.device_shared_bytes:
            yield (
                f"{self.stages} stages of {by(self.tile)} need {needed} B of shared memory, but "
                f"{gpu.device_arch} has {gpu.device_shared_bytes}: use fewer stages or a smaller tile"
            )

    def shared_bytes(self, operation: Operation) -> int:
        """Shared memory in bytes that the pipeline's buffers need at least.

        Triton buffers in shared memory what it can copy there asynchronously, at least 4 bytes at a time.
        That excludes windows of an image and 8-bit operands that it must transpose. The last stage may
        need no buffer (on sm_80).
        """
        m, n, k = self.tile
        if operation.convolution is not None or operation.element_type.bits == 8:
            return 0
        size, strides = operation.element_type.bytes, self._strides(operation)
        if any(strides[name] > 1 and strides[name] * size % 4 for name in strides if "_" in name):
            return 0
        steps = -(-strides["K"] // k)
        return (min(self.stages, steps) - 1) * (m + n) * k * size

    def _descriptor_violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        if gpu.device_capability < 90:
            yield f"descriptors need the bulk copy engine of sm_90, but the target is {gpu.device_arch}"
        if operation.convolution is not None:
            yield "descriptors support matmul and batch_matmul only, because convolutions gather windows"
            return
        if max(self.tile) > 256:
            yield f"the bulk copy engine fetches at most 256 elements along an axis, but got {by(self.tile)}"
        strides, size = self._strides(operation), operation.element_type.bytes
        for name in ("LHS_BATCH", "LHS_M", "LHS_K", "RHS_BATCH", "RHS_K", "RHS_N"):
            if strides[name] > 1 and strides[name] * size % _ALIGNMENT:
                yield (
                    f"the bulk copy engine needs strides that are multiples of {_ALIGNMENT} B, but got "
                    f"{strides[name] * size} B"
                )


def _convolution_constants(convolution: ConvolutionGeometry) -> dict[str, int | bool]:
    (h, w), (oh, ow), (r, s) = convolution.size, convolution.output_size, convolution.filter_size
    return {
        "H": h, "W": w, "OH": oh, "OW": ow, "R": r, "S": s,
        "STRIDE_H": convolution.stride[0], "STRIDE_W": convolution.stride[1],
        "PAD_H": convolution.padding[0], "PAD_W": convolution.padding[1],
        "DILATION_H": convolution.dilation[0], "DILATION_W": convolution.dilation[1],
        "IMAGES": convolution.batch, "CHANNELS": convolution.channels_per_group,
        "FILTERS": convolution.filters_per_group, "GROUPS": convolution.groups,
        "NHWC": convolution.is_channels_last,
    }  # fmt: skip

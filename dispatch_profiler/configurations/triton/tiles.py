"""Triton kernels in IREE dispatches: tiles, launch, and the constants of this package's kernel sources.

This module does not need Triton: the `compiler` package compiles a `KernelSource` to PTX ahead of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    GpuLimits,
    KernelSource,
    Launch,
    Limits,
    by,
    check_choice,
    check_flag,
    check_tiles,
    check_whole,
)
from dispatch_profiler.configurations.space import Axis, Space, powers_of_two, slices_of, tile_axes
from dispatch_profiler.configurations.splits import split_invalid_reason, split_suffix
from dispatch_profiler.configurations.triton._base import TritonKernel
from dispatch_profiler.configurations.triton.convolutions import (
    as_implicit_product,
    box_steps,
    convolution_constants,
    descriptor_strides,
    is_weight_gradient,
    product_of,
    unsupported_reason,
    weight_constants,
    window_constants,
    window_invalid_reason,
    window_tiles,
)
from dispatch_profiler.configurations.triton.limits import (
    PRECISIONS,
    PROCESSORS,
    TYPES,
    WARP,
    tile_violations,
    type_violations,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import ElementType, Epilogue, Operation

#: Size in bytes of a descriptor of the bulk copy engine (CUDA Driver API, cuTensorMapEncodeTiled).
_DESCRIPTOR = 128
#: Of a product's operands.
_AXES = (("LHS", ("BATCH", "M", "K")), ("RHS", ("BATCH", "K", "N")))


@dataclass(frozen=True, kw_only=True)
class TritonTiles(TritonKernel):
    """tile         elements per workgroup along m, n and k; powers of two
    warps        warps per workgroup
    stages       depth of software pipelining
    group        rows of tiles that are computed together, so that their columns stay in L2
    persistent   number of workgroups that loop over the tiles; 0 launches one per tile
    descriptors  load operands with the bulk copy engine (TMA), in weight_backward the windows of images only
    precision    how f32 is multiplied; must be "ieee" for other types
    l1           keep operands in the L1 cache, where overlapping windows of an image find them
    split_k      slices of the reduction, for matmul and convolutions
    windows_only with descriptors, load filters through pointers, which saves creating a descriptor for them
    joined       with split_k, the workgroups of a tile add its slices themselves; products only
    swapped      exchange the operands of each product, for tiles with few rows

    For a convolution, m counts the pixels of the result, n its channels of a group, and k taps times channels;
    in weight_backward, m counts filters, n taps times channels, and k pixels.
    """

    kind: ClassVar[str] = "triton"
    yaml_key: ClassVar[str] = "triton"
    yaml_field: ClassVar[str] = "tile"
    field_names: ClassVar[tuple[str, ...]] = ("workgroup_tile", "k_tile", "stages", "core", "options")

    tile: tuple[int, int, int]
    warps: int = 8
    stages: int = 3
    group: int = 8
    persistent: int = 0
    descriptors: bool = False
    precision: str = "ieee"
    l1: bool = False
    split_k: int = 1
    windows_only: bool = False
    joined: bool = False
    swapped: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", check_tiles("triton tile", self.tile))
        if len(self.tile) != 3:
            raise ConfigurationError(f"triton tile must be m, n and k, but got {list(self.tile)}")
        for name, least in (("warps", 1), ("stages", 1), ("group", 1), ("persistent", 0)):
            check_whole(name, getattr(self, name), least)
        for name in ("descriptors", "l1", "windows_only", "joined", "swapped"):
            check_flag(name, getattr(self, name))
        check_choice("precision", self.precision, PRECISIONS)
        check_whole("split_k", self.split_k)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        """A persistent launch has one or two workgroups per multiprocessor of an H100 or H200."""
        gpu = limits.gpu
        if gpu is None or limits.backend != "cuda" or unsupported_reason("", operation):
            return None
        return Space(cls, triton_axes(operation, gpu.device_capability))

    @property
    def name(self) -> str:
        """`triton_128x256x64_8w_3s_g8[_tma[_windows]][_persistent132][_tf32x3][_l1][_splitk4]`"""
        parts = [f"triton_{by(self.tile)}", f"{self.warps}w", f"{self.stages}s", *self._options()]
        return "_".join(parts) + split_suffix(self.split_k)

    def _options(self) -> list[str]:
        return [
            f"g{self.group}",
            *(["tma"] if self.descriptors else []),
            *(["windows"] if self.windows_only else []),
            *([f"persistent{self.persistent}"] if self.persistent else []),
            *([self.precision] if self.precision != "ieee" else []),
            *(["l1"] if self.l1 else []),
            *(["swapped"] if self.swapped else []),
            *(["joined"] if self.joined else []),
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

    # -- launch -------------------------------------------------------------------------------------

    def launch(self, operation: Operation) -> Launch:
        tiles = self._tile_count(operation)
        programs = self.persistent or tiles
        split = self.split_k > 1 and not self.joined
        result = operation.results[0]
        # Triton passes two more pointers to every kernel: scratch memory of all programs, and a profiler's.
        descriptors = programs * 2 * _DESCRIPTOR if self.descriptors else ALIGNMENT
        partial = (tiles * self.tile[0] * self.tile[1] * operation.accumulator.bytes,) if self.joined else ()
        return Launch(
            entry=self._source_name(operation),
            workgroups=(programs, 1, 1),
            workgroup_size=(WARP * self.warps, 1, 1),
            shape=(self.split_k, *result.shape) if split else result.shape,
            type=operation.accumulator if split else result.type,
            scratch=(*partial, descriptors, ALIGNMENT),
        )

    def _source_name(self, operation: Operation) -> str:
        if product_of(operation) is not None:
            name = "product"
        else:
            name = "weight_gradient" if is_weight_gradient(operation) else "convolution"
        return f"{name}_by_descriptors" if self.descriptors else name

    def kernel(self, operation: Operation) -> KernelSource:
        """The kernel source with the constants of this dispatch."""
        types, written = operation.as_contraction().types, self.launch(operation).type
        m, n, k = self.tile
        epilogue = self._epilogue(operation)
        operands = tuple(each.name for each in epilogue.operands)
        pointers = [("lhs", types.lhs), ("rhs", types.rhs), *((name, types.result) for name in operands)]
        pointers.append(("result", written.name))
        if self.joined:
            pointers += [("partial", types.accumulator.name), ("arrivals", "i32")]
        constants: dict[str, Any] = {
            **self._constants(operation, epilogue),
            "ACCUMULATOR": TYPES[types.accumulator.name],
            "PRECISION": self.precision,
            "TILE_M": m,
            "TILE_N": n,
            "TILE_K": k,
            "GROUP": self.group,
        }
        return KernelSource(
            self._source_name(operation),
            tuple((name, TYPES[type_]) for name, type_ in pointers),
            tuple(constants.items()),
            self.warps,
            self.stages,
            operands,
            self.l1,
            self.launch(operation).workgroups[0],
            self._tile_count(operation) // self.split_k if self.joined else 0,
        )

    def _epilogue(self, operation: Operation) -> Epilogue:
        """The kernel's epilogue: none for a split product, whose slices are added before IREE's code computes it."""
        computes = self.split_k == 1 or self.joined
        return operation.as_contraction().epilogue if computes else Epilogue()

    def _constants(self, operation: Operation, epilogue: Epilogue) -> dict[str, Any]:
        """Constants of the operation's kernel."""
        convolution, product = operation.convolution, product_of(operation)
        if convolution is not None and product is None and is_weight_gradient(operation):
            if self.descriptors:
                return dict(window_constants(convolution, self.tile[2], self.split_k))
            return dict(weight_constants(convolution, self.split_k))
        if product is not None:
            own = self._strides(operation)
        else:
            assert convolution is not None
            if self.descriptors:
                own = window_constants(convolution, self.tile[0], self.split_k)
            else:
                own = convolution_constants(convolution) | {"SLICES": self.split_k}
        steps = kernel_steps(epilogue, operation.accumulator)
        options: dict[str, Any] = {"STEPS": steps, "PERSISTENT": self.persistent}
        if product is None and self.descriptors:
            options["WINDOWS_ONLY"] = self.windows_only
        if product is not None:
            options |= {"JOINED": self.split_k if self.joined else 1, "SWAPPED": self.swapped}
            if not self.joined:
                options |= {"partial": None, "arrivals": None}
        return {**own, **options}

    def product(self, operation: Operation) -> tuple[int, int, int, int]:
        """Batch (or slices, groups, phases), m, n and k of the product that the kernel computes."""
        product = product_of(operation)
        if product is None:
            assert operation.convolution is not None
            parts, m, n, k = as_implicit_product(operation.convolution)
            return parts * self.split_k, m, n, -(-k // self.split_k)
        batch = product.batch if product.is_batched else self.split_k
        return batch, product.m, product.n, product.k // self.split_k

    def _tile_count(self, operation: Operation) -> int:
        convolution = operation.convolution
        if self.descriptors and convolution is not None and product_of(operation) is None:
            return self.split_k * window_tiles(convolution, self.tile)
        batch, m, n, _ = self.product(operation)
        return batch * -(-m // self.tile[0]) * -(-n // self.tile[1])

    def _strides(self, operation: Operation) -> dict[str, int]:
        """Shape and strides in elements. Slices of k are parts of the same rows; batches are separate."""
        batch, m, n, k = self.product(operation)
        product = product_of(operation)
        assert product is not None
        whole = k * self.split_k
        lhs_m, lhs_k = (whole, 1) if product.lhs_layout == "t" else (1, m)
        rhs_k, rhs_n = (n, 1) if product.rhs_layout == "t" else (1, whole)
        sliced = self.split_k > 1
        return {
            "BATCH": batch, "M": m, "N": n, "K": k,
            "LHS_BATCH": k * lhs_k if sliced else m * k, "LHS_M": lhs_m, "LHS_K": lhs_k,
            "RHS_BATCH": k * rhs_k if sliced else n * k, "RHS_K": rhs_k, "RHS_N": rhs_n,
        }  # fmt: skip

    # -- validity -------------------------------------------------------------------------------------

    def foreign_reason(self, operation: Operation) -> str | None:
        return unsupported_reason("Triton kernels are for", operation)

    def violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        split = self._split_violation(operation)
        if split:
            yield split
        yield from type_violations(self.precision, operation, gpu)
        yield from tile_violations(self.tile, self.warps, operation, gpu)
        yield from self._shared_violations(operation, gpu)
        yield from option_violations(self, operation, gpu)
        tiles = self._tile_count(operation)
        if self.persistent >= tiles:
            yield (
                f"{tiles} tiles are too few for {self.persistent} persistent workgroups: each would compute at "
                "most one"
            )
        written = operation.results[0].elements * self.split_k
        largest = max(written, *(tensor.elements for tensor in operation.operands))
        if largest >= 2**31:
            yield f"the kernels use 32-bit indices, but a tensor has {largest} elements"
        if self.descriptors:
            yield from descriptor_violations(
                self.tile, self._strides_of_descriptors(operation), operation, gpu
            )
        yield from wasteful_tiles(self.tile, self.product(operation)[1:3])

    def _split_violation(self, operation: Operation) -> str | None:
        """Like `split_invalid_reason`, but convolutions can be split too."""
        convolution = operation.convolution
        if self.split_k == 1 or convolution is None:
            return split_invalid_reason(operation, self.split_k)
        *_, k = replace(self, split_k=1).product(operation)
        summed = "pixels" if is_weight_gradient(operation) else "products"
        if product_of(operation) is not None:
            return (
                f"{self.split_k} slices do not divide {k} {summed}, as the product of a 1x1 filter needs"
                if k % self.split_k
                else None
            )
        steps = box_steps(convolution, self.tile) if self.descriptors else -(-k // self.tile[2])
        return (
            f"{steps} steps of {self.tile[2]} {summed} are too few for {self.split_k} slices"
            if self.split_k > steps
            else None
        )

    def _shared_violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        needed = self.shared_bytes(operation)
        if needed > gpu.device_shared_bytes:
            yield (
                f"{self.stages} stages of {by(self.tile)} need {needed} B of shared memory, but "
                f"{gpu.device_arch} has {gpu.device_shared_bytes}: use fewer stages or a smaller tile"
            )

    def shared_bytes(self, operation: Operation) -> int:
        """Shared memory in bytes that the pipeline's buffers need at least.

        Triton buffers operands in shared memory if it can copy them asynchronously, at least 4 bytes at a
        time. That excludes windows of an image and 8-bit operands that must be transposed. The last stage may
        need no buffer (on sm_80).
        """
        m, n, k = self.tile
        if operation.element_type.bits == 8:
            return 0
        if product_of(operation) is None:
            return (self.stages - 1) * (m + n) * k * operation.element_type.bytes if self.descriptors else 0
        size, strides = operation.element_type.bytes, self._strides(operation)
        if any(strides[name] > 1 and strides[name] * size % 4 for name in strides if "_" in name):
            return 0
        steps = -(-strides["K"] // k)
        return (min(self.stages, steps) - 1) * (m + n) * k * size

    def _strides_of_descriptors(self, operation: Operation) -> tuple[int, ...]:
        """In elements."""
        convolution = operation.convolution
        if product_of(operation) is not None or convolution is None:
            own = self._strides(operation)
            return tuple(own[f"{side}_{axis}"] for side, axes in _AXES for axis in axes)
        if window_invalid_reason(convolution):
            return ()
        constants = self._constants(operation, Epilogue())
        return tuple(descriptor_strides(constants, convolution.mode, self.windows_only))


# -- epilogues -------------------------------------------------------------------------------------

# Epilogues as Triton's kernels see them.


def kernel_steps(epilogue: Epilogue, accumulator: ElementType) -> str:
    """The constant STEPS of a kernel: `bias:0:0.0:0.0 clamp:1:-1.0:2.0`.

    Each step has the place of its first operand among the operands of all steps, and two parameters, 0 where it
    lacks them; in i32, the parameters are integers. The constant is a string because Triton 3.6 accepts no
    tuple of strings.
    """
    number = int if accumulator.is_integer else float
    texts = []
    for step, place in epilogue.places():
        first, second, *_ = map(number, (*step.parameters, 0, 0))
        texts.append(f"{step.name}:{place.start}:{first}:{second}")
    return " ".join(texts)


# -- space -----------------------------------------------------------------------------------------

# The axes of the search space of Triton's tiles.


#: Slices of the pixels for a weight gradient, whose result is small: at most one for each multiprocessor.
_WEIGHT_SLICES = (1, 2, 3, 4, 7, 8, 14, 16, 28, 32, 49, 64, 98)
#: Slices for the other modes, whose tiles are too few for the multiprocessors if images are small.
_CONVOLUTION_SLICES = (1, 2, 3, 4, 6, 8)


def triton_axes(operation: Operation, capability: int) -> tuple[Axis, ...]:
    """An axis for each field of `TritonTiles`, and three for its tile; `capability` is 90 for sm_90."""
    tiles = {"m": powers_of_two(16, 256), "n": powers_of_two(16, 256), "k": powers_of_two(16, 256)}
    product, convolution, is_weight = (
        product_of(operation),
        operation.convolution,
        is_weight_gradient(operation),
    )
    has_windows = product is None and convolution is not None and window_invalid_reason(convolution) is None
    can_describe = capability >= 90 and (product is not None or has_windows)
    return (
        Axis("warps", (4, 8)),
        Axis("stages", (2, 3, 4, 5, 6, 7, 8)),
        Axis("group", (1, 4, 8)),
        Axis("persistent", (0,) if product is None and is_weight else (0, 132, 264)),
        Axis("descriptors", (False, True) if can_describe else (False,)),
        Axis("precision", PRECISIONS[:3] if operation.element_type.name == "f32" else PRECISIONS[:1]),
        Axis("l1", (False, True) if product is None else (False,)),
        Axis("split_k", _slices_of(operation)),
        Axis("joined", (False, True) if product is not None and not product.is_batched else (False,)),
        Axis("swapped", (False, True) if product is not None else (False,)),
        Axis("windows_only", (False, True) if can_describe and has_windows and not is_weight else (False,)),
        *tile_axes("tile", tiles),
    )


def _slices_of(operation: Operation) -> tuple[int, ...]:
    if operation.convolution is None:
        return slices_of(operation)
    return _WEIGHT_SLICES if is_weight_gradient(operation) else _CONVOLUTION_SLICES


# -- options ---------------------------------------------------------------------------------------

# The operations and GPUs that the options of Triton's tiles apply to.


#: Alignment in bytes of the rows that a descriptor describes (CUDA Driver API, cuTensorMapEncodeTiled).
ALIGNMENT = 16
#: The rows of a `wgmma`.
_ROWS = 64
#: With more tiles along m, tiles of 64 rows and more are faster.
_MAX_SWAPPED = 16


def option_violations(tiles: TritonTiles, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
    """Why the options of `tiles` do not apply to `operation`."""
    is_product, is_weight = product_of(operation) is not None, is_weight_gradient(operation)
    if tiles.persistent and not is_product and is_weight:
        yield "the kernel of weight gradients computes one tile per workgroup: leave out persistent, or use split_k"
    if tiles.windows_only and (not tiles.descriptors or is_product or is_weight):
        yield "windows_only applies to descriptors of convolutions with windows, forward and input_backward"
    if tiles.l1 and tiles.descriptors:
        yield "l1 applies to copies without descriptors, because the bulk copy engine bypasses the L1 cache"
    if tiles.swapped:
        yield from _swapped_violations(tiles, operation)
    if tiles.joined:
        yield from _joined_violations(tiles, operation, gpu)


def _swapped_violations(tiles: TritonTiles, operation: Operation) -> Iterator[str]:
    product, rows = product_of(operation), tiles.tile[0]
    if product is None:
        yield "swapped applies to matrix products"
    elif rows >= _ROWS:
        yield f"swapped is for tiles of fewer than {_ROWS} rows, not {rows}"
    elif product.m > _MAX_SWAPPED * rows:
        yield f"swapped is for at most {_MAX_SWAPPED} tiles along m: use larger tiles than {rows} for {product.m}"


def _joined_violations(tiles: TritonTiles, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
    product = product_of(operation)
    if product is None:
        yield "joined applies to matrix products"
        return
    slices, most = tiles.split_k, tiles.tile[0]
    if slices & (slices - 1) or not 2 <= slices <= most:
        yield f"joined slices must be a power of two from 2 to {most}, but split_k is {slices}"
    if tiles.persistent:
        yield "joined slices wait for each other, so each needs a workgroup of its own: leave out persistent"
    processors = PROCESSORS.get(gpu.device_capability)
    if processors is None:
        yield f"joined slices wait for each other, and are for sm_90, whose multiprocessors hold them all, not {gpu.device_arch}"
        return
    m, n, _ = tiles.tile
    workgroups = -(-product.m // m) * -(-product.n // n) * slices
    if workgroups > processors:
        yield (
            f"{workgroups} workgroups of joined slices, which wait for each other, but {processors} multiprocessors: "
            "use fewer slices or larger tiles"
        )


def descriptor_violations(
    tile: tuple[int, int, int], strides: Iterable[int], operation: Operation, gpu: GpuLimits
) -> Iterator[str]:
    """Why the bulk copy engine cannot load the operands, whose `strides` are given in elements."""
    if gpu.device_capability < 90:
        yield f"descriptors need the bulk copy engine of sm_90, but the target is {gpu.device_arch}"
    if max(tile) > 256:
        yield f"the bulk copy engine fetches at most 256 elements along an axis, but got {by(tile)}"
    if product_of(operation) is None and operation.convolution is not None:
        reason = window_invalid_reason(operation.convolution)
        if reason:
            yield reason
    size = operation.element_type.bytes
    for stride in strides:
        if stride > 1 and stride * size % ALIGNMENT:
            yield (
                f"the bulk copy engine needs strides that are multiples of {ALIGNMENT} B, but got "
                f"{stride * size} B"
            )


def wasteful_tiles(tile: tuple[int, int, int], extents: tuple[int, ...]) -> Iterator[str]:
    """Tiles of twice the extent waste half of their work, and some such kernels of Triton 3.9 were wrong on an H200."""
    for name, extent, size in zip("mn", extents, tile, strict=False):
        largest = max(_ROWS, 1 << (extent - 1).bit_length())
        if size > largest:
            yield f"a tile of {size} along {name}, which is {extent}, is larger than necessary: use at most {largest}"

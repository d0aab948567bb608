"""The operations and GPUs that the options of Triton's tiles apply to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from dispatch_profiler.configurations._base import GpuLimits, by
from dispatch_profiler.configurations.triton.convolutions import is_weight_gradient, product_of
from dispatch_profiler.configurations.triton.windows import window_invalid_reason
from dispatch_profiler.operations import Operation

#: Alignment in bytes of the rows that a descriptor describes (CUDA Driver API, cuTensorMapEncodeTiled).
ALIGNMENT = 16
#: The rows of a `wgmma`.
_ROWS = 64
#: Multiprocessors by compute capability: of an H100 (SXM) and an H200. Each holds at least one workgroup.
_PROCESSORS = {90: 132}
#: With more tiles along m, tiles of 64 rows and more are faster.
_MAX_SWAPPED = 16


class Options(Protocol):
    """Fields of `TritonTiles`."""

    @property
    def tile(self) -> tuple[int, int, int]: ...
    @property
    def persistent(self) -> int: ...
    @property
    def descriptors(self) -> bool: ...
    @property
    def l1(self) -> bool: ...
    @property
    def split_k(self) -> int: ...
    @property
    def windows_only(self) -> bool: ...
    @property
    def joined(self) -> bool: ...
    @property
    def swapped(self) -> bool: ...


def option_violations(tiles: Options, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
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


def _swapped_violations(tiles: Options, operation: Operation) -> Iterator[str]:
    product, rows = product_of(operation), tiles.tile[0]
    if product is None:
        yield "swapped applies to matrix products"
    elif rows >= _ROWS:
        yield f"swapped is for tiles of fewer than {_ROWS} rows, not {rows}"
    elif product.m > _MAX_SWAPPED * rows:
        yield f"swapped is for at most {_MAX_SWAPPED} tiles along m: use larger tiles than {rows} for {product.m}"


def _joined_violations(tiles: Options, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
    product = product_of(operation)
    if product is None:
        yield "joined applies to matrix products"
        return
    slices, most = tiles.split_k, tiles.tile[0]
    if slices & (slices - 1) or not 2 <= slices <= most:
        yield f"joined slices must be a power of two from 2 to {most}, but split_k is {slices}"
    if tiles.persistent:
        yield "joined slices wait for each other, so each needs a workgroup of its own: leave out persistent"
    processors = _PROCESSORS.get(gpu.device_capability)
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

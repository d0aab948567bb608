"""Configurations for CPUs with vectors of at most 32 bytes, whose 16 registers the tiles of AVX-512 overflow.

`docs/untuned.md` has the measurements. Sums of a tile stay in registers if it has at most 12 vectors of them. The
compiler's default is fast for small products there, and never for convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed, Limits
from dispatch_profiler.operations import ConvolutionGeometry, Operation, ProductGeometry
from dispatch_profiler.targets.untuned.unaligned_extents import (
    FEW_MULTIPLICATIONS,
    also_unpeeled,
    has_few_rows_of_taps,
    has_many_phases,
    is_small,
    with_tiles,
)

#: Bytes of a vector of AVX2. CPUs with wider vectors have twice as many registers.
_NARROW = 32
#: Elements of the widest row of a tile.
_COLUMNS = 16
_TILES = CpuTiles((48, 64), (6, 16, 4), peel=True)
_LARGE = CpuTiles((60, 128), (6, 16, 4), peel=True)
#: Rows for which rhs, stored as k x n, is read once, and rows for which tiles are faster, whatever the columns.
_FEW_ROWS, _MODERATE_ROWS = 4, 96
#: Rows for which the default is faster than packing.
_PACKED_ROWS = 8
#: From so many terms of a sum on, microkernels are faster than permuting rhs.
_LONG_SUM = 512
#: So many filters or fewer stay in registers with the pixels of a row.
_FEW_FILTERS = 6


def has_narrow_vectors(limits: Limits) -> bool:
    """Whether vectors are known to be narrower than the vectors that the other rules were measured with."""
    return limits.vector_bytes is not None and limits.vector_bytes <= _NARROW


def narrow_configurations(operation: Operation) -> Iterator[Configuration]:
    """The fastest configurations of products and of convolutions without groups, the fastest first.

    `Default()` if the default is the fastest. Empty for other operations.
    """
    geometry, product = operation.convolution, operation.product
    if geometry is not None:
        yield from _of_convolution(geometry)
    elif product is not None and operation.element_type.name == "f32" and not _is_tiny(product):
        yield from _of_batch() if product.is_batched else _of_product(product)
    elif product is not None:
        yield Default()


def _is_tiny(product: ProductGeometry) -> bool:
    return not product.is_batched and product.m * product.n * product.k <= FEW_MULTIPLICATIONS


def _of_batch() -> Iterator[Configuration]:
    yield from with_tiles("permuted", _TILES)
    yield Default()


def _of_product(product: ProductGeometry) -> Iterator[Configuration]:
    m, n, k = product.m, product.n, product.k
    if product.rhs_layout == "t":
        if m <= _FEW_ROWS and n >= _COLUMNS:
            yield from _of_rows(m, n)
        elif n % _COLUMNS == 0 or (m <= _MODERATE_ROWS and n > 2 * _COLUMNS):
            if m > _PACKED_ROWS:
                yield from also_unpeeled(_TILES)
        elif not is_small(product):
            yield Flow("data_tiling")
    elif m > _PACKED_ROWS and not is_small(product):
        if k < _LONG_SUM:
            yield from with_tiles("permuted", _TILES)
        yield Flow("ukernels")
    yield Default()


def _of_rows(m: int, n: int) -> Iterator[Configuration]:
    """Of a few rows: as many columns at once as registers hold."""
    if m == 1 and n % 64 == 0:
        yield CpuTiles((8, 64), (1, 64, 4))
    elif m % 2 == 0:
        yield from also_unpeeled(CpuTiles((m, 64), (2, 32, 1), peel=True))
    else:
        yield from also_unpeeled(CpuTiles((8, 64), (1, 32, 4), peel=True))


def _of_convolution(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    is_single = geometry.variant == "grouped" and geometry.channels_per_group == 1
    if has_few_rows_of_taps(geometry):
        yield Formed("kn2row", Flow("data_tiling"))
    if is_single and geometry.mode != "input_backward":
        yield Formed("im2col_t")
    if geometry.variant != "dense" or has_many_phases(geometry):
        return
    if geometry.mode == "weight_backward" and geometry.filters < _COLUMNS:
        return
    if geometry.mode == "forward" and geometry.filters <= _FEW_FILTERS:
        yield Formed("permuted")
    if geometry.mode == "forward" and geometry.is_channels_last and max(geometry.filter_size) == 1:
        yield Formed("im2col", Flow("data_tiling"))
    if geometry.mode == "input_backward" and max(geometry.stride) == 1 and geometry.channels % _COLUMNS == 0:
        yield from with_tiles("im2col", _TILES)
    yield from with_tiles("im2col_t", _LARGE)
    yield Formed("im2col_t")

"""Configurations of operations whose extents fill no vectors, for which the compiler's default may be scalar code.

Microkernels pad the last tile of each axis; peeled tiles compute the remainder with narrower vectors.
The rules follow measurements of some 700 shapes, which `docs/untuned.md` lists.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed
from dispatch_profiler.configurations.forms.convolutions import phase_groups
from dispatch_profiler.configurations.splits import longest_sum
from dispatch_profiler.operations import ConvolutionGeometry, ElementType, Operation, ProductGeometry

#: Elements of a vector of 512 bits in f32; other numbers of columns are not vectorized as a whole.
VECTOR = 16
#: Half of a vector, with which the compiler's default computes whole columns.
_HALF_VECTOR = 8
#: Multiplications up to which the default is fast enough, because a launch takes longer.
FEW_MULTIPLICATIONS = 2**12
#: Filters that are a multiple are divided among narrower vectors.
_NARROW_VECTOR = 4
_PEELED = CpuTiles((32, 64), (4, 16, 1), peel=True)
_PEELED_LARGE = CpuTiles((64, 128), (8, 32, 4), peel=True)
#: Sums of at most this many products take less time than packing for microkernels.
_SHORT_SUM = 16
#: Sums so short that reading and writing take all the time.
_SHORTEST_SUM = 4
#: Microkernels read and write more elements than this in packing, for each product that is added.
_PACKED_PER_PRODUCT = 1 / 40
#: Tiles for products of small matrices; for few filters; for rows one by one; and for fewer columns than a vector has.
_PEELED_SMALL = CpuTiles((32, 32), (8, 16, 1), peel=True)
_PEELED_SHORT = CpuTiles((16, 32), (4, 16, 4), peel=True)
_PEELED_ROWS = CpuTiles((8, 64), (1, 16, 1), peel=True)
_PEELED_COLUMNS = CpuTiles((64, 8), (8, 8, 4), peel=True)
_MANY_STEPS = 32
#: Rows and steps from which on microkernels are faster than the default, also for a few columns.
_MANY_ROWS = 128
#: Rows for which permuting rhs takes too long.
_SHORT_ROWS = 64
#: Rows that are computed one by one.
_FEW_ROWS = 3
#: Channels that fill large tiles.
_MANY_CHANNELS = 32
#: With fewer filters than this, the compiler's own loops over pixels are faster than any packed product.
_FEW_FILTERS = 16
#: With this many filters or fewer, the compiler's own loops over taps are faster than columns for filters' gradients.
_SINGLE_FILTERS = 2
#: Channels that columns of pixels, unlike the pixels themselves, make long enough sums of; and of gradients, too few for
#: peeled tiles.
_SHORT_PIXELS = _FEW_CHANNELS = 16
#: Filters of a convolution, or channels of a gradient, whose taps are few enough rows of one product, and how many
#: times as many terms each must add if these are the last axis, as of columns.
_FEW_OF_TAPS, _TERMS_OF_COLUMNS = 6, 12
#: Most elements of an axis in a workgroup's part of a convolution, and a number of pixels at once that is slow.
_WORKGROUP, _FEW_PIXELS = 64, 3
#: This many large tiles keep many cores busy.
_MANY_TILES = 16
#: Windows that are further apart share few pixels, so that a convolution gains nothing over a product.
_SHORT_STRIDE = 3
#: More phases take long to compile one by one.
_MANY_PHASES = 16
_OF_PHASES: tuple[Configuration, ...] = (_PEELED, _PEELED_LARGE, Flow("ukernels"), Default())


def unaligned_configurations(operation: Operation) -> Iterator[Configuration]:
    """Configurations that are faster than the usual ones, the fastest first; `Default()` if the default is.

    Empty for operations that fill vectors.
    """
    geometry, product = operation.convolution, operation.product
    if geometry is not None and _has_phases(geometry):
        yield from _of_phases(geometry)
    if product is not None and not product.is_batched:
        if product.rhs_layout == "t" and product.n % _WORKGROUP == 0:
            yield from _of_whole_rows(product, operation.element_type)
        yield from _of_few(product)
    if operation.flops // 2 <= FEW_MULTIPLICATIONS:
        return
    if geometry is not None:
        yield from _of_convolution(geometry, operation.element_type)
    elif product is not None:
        if operation.element_type.name == "f32":
            yield from _of_whole_vectors(product)
        yield from _of_product(product)


# -- products ------------------------------------------------------------------------------------------


def _of_few(product: ProductGeometry) -> Iterator[Configuration]:
    """Tiles as narrow as the result: all of its few columns, or rows, are computed at once, many steps of a sum each."""
    m, n, k = product.m, product.n, product.k
    if k < VECTOR:
        if 1 < m <= (_FEW_ROWS if product.rhs_layout == "t" else 2) and n > VECTOR and n % VECTOR != 0:
            yield _PEELED_ROWS
    elif n < VECTOR and m > _HALF_VECTOR:
        if not _are_columns_of_the_compiler(product):
            yield from also_unpeeled(CpuTiles((32, n), (8, n, 16), peel=True))
        elif n > 1:
            yield Default()
    elif 1 < m <= _HALF_VECTOR and n >= VECTOR and not _are_rows_of_the_compiler(product):
        yield from also_unpeeled(CpuTiles((m, 64), (m, 16, 16), peel=True))


def _of_whole_rows(product: ProductGeometry, type_: ElementType) -> Iterator[Configuration]:
    """Of a few rows, and rhs stored as k x n: as many columns at once as registers hold, so that rhs is read in order."""
    if product.m == 1 and product.k >= VECTOR:
        yield CpuTiles((8, 64), (1, 64, 4))
    elif type_.name == "f32" and product.k >= _MANY_ROWS and product.m in (2, 4):
        yield CpuTiles((product.m, 64), (product.m, 128 // product.m, 1))


def _are_columns_of_the_compiler(product: ProductGeometry) -> bool:
    """Whether the compiler's own tiles of a few columns, or of sums of whole vectors, are as fast."""
    if product.n == 1:
        return product.k % VECTOR == 0
    return _HALF_VECTOR % product.n == 0 and product.m % 2 == 0


def _are_rows_of_the_compiler(product: ProductGeometry) -> bool:
    """The same for a whole tile of rows or less, if rhs is stored as k x n. Columns are whole vectors."""
    if product.n % VECTOR:
        return False
    return product.m % _NARROW_VECTOR == 0 or (product.m < _NARROW_VECTOR and product.rhs_layout == "t")


def _of_product(product: ProductGeometry) -> Iterator[Configuration]:
    m, n, k = product.m, product.n, product.k
    if n == 1:
        return
    if n % VECTOR == 0 and (m % _NARROW_VECTOR == 0 or m <= _NARROW_VECTOR):
        return
    has_few_columns = n < VECTOR and product.rhs_layout == "t" and m > 1 and min(m, k) < _MANY_ROWS
    is_narrow = n < _HALF_VECTOR and product.rhs_layout == "n"
    if n in (2, _HALF_VECTOR) or has_few_columns or is_narrow:
        yield Default()
    if m == 1 and product.rhs_layout == "t":
        yield _PEELED_ROWS
    if not product.is_batched and m > 1:
        yield from _of_matrices(product)
    if product.rhs_layout == "t" and k <= _SHORTEST_SUM:
        yield _PEELED_ROWS
    if product.rhs_layout == "t" or k <= _SHORT_SUM:
        yield _PEELED
    yield Flow("ukernels")


def _of_whole_vectors(product: ProductGeometry) -> Iterator[Configuration]:
    """Configurations with rhs in layout n, where no tiles of a permuted product fit. Only f32 was measured."""
    m, n = product.m, product.n
    if product.is_batched or product.rhs_layout != "n" or m <= _NARROW_VECTOR:
        return
    if m % _NARROW_VECTOR or n % VECTOR:
        return
    if not is_small(product):
        yield Flow("ukernels")
    elif m < _SHORT_ROWS:
        yield _PEELED_COLUMNS


def _of_matrices(product: ProductGeometry) -> Iterator[Configuration]:
    m, n, k = product.m, product.n, product.k
    if product.rhs_layout == "n":
        if _HALF_VECTOR < n < VECTOR:
            yield _PEELED_COLUMNS
        if k <= _SHORTEST_SUM:
            yield Formed("permuted", _PEELED_ROWS)
        if is_small(product) and m < _SHORT_ROWS:
            yield _PEELED_COLUMNS
        if is_small(product):
            yield Formed("permuted", _PEELED)
    elif is_small(product) and k >= _MANY_STEPS:
        rows, columns = _PEELED.distribution
        yield _PEELED_SMALL if m <= rows or n <= columns else _PEELED
    elif not is_small(product) and n % _NARROW_VECTOR == 0:
        yield _PEELED_LARGE


def is_small(product: ProductGeometry) -> bool:
    """Whether packing takes a large part of the time of microkernels."""
    return 1 / product.m + 1 / product.n + 1 / product.k > _PACKED_PER_PRODUCT


# -- convolutions --------------------------------------------------------------------------------------


def _has_phases(geometry: ConvolutionGeometry) -> bool:
    return geometry.mode == "input_backward" and max(geometry.stride) > 1


def has_many_phases(geometry: ConvolutionGeometry) -> bool:
    """Whether the phases of an input's gradient are so many that each as a kernel would take long to compile."""
    return _has_phases(geometry) and math.prod(geometry.stride) > _MANY_PHASES


def _of_phases(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    """One product of all phases, if they would fill no vectors one by one, or take long to compile."""
    is_unaligned = geometry.variant == "dense" and geometry.channels % VECTOR != 0
    has_many = has_many_phases(geometry)
    if geometry.groups > 1 and geometry.channels_per_group == 1:
        yield Formed("shuffled")
    groups = itertools.product(*map(phase_groups, geometry.filter_size, geometry.stride))
    columns = min(geometry.channels * math.prod(each.count for each in group) for group in groups)
    if has_many or (is_unaligned and columns >= VECTOR):
        yield from (Formed("shuffled", inner) for inner in _OF_PHASES)
    elif is_unaligned and not geometry.is_channels_last:
        yield Formed("im2col_t", _PEELED)


def _of_convolution(geometry: ConvolutionGeometry, type_: ElementType) -> Iterator[Configuration]:
    if has_few_rows_of_taps(geometry):
        yield Formed("kn2row", Flow("data_tiling") if geometry.is_channels_last else _PEELED)
    is_single = geometry.variant == "grouped" and geometry.channels_per_group == 1
    if is_single and geometry.mode != "input_backward":
        yield Formed("im2col")
    is_depthwise = geometry.variant == "depthwise" and geometry.mode == "forward"
    if is_depthwise and geometry.channels % _NARROW_VECTOR:
        yield Formed("permuted")
    if geometry.variant != "dense":
        return
    if geometry.mode == "forward" and geometry.filters % _NARROW_VECTOR:
        yield from of_filters(geometry)
    if geometry.mode == "input_backward" and geometry.channels % _NARROW_VECTOR:
        yield from of_channels(geometry)
    if geometry.mode == "weight_backward":
        yield from _of_filter_gradient(geometry, type_)


def has_few_rows_of_taps(geometry: ConvolutionGeometry) -> bool:
    """Whether `kn2row` is fast: few filters (channels of a gradient), each a long sum, of nearly all pixels.

    With groups, only for one filter (channel) of each.
    """
    if geometry.mode == "weight_backward" or max(geometry.stride) > 1:
        return False
    terms, filters = geometry.channels_per_group, geometry.filters_per_group
    read, made = math.prod(geometry.size), math.prod(geometry.output_size)
    if geometry.mode == "input_backward":
        terms, filters, read, made = filters, terms, made, read
    if filters > (1 if geometry.groups > 1 else _FEW_OF_TAPS) or 2 * made < read:
        return False
    return geometry.groups > 1 or not geometry.is_channels_last or terms >= _TERMS_OF_COLUMNS * filters


def are_tiled(channels: int, row: int) -> bool:
    """Whether the compiler finds tiles for a convolution with so many channels of the result and pixels in a row.

    The tiles of IREE 3.13 divide a workgroup's part: 34 of 170 channels, hence 2 at once, and 57 of 171, hence 3.
    """
    return _tile(channels, VECTOR) >= _HALF_VECTOR and _tile(row, _HALF_VECTOR) >= _FEW_PIXELS


def _tile(extent: int, most: int) -> int:
    """Elements of an axis of a convolution that the compiler computes at once, at most `most`."""
    return _largest_divisor(_largest_divisor(extent, _WORKGROUP), most)


def _largest_divisor(number: int, most: int) -> int:
    return next(each for each in range(min(number, most), 0, -1) if number % each == 0)


def of_filters(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    """Forms of a forward convolution whose filters or pixels no tile divides, the fastest first."""
    has_taps = max(geometry.filter_size) > 1
    overlaps = has_taps and max(geometry.stride) <= min(_SHORT_STRIDE, *geometry.filter_size)
    if overlaps and geometry.filters < _FEW_FILTERS:
        yield Formed("permuted")
    if geometry.is_channels_last and (not has_taps or geometry.channels < _SHORT_PIXELS):
        yield Formed("im2col", Flow("data_tiling"))
    if overlaps and are_tiled(geometry.filters, geometry.output_size[-1]):
        yield Formed("permuted")
    pixels = geometry.batch * math.prod(geometry.output_size)
    yield from _with_columns(geometry.filters, pixels)


def of_channels(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    """Likewise of an input's gradient with stride 1, whose channels or pixels no tile divides."""
    if max(geometry.stride) > 1:
        return
    has_taps = max(geometry.filter_size) > 1
    if geometry.channels < _FEW_CHANNELS and has_taps and geometry.filters < _NARROW_VECTOR:
        yield Formed("im2col", Flow("data_tiling")) if geometry.is_channels_last else Formed("im2col_t")
    elif has_taps and (geometry.channels < _FEW_CHANNELS or are_tiled(geometry.channels, geometry.size[-1])):
        yield Formed("permuted")
    elif geometry.channels >= _FEW_CHANNELS:
        yield from with_tiles("im2col", _PEELED_LARGE if geometry.channels >= _MANY_CHANNELS else _PEELED)
        yield from with_tiles("im2col_t", _PEELED_LARGE)


def _by_taps(geometry: ConvolutionGeometry, type_: ElementType) -> Iterator[Configuration]:
    """Of a few filters' gradient, if most pixels of the padded image are pixels of the output."""
    read, made = (geometry.batch * math.prod(each) for each in (geometry.padded_size, geometry.output_size))
    if read > 2 * made:
        return
    if max(geometry.filter_size) > 1 and read > longest_sum(type_):
        # Slices begin at the pixel of a tap, so they are copied, which packing does besides.
        yield Formed("taps", Flow("data_tiling"))
    yield Formed("taps", _PEELED_ROWS if geometry.filters < _NARROW_VECTOR else _PEELED_SHORT)


def with_tiles(form: str, tiles: CpuTiles) -> Iterator[Configuration]:
    """`form` with peeled `tiles`."""
    yield from (Formed(form, each) for each in also_unpeeled(tiles))


def also_unpeeled(tiles: CpuTiles) -> Iterator[CpuTiles]:
    """Peeled `tiles`, which are invalid where nothing is left to peel, and the same tiles valid."""
    yield tiles
    yield replace(tiles, peel=False)


def _with_columns(rows: int, columns: int) -> Iterator[Configuration]:
    """`im2col_t`, whose product has so many rows and columns: in large tiles if there are enough for all cores."""
    height, width = _PEELED_LARGE.distribution
    are_many = rows * columns >= _MANY_TILES * height * width
    yield from with_tiles("im2col_t", _PEELED_LARGE if are_many else _PEELED_SHORT)


def _of_filter_gradient(geometry: ConvolutionGeometry, type_: ElementType) -> Iterator[Configuration]:
    filters, is_odd = geometry.filters, geometry.filters % _NARROW_VECTOR != 0
    if filters < _FEW_FILTERS and geometry.channels > _NARROW_VECTOR:
        yield from _by_taps(geometry, type_)
    if filters <= _SINGLE_FILTERS:
        yield Default()
    elif geometry.channels < _NARROW_VECTOR:
        yield Formed("im2col_t", _PEELED_SHORT) if is_odd else Formed("im2col_t")
    elif filters < _FEW_FILTERS:
        is_last = geometry.is_channels_last
        yield Formed("im2col", Flow("data_tiling")) if is_last else Formed("im2col_t", _PEELED_SHORT)
    if is_odd:
        taps = math.prod(geometry.filter_size) * geometry.channels
        yield from _with_columns(filters, taps)

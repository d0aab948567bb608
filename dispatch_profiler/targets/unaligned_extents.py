"""Configurations of operations whose extents fill no vectors, for which the compiler's default may be scalar code.

Times relative to torch, f32, 16 cores of a Xeon with AVX-512, shapes drawn at random (rhs and filters as named):

    matmul                        default    ukernels    tiles, peeled
    167x1023x253, n x k              35.3        1.95
    85x805x68, n x k                 10.9        3.83
    544x236x457, n x k                8.2        1.72
    126x603x202, n x k                4.2        3.03
    422x131x6, n x k                  5.0                         0.79
    308x178x5, n x k                  3.1                         0.62
    359x747x28, k x n                 5.8        3.28             1.02
    5x294x990, k x n                  5.9                         1.86
    126x37x76, k x n                  1.8                         0.69

Two cores of another Xeon with AVX-512; `short` are tiles of 16 x 32, `rows` of 8 x 64:

    matmul                        default    ukernels    tiles, peeled    short, peeled    rows, peeled
    516x37x145, n x k                18.0        2.23             2.85             2.66             9.3
    199x42x47, n x k                 18.9        1.87             1.00             0.96             7.2
    22x233x83, n x k                 23.3        6.58             5.29             1.57            13.6
    91x59x886, n x k                 26.3        6.63             3.63             2.58             8.3
    89x119x761, n x k               396          2.07             5.66             3.02            24.3
    34x498x89, k x n                 19.1        5.08             2.08             1.37             2.8
    216x215x8, n x k                  1.2        3.26             1.63             1.05             5.9
    954x56x13, k x n                  1.4        5.82             1.07             1.52             2.3
    1x137x708, k x n                  3.0        2.65                                              0.96

    conv2d, forward                               default    im2col_t    im2col_t, data tiling    permuted
    1x32x32x289 3x3 229, hwcf                        35.9                                 2.05
    4x29x29x30 5x5 174, fhwc                         40.4                                 2.9
    1x35x35x133 5x5 50, stride 2, fhwc               10.8                                 2.03        1.49
    1x10x10x137 5x5 267, hwcf                         4.2                                 2.99
    4x47x47x280 1x1 113, stride 2, hwcf              11.6                                 2.14
    1x20x20x113 1x1 137, fhwc                         4.1        1.19
    1x17x17x271 3x3 146, fchw in nchw                18.3                                 1.61
    1x49x49x254 3x3 258, stride 2, fchw in nchw      12.1                                 1.15
    4x49x49x265 1x1 107, fchw in nchw                 4.6                                 0.96

    conv2d, forward, two cores                    default    im2col_t, data tiling    im2col, data tiling    permuted
    2x61x61x4 3x3 65, fhwc                           23.5                     10.0                   2.02        2.60
    8x28x28x12 5x5 55, fhwc                          32.3                     2.47                   2.02        1.71
    1x11x11x66 7x7 17, fhwc                           8.8                     1.51                   1.72       10.3
    1x37x37x186 7x7 1, fhwc                           4.5                     24.2                  24.9         3.26
    1x65x65x11 3x3 2, fchw in nchw                    0.8                     2.43                   3.69        1.32

    conv2d, input_backward                        default    permuted    im2col, peeled    im2col_t, peeled
    1x36x36x99 5x5 294, hwcf                         26.6        3.45              3.25                3.19
    1x18x18x50 5x5 133, stride 2, fhwc               33.8                          3.04                4.45
    4x29x29x174 5x5 30, fhwc                         33.7        4.55                                  5.37
    1x28x28x20 3x3 277, stride 2, hwcf               54.3                          2.23                3.26
    1x25x25x258 3x3 254, stride 2, fchw in nchw      71.1                          1.82                1.44
    1x17x17x146 3x3 271, fchw in nchw                21.5       17.4               3.43                3.60
    4x24x24x113 1x1 280, stride 2, hwcf              36.3                          1.04                1.24
    1x20x20x137 1x1 113, fhwc                         2.4        2.20              0.50                0.85
    4x30x30x104 1x1 14, fhwc                          0.8        0.20                                  1.65

    conv2d, input_backward, two cores                      default    phases    im2col_t    im2col_t, peeled
    2x232x232x18 4x4 173, stride 10, fchw in nchw              616      4.39        1.70                0.70
    1x85x85x3 3x3 87, stride 14, fchw in nchw                   39      0.18        0.31

    groups of one channel, two cores           default    per_group    im2col    im2col_t
    1x63x63x16 7x7 64, fchw in nchw               2.38         3.38      1.29        1.57
    2x44x44x14 3x3 238, weight_backward           2.61                   0.77        1.43

Microkernels pad the last tile of each axis; peeled tiles compute what remains with narrower vectors.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatch_profiler.configurations import Configuration, CpuTiles, Flow, Formed
from dispatch_profiler.operations import ConvolutionGeometry, Operation, ProductGeometry

#: Elements of a vector of 512 bits in f32; columns that are no multiple are not vectorized as a whole.
_VECTOR = 16
#: Multiplications up to which the default is fast enough, because a launch takes longer.
_FEW_MULTIPLICATIONS = 2**15
#: Filters that are a multiple are divided among narrower vectors.
_NARROW_VECTOR = 4
#: Channels of a gradient that are too few for peeled tiles.
_FEW_CHANNELS = 32
_PEELED = CpuTiles((32, 64), (4, 16, 1), peel=True)
_PEELED_LARGE = CpuTiles((64, 128), (8, 32, 4), peel=True)
#: Sums of at most so many products, which packing for microkernels takes longer than.
_SHORT_SUM = 16
#: Microkernels read and write more elements than this in packing, for each product that is added.
_PACKED_PER_PRODUCT = 1 / 40
#: Tiles for products of small matrices, whose steps of 4 products take long sums or multiples; and for a single row.
_PEELED_SHORT = CpuTiles((16, 32), (4, 16, 4), peel=True)
_PEELED_ROWS = CpuTiles((8, 64), (1, 16, 1), peel=True)
_MANY_STEPS = 32
#: With fewer filters than this, the compiler's own loops over pixels are faster than any packed product.
_SINGLE_FILTERS = 4
#: Channels that columns of pixels, unlike the pixels themselves, make long enough sums of.
_SHORT_PIXELS = 16


def unaligned_configurations(operation: Operation) -> Iterator[Configuration]:
    """What is faster than the compiler's default, the fastest first; nothing for operations that fill vectors."""
    geometry, product = operation.convolution, operation.product
    if operation.flops // 2 <= _FEW_MULTIPLICATIONS:
        return
    if geometry is not None:
        yield from _of_convolution(geometry)
    elif product is not None:
        yield from _of_product(product)


def _of_product(product: ProductGeometry) -> Iterator[Configuration]:
    m, n, k = product.m, product.n, product.k
    if n == 1:  # A dot product of each row, which the compiler vectorizes along the sum.
        return
    if n % _VECTOR == 0 and (m % _NARROW_VECTOR == 0 or m == 1):
        return
    if m == 1 and product.rhs_layout == "t":
        yield _PEELED_ROWS
    is_small = 1 / m + 1 / n + 1 / k > _PACKED_PER_PRODUCT
    if (
        is_small
        and m > 1
        and not product.is_batched
        and (k >= _MANY_STEPS or k % _PEELED_SHORT.vector[2] == 0)
    ):
        yield _PEELED_SHORT
    if product.rhs_layout == "t" or k <= _SHORT_SUM:
        yield _PEELED
    yield Flow("ukernels")


def _of_convolution(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    if (
        geometry.variant == "grouped"
        and geometry.channels_per_group == 1
        and geometry.mode != "input_backward"
    ):
        yield Formed("im2col")
    if geometry.variant != "dense":
        return
    if geometry.mode == "forward" and geometry.filters % _NARROW_VECTOR:
        yield from _of_odd_filters(geometry)
    is_narrow = geometry.channels < _FEW_CHANNELS
    if geometry.mode == "input_backward" and geometry.channels % _NARROW_VECTOR:
        if not is_narrow:
            yield Formed("im2col", _PEELED_LARGE)
            yield Formed("im2col_t", _PEELED_LARGE)
        elif max(geometry.stride) > 1:
            yield Formed("im2col_t", _PEELED)
            yield Formed("phases")


def _of_odd_filters(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    if geometry.filters < _SINGLE_FILTERS:
        return
    if geometry.channels < _SHORT_PIXELS and max(geometry.filter_size) > 1 and geometry.is_channels_last:
        yield Formed("im2col", Flow("data_tiling"))
    yield Formed("im2col_t", Flow("data_tiling"))

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
    if product.n % _VECTOR == 0 and (product.m % _NARROW_VECTOR == 0 or product.m == 1):
        return
    if product.rhs_layout == "t" or product.k <= _SHORT_SUM:
        yield _PEELED
    yield Flow("ukernels")


def _of_convolution(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    if geometry.variant != "dense":
        return
    if geometry.mode == "forward" and geometry.filters % _NARROW_VECTOR:
        yield Formed("im2col_t", Flow("data_tiling"))
    is_narrow = geometry.channels < _FEW_CHANNELS
    if geometry.mode == "input_backward" and geometry.channels % _NARROW_VECTOR and not is_narrow:
        yield Formed("im2col", _PEELED_LARGE)
        yield Formed("im2col_t", _PEELED_LARGE)

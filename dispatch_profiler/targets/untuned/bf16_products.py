"""Configurations of bf16, for CPUs with and without instructions that multiply pairs of bf16.

IREE 3.13 multiplies bf16 with the instructions of AVX-512-BF16 in data tiling and microkernels only. Where a CPU lacks
these instructions, data tiling and microkernels convert each element, and are the slowest of all. Time relative to torch,
two cores of an EPYC with AVX-512-BF16; without them, kernels for x86-64-v4 on the same machine:

                                              with                                       without
    matmul                        default    data tiling    tiles, peeled    default    data tiling
    256x256x256, n x k               4.43           0.91                        3.87            141
    256x256x256, k x n               3.36           0.97                        3.34            219
    128x768x768, n x k               5.19           1.04                        4.38            214
    16x256x512, k x n                2.16           0.54                        1.12             80
    64x100x256, n x k                4.65           0.55
    4x256x128, k x n                 0.14           1.46
    260x503x410, k x n               21.8           1.41             3.95
    43x439x68, n x k                                0.66             4.38       15.2             60
    407x27x817, n x k                               2.23             3.48
    53x1028x55, k x n                6.57           0.98             3.22
    733x96x75, n x k                                0.85             3.29
    25x70x55, k x n                  0.20           0.22             0.15
    12 of 128x64x128, n x k          4.48           1.90
    8 of 197x64x197, k x n           38.1           1.32             3.01

                                                 with                                           without
    convolution                      permuted    im2col, data tiling    im2col_t, data tiling    permuted    data tiling
    1x28x28x64 3x3 64, nchw              2.16                   1.75                     2.07        1.87            103
    1x28x28x64 3x3 64, nhwc              2.74                   2.71                     1.95
    1x14x14x256 1x1 128, nhwc            1.96                   1.23                     1.23        1.64             79
    1x64x64x60 3x3 172, nchw             31.8                   1.47                     1.15
    1x64x64x6 7x7 168, stride 2, nchw    1.99                   0.90                     0.83
    input_backward
    1x28x28x64 3x3 64, nchw              2.51                   1.51                     1.52        2.10            115
    1x28x28x64 3x3 64, nhwc              2.42                   1.73                     2.07
    1x14x14x256 1x1 128, nhwc            1.29                   0.81                     0.89        1.08             65
    2x20x20x30 5x5 50, nchw              2.53                   2.11                     1.86
    weight_backward                      taps
    1x28x28x64 3x3 64, nhwc              1.43                   1.33                     1.02        1.74            134
    1x14x14x256 1x1 128, nhwc            1.00                   0.85                     0.75        0.90             56
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatch_profiler.configurations import Configuration, Flow, Formed, Limits
from dispatch_profiler.operations import ConvolutionGeometry, Operation, ProductGeometry
from dispatch_profiler.targets.untuned.unaligned_extents import has_few_rows_of_taps

#: Flows that multiply bf16 in pairs.
_DATA_TILING, _MICROKERNELS = _OF_PAIRS = Flow("data_tiling"), Flow("ukernels")
#: Rows for which tiles of the same height are faster, columns likewise, and products so small that any tiles are.
_FEW_ROWS, _FEW_COLUMNS, _FEW_MULTIPLICATIONS = 8, 15, 2**17


def bf16_configurations(operation: Operation, limits: Limits) -> Iterator[Configuration]:
    """Configurations that are faster than the usual ones for an operation of bf16; empty for other operations."""
    if operation.element_type.name != "bf16" or not limits.multiplies_bf16:
        return
    geometry, product = operation.convolution, operation.product
    if geometry is not None and geometry.variant == "dense":
        yield from _of_convolution(geometry)
    elif product is not None and product.n == 1:
        yield _MICROKERNELS
    elif product is not None and _is_large(product) and operation.flops // 2 > _FEW_MULTIPLICATIONS:
        yield _DATA_TILING


def converts_bf16(configuration: Configuration, operation: Operation, limits: Limits) -> bool:
    """Whether `configuration` would convert elements of bf16 one by one, without instructions that multiply them."""
    if operation.element_type.name != "bf16" or limits.multiplies_bf16:
        return False
    return getattr(configuration, "inner", configuration) in _OF_PAIRS


def _is_large(product: ProductGeometry) -> bool:
    return product.m > _FEW_ROWS and product.n > _FEW_COLUMNS


def _of_convolution(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    if has_few_rows_of_taps(geometry):
        return
    is_columns = geometry.mode == "forward" and geometry.is_channels_last and max(geometry.filter_size) == 1
    if geometry.mode != "input_backward" and not is_columns:
        yield Formed("im2col_t", _DATA_TILING)
    elif max(geometry.stride) == 1 or is_columns:
        yield Formed("im2col", _DATA_TILING)

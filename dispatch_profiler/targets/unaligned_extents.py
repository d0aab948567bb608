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

Forms and tiles of 142 and of 121 other shapes, two cores of a third Xeon with AVX-512; the configurations that rules
choose here, and the fastest of some 30 others where these took longer than torch:

                                                                  chosen before      chosen now
    matmul 2x263x637, k x n                                                6.51     1.54  rows, peeled
    matmul 2x53x119, k x n                                                 2.59     0.62  rows, peeled
    matmul 42x2x398, k x n                                                 2.79     0.60  default
    matmul 544x2x41, n x k                                                 1.61     0.53  default
    matmul 96x8x738, n x k                                                 1.45     0.75  default
    matmul 27x14x101, n x k                                                2.87     0.81  columns, peeled
    matmul 32x974x2, n x k                                                 3.23     1.46  permuted, rows
    matmul 331x193x1, n x k                                                3.62     2.18  permuted, rows
    matmul 361x40x36, n x k                                                1.67     1.29  permuted, peeled
    matmul 156x676x447, k x n                                              2.56     1.78  large, peeled
    4x101x101x30 3x3 15, fchw in nchw                                     34.3      3.38  permuted
    4x44x44x62 3x3 6, fhwc                                                 8.56     1.74  permuted
    1x6x6x206 3x3 3, stride 2, fhwc                                        6.20     1.03  permuted
    2x14x14x199 3x3 7, stride 3, fhwc                                      2.21     0.60  permuted
    1x252x252x265 4x4 7, stride 25, fchw in nchw                           0.92     1.82 if permuted
    2x32x32x69 1x1 34, fhwc                                                1.79     1.10  im2col, data tiling
    input_backward 8x70x70x29 5x5 13, fhwc                                17.5      2.62  im2col, peeled
    input_backward 1x8x8x4 3x3 73, fhwc                                   10.4      0.56  permuted
    weight_backward 1x54x54x103 7x7 25, stride 3, fhwc                     8.48     1.97  im2col, data tiling
    weight_backward 1x85x85x151 21x21 15, stride 21, fhwc                  1.40     0.46  im2col, data tiling
    weight_backward 1x20x20x3 3x3 39, fchw in nchw                         2.61     0.35  im2col_t, short
    weight_backward 1x19x19x240 4x4 226, fhwc                              3.86     1.07  im2col_t, data tiling
    weight_backward 2x49x49x13 7x7 1, stride 3, fchw in nchw               1.82     1.08  default
    weight_backward 1x3x3x141 3x3 1, fhwc                                  1.78     0.62  taps, rows

    matmul, two cores of an EPYC with AVX-512    ukernels    peeled    large    short    small    permuted, peeled    default
    100x200x50, k x n                                0.89      2.80     3.26     0.55     0.65                          4.58
    64x300x100, k x n                                0.64      0.45     1.20     0.49     0.45                          1.61
    33x500x90, k x n                                 1.30      1.13     1.39     2.04     1.03                          5.53
    60x300x100, n x k                                2.33      3.01     2.73     3.14     1.68                1.76      2.74
    150x90x60, n x k                                           2.42     1.71     1.05     1.55                0.79      4.55
    281x278x30, n x k                                3.74                                 2.55                0.73
    40x7x500, k x n                                  0.56                                                               0.15
    100x12x300, k x n                                1.32                                                               0.39
    400x10x60, k x n                                 0.42                                                               0.19
    200x5x480, k x n                                 0.32                                                               0.77

    conv2d, two cores of an EPYC with AVX-512             chosen before      chosen now
    87x87x7 7x7, depthwise, fhwc                                   5.21      2.24 permuted
    input_backward 4x64x64x6 5x5 1, fhwc                           6.23      1.43 im2col, data tiling
    weight_backward 1x17x17x1 3x3 216, fchw in nchw                3.29      0.20 im2col_t
    weight_backward 2x15x15x147 5x5 4, fchw in nchw                2.26      0.37 taps, short
    weight_backward 2x31x31x126 5x5 2, fhwc                        5.14      0.51 taps, rows
    weight_backward 8x11x11x110 5x5 6, fhwc                        2.31      1.15 taps, short

    input_backward, two cores of an EPYC with AVX-512      phases    im2col, peeled    shuffled    peeled    ukernels
    1x18x18x3 8x8 18, stride 8, fchw in nchw                 0.72              1.13        0.04      0.04        0.05
    2x19x19x11 10x10 37, stride 9, fchw in nchw              1.43                          1.31                  1.24
    8x48x48x7 5x5 5, stride 2, fhwc                          0.59              1.40        0.71      0.69        0.85
    1x50x50x15 5x5 280, stride 5, fhwc                       1.14              1.31        0.75      0.69        0.73
    2x38x38x136 4x4 21, stride 4, fhwc                       1.77                          1.16                  1.12
    2x43x43x231 4x4 143, stride 3, fhwc                      3.21              2.65        3.83      1.40        1.37
    1x16x16x79 4x4 107, stride 3, fchw in nchw               3.63              1.30        2.84      1.54        1.65
    1x48x48x17 6x6 9, stride 6, fchw in nchw                 1.80              1.27        0.82      0.34        0.66
    1x8x8x98 4x4 29, stride 2, fchw in nchw                  0.86              0.87        1.37      0.63        0.44
    1x138x138x26 23x23 1, stride 23, fhwc                 > 60 s to compile                0.43      0.44        0.49
    1x89x89x10 23x23 1, stride 22, fchw in nchw           > 60 s to compile                0.37                  0.43

139 more shapes of few filters or channels, of one channel per group, and of products, two cores of the first Xeon:

    few filters, stride 1                              chosen before    kn2row, peeled    kn2row, data tiling
    2x22x22x256 7x7 3, fhwc                                     3.75              1.92                   0.56
    1x26x26x180 5x5 1, fhwc                                     2.61              0.61                   0.34
    4x53x53x37 3x3 1, fhwc                                      2.58                                     0.75
    2x64x64x219 3x3 2, fhwc                                     1.88              0.83                   0.64
    1x10x10x82 5x5 5, fhwc                                      0.73              1.37                   0.81
    1x160x11x11 3x3 4, nchw                                     2.20                                     0.49
    4x47x20x20 5x5 1, nchw                                      2.15              0.29                   0.32
    2x11x31x31 7x7 1, nchw                                      1.89              0.56                   0.64
    1x14x13x13 5x5 4, nchw                                      0.57              0.19                   0.24
    4x8x8x208 7x7 5 to 2x2 pixels, fhwc                         1.57      0.64 im2col_t

    input_backward, few channels, stride 1             chosen before    kn2row, peeled    kn2row, data tiling
    1x2x2x53 7x7 3, fhwc                                        12.4              1.97                   1.43
    4x64x64x44 3x3 3, fhwc                                      6.52              1.72                   1.32
    1x53x53x208 5x5 2, fhwc                                     2.47              0.89                   0.53
    1x55x55x12 7x7 3, fhwc                                      1.25                                     2.20
    4x12x12x15 5x5 2, fhwc                                      0.72              1.14                   1.12
    1x209x57x57 3x3 4, nchw                                     12.1              2.03                   1.76
    4x28x37x37 7x7 2, nchw                                      4.77              0.54
    1x60x20x20 5x5 1, nchw                                      1.58              0.12                   0.14
    1x126x18x18 7x7 7, 7 groups, nchw                           7.24              0.80                   1.01
    1x38x38x455 5x5 13, 13 groups, fhwc                         3.20              0.73                   0.69
    4x55x55x100 7x7 30, 10 groups, fhwc                         1.61              12.6

    input_backward, one channel per group, strided     chosen before    shuffled
    4x200x7x7 3x3 200, stride 3, nchw                           4.65        1.71
    4x87x8x8 3x3 29, stride 3, nchw                             1.85        0.35
    1x8x8x127 5x5 127, stride 2, fhwc                           10.9        5.83
    1x128x7x7 7x7 128, stride 3, nchw                           2.98        3.24

    matmul, k x n                                      peeled      rows
    130x95x3                                             3.19      1.58
    936x325x3                                            3.43      3.20
    8x460x1                                              2.24      1.92

Some 160 more, two cores of two Xeons with AVX-512. Of 200 shapes that had no part in them, the rules that follow changed
57, which are 1.29 times as fast on average:

    forward, stride 1                           permuted    im2col_t, data tiling    large, peeled    short, peeled
    1x57x57x64 3x3 64, nchw                         1.13                     1.68             1.73             1.79
    1x64x64x48 3x3 42, nchw                         1.61                     2.36             2.06             2.90
    2x80x80x20 5x5 30, nchw                         0.60                     2.75             2.44             2.58
    1x19x19x256 3x3 256, nchw                       3.62                     1.48             1.88             1.52
    8x19x19x64 3x3 64, nchw                         3.66                     1.94             2.04             1.74
    1x40x40x64 3x3 68, nchw                         3.65                     1.90             1.25
    1x40x40x100 3x3 41, nchw                       10.5                      1.78             1.73             1.66
    1x56x56x50 3x3 127, nhwc                       13.1                      1.75             1.55             1.65
    8x14x14x49 7x7 61, nchw                                                  2.36             1.57             1.50
    2x189x189x13 22x22 11, stride 11, nhwc         20.9                      5.76             4.58             4.12

    weight_backward                             data tiling    large, peeled    short, peeled
    im2col_t, 1x77x77x190 14x14 18, nhwc               1.35             0.93             1.25
    im2col_t, 8x77x77x87 1x1 35, nhwc                  1.69             1.19             0.98
    taps, 2x31x31x126 5x5 2, nhwc                      1.58                              6.47
    taps, 1x27x27x60 3x3 12, nchw                      1.38                              0.65

    matmul, n x k        default    ukernels    permuted, peeled    columns, peeled    short, peeled
    52x256x111              4.14        1.07                                   0.81             1.24
    43x439x68                           2.26                3.06               0.65             2.04
    33x700x210                          1.46                1.84               1.39             1.91
    98x51x290                           0.89                1.04               0.79             1.04
    150x90x60                           1.04                0.87               2.84             1.13
    361x40x36                           1.32                0.62               0.74             1.12
    176x5x908               0.42        1.67

Of 45 more, two cores of an EPYC with AVX-512; in parentheses the filters and pixels that the compiler computes at once:

    forward, stride 1, nchw                permuted    im2col_t, data tiling    large, peeled    short, peeled
    1x64x64x60 3x3 165  (11, 8)                0.94                     1.01             0.84             1.64
    1x64x64x60 3x3 168  (14, 8)                0.72                     0.96
    1x64x64x60 3x3 170  (2, 8)                 3.33                     1.03             0.75             1.90
    1x64x64x60 3x3 171  (3, 8)                 2.13                     0.91             0.74             1.55
    1x64x64x60 3x3 172  (4, 8)                 7.66                     1.03             1.11
    1x32x32x6 7x7 171, stride 2  (3, 8)        2.85                     1.07             1.15             2.02
    1x40x40x60 3x3 187  (1, 8)                 9.48                     1.00             1.00
    8x16x16x128 3x3 96  (16, 8)                1.05                     1.79                              3.02
    1x25x25x60 3x3 64  (16, 5)                 0.98                     1.26             1.90             1.77
    1x27x27x60 3x3 64  (16, 3)                 1.32                     1.76             1.73             1.63
    1x26x26x60 3x3 64  (16, 2)                 1.01                     0.96             1.33             0.94
    1x62x62x60 3x3 64  (16, 2)                 1.79                     2.37             1.43             1.69
    1x31x31x60 3x3 64  (16, 1)                 2.57                     1.58             1.45             1.42

    matmul, one core          default    ukernels    tiles above    as narrow as the result
    219x311x1, n x k             10.7        5.73                                      2.10
    331x193x1, k x n             6.82        5.79                                      1.76
    100x500x1, n x k             1.93        1.88                                      1.77
    600x37x1, n x k              2.16        0.99                                      0.94
    147x311x3, n x k             2.17        2.26                                      0.36
    4001x512x3, n x k            2.84        0.92                                      0.63
    301x99x7, k x n              0.24        0.25                                      0.12
    600x300x15, k x n            0.27        0.95                                      0.31
    2x328x235, n x k             1.36        0.91           2.07                       0.52
    2x4096x1000, n x k           1.23        2.42           3.25                       0.44
    3x328x235, k x n             1.26        0.86           0.94                       0.38
    4x311x147, n x k                                        1.39                       0.54
    5x2048x1003, n x k           1.51        3.16           2.79                       0.43
    6x99x100, n x k              0.99        1.02           3.78                       0.44
    8x400x101, n x k                         0.87           0.66                       0.56
    8x512x777, n x k             1.06        1.11           0.47                       0.86
    1024x1024x1, n x k           1.11        4.82                                      2.65
    1000x512x8, n x k            0.53        0.59                                      0.90
    235x328x2, n x k             1.49        0.68                                      0.72
    42x398x2, n x k              0.55        3.55                                      0.93
    2x398x128, k x n             0.31        1.64                                      0.44
    2x398x128, n x k             0.66        2.20                                      0.32

    matmul, one core          peeled    short    small
    34x89x498, k x n            0.92     0.91     1.16
    52x291x98, k x n            0.72     0.85     1.17
    60x35x462, k x n            0.71     0.78     1.06
    100x77x300, k x n           0.79     0.84     1.14
    84x838x52, k x n            0.68              0.95
    27x719x237, k x n           1.00              0.66
    20x66x512, k x n            0.92              0.69

Microkernels pad the last tile of each axis; peeled tiles compute what remains with narrower vectors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed
from dispatch_profiler.configurations.forms.backward import phase_groups
from dispatch_profiler.configurations.splits import longest_sum
from dispatch_profiler.operations import ConvolutionGeometry, ElementType, Operation, ProductGeometry

#: Elements of a vector of 512 bits in f32; columns that are no multiple are not vectorized as a whole.
VECTOR = 16
#: Half of a vector, which the compiler's default computes whole columns with.
_HALF_VECTOR = 8
#: Multiplications up to which the default is fast enough, because a launch takes longer.
_FEW_MULTIPLICATIONS = 2**12
#: Filters that are a multiple are divided among narrower vectors.
_NARROW_VECTOR = 4
_PEELED = CpuTiles((32, 64), (4, 16, 1), peel=True)
_PEELED_LARGE = CpuTiles((64, 128), (8, 32, 4), peel=True)
#: Sums of at most so many products, which packing for microkernels takes longer than.
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
#: Rows that permuting rhs takes too long for.
_SHORT_ROWS = 64
#: Rows that are computed one by one.
_FEW_ROWS = 3
#: Channels that fill large tiles.
_MANY_CHANNELS = 32
#: With fewer filters than this, the compiler's own loops over pixels are faster than any packed product.
_FEW_FILTERS = 16
#: Of a filter's gradient, so few filters that the compiler's own loops over taps are faster than columns.
_SINGLE_FILTERS = 2
#: Channels that columns of pixels, unlike the pixels themselves, make long enough sums of; and of gradients, too few for
#: peeled tiles.
_SHORT_PIXELS = _FEW_CHANNELS = 16
#: Filters of a convolution, or channels of a gradient, whose taps are few enough rows of one product, and how many
#: times as many terms each must add if these are the last axis, as of columns.
_FEW_OF_TAPS, _TERMS_OF_COLUMNS = 6, 12
#: What a workgroup computes of an axis of a convolution at most, and so few pixels of a row at once that it is slow.
_WORKGROUP, _FEW_PIXELS = 64, 3
#: So many large tiles keep many cores busy.
_MANY_TILES = 16
#: Windows that are further apart share few pixels, which the convolution gains nothing from.
_SHORT_STRIDE = 3
#: More phases take long to compile one by one.
_MANY_PHASES = 16
_OF_PHASES: tuple[Configuration, ...] = (_PEELED, _PEELED_LARGE, Flow("ukernels"), Default())


def unaligned_configurations(operation: Operation) -> Iterator[Configuration]:
    """What is faster than the usual configurations, the fastest first; `Default()` if that is.

    Nothing for operations that fill vectors.
    """
    geometry, product = operation.convolution, operation.product
    if geometry is not None and _has_phases(geometry):
        yield from _of_phases(geometry)
    if product is not None and not product.is_batched:
        yield from _of_few(product)
    if operation.flops // 2 <= _FEW_MULTIPLICATIONS:
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
            yield from _also_unpeeled(CpuTiles((32, n), (8, n, 16), peel=True))
    elif 1 < m <= _HALF_VECTOR and n >= VECTOR and not _are_rows_of_the_compiler(product):
        yield from _also_unpeeled(CpuTiles((m, 64), (m, 16, 16), peel=True))


def _are_columns_of_the_compiler(product: ProductGeometry) -> bool:
    """Whether the compiler's own tiles of a few columns, or of sums of whole vectors, are as fast."""
    if product.n == 1:
        return product.k % VECTOR == 0
    return _HALF_VECTOR % product.n == 0 and product.m % 2 == 0


def _are_rows_of_the_compiler(product: ProductGeometry) -> bool:
    """Likewise of a few rows of whole vectors, unless rhs is permuted for less than a tile of rows."""
    return product.n % VECTOR == 0 and (product.m >= _NARROW_VECTOR or product.rhs_layout == "t")


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
    """With rhs in layout n, what no tiles of a permuted product fit. Only f32 was measured."""
    m, n = product.m, product.n
    if product.is_batched or product.rhs_layout != "n" or m <= _NARROW_VECTOR:
        return
    if m % _NARROW_VECTOR or n % VECTOR:
        return
    if not _is_small(product):
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
        if _is_small(product) and m < _SHORT_ROWS:
            yield _PEELED_COLUMNS
        if _is_small(product):
            yield Formed("permuted", _PEELED)
    elif _is_small(product) and k >= _MANY_STEPS:
        rows, columns = _PEELED.distribution
        yield _PEELED_SMALL if m <= rows or n <= columns else _PEELED
    elif not _is_small(product) and n % _NARROW_VECTOR == 0:
        yield _PEELED_LARGE


def _is_small(product: ProductGeometry) -> bool:
    """Whether packing takes a large part of the time of microkernels."""
    return 1 / product.m + 1 / product.n + 1 / product.k > _PACKED_PER_PRODUCT


# -- convolutions --------------------------------------------------------------------------------------


def _has_phases(geometry: ConvolutionGeometry) -> bool:
    return geometry.mode == "input_backward" and max(geometry.stride) > 1


def _of_phases(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    """One product of all phases, if they would fill no vectors one by one, or take long to compile."""
    is_unaligned = geometry.variant == "dense" and geometry.channels % VECTOR != 0
    has_many = math.prod(geometry.stride) > _MANY_PHASES
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

    Those of IREE 3.13 divide a workgroup's part: of 170 channels 34, hence 2 at once, and of 171 channels 57, hence 3.
    """
    return _tile(channels, VECTOR) >= _HALF_VECTOR and _tile(row, _HALF_VECTOR) >= _FEW_PIXELS


def _tile(extent: int, most: int) -> int:
    """What the compiler computes at once of an axis of a convolution, at most `most`."""
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
        yield from _with_tiles("im2col", _PEELED_LARGE if geometry.channels >= _MANY_CHANNELS else _PEELED)
        yield from _with_tiles("im2col_t", _PEELED_LARGE)


def _by_taps(geometry: ConvolutionGeometry, type_: ElementType) -> Iterator[Configuration]:
    """Of a few filters' gradient, if most pixels of the padded image are pixels of the output."""
    read, made = (geometry.batch * math.prod(each) for each in (geometry.padded_size, geometry.output_size))
    if read > 2 * made:
        return
    if max(geometry.filter_size) > 1 and read > longest_sum(type_):
        # Slices begin at the pixel of a tap, so they are copied, which packing does besides.
        yield Formed("taps", Flow("data_tiling"))
    yield Formed("taps", _PEELED_ROWS if geometry.filters < _NARROW_VECTOR else _PEELED_SHORT)


def _with_tiles(form: str, tiles: CpuTiles) -> Iterator[Configuration]:
    """`form` with peeled `tiles`."""
    yield from (Formed(form, each) for each in _also_unpeeled(tiles))


def _also_unpeeled(tiles: CpuTiles) -> Iterator[CpuTiles]:
    """Peeled `tiles`, which are invalid where nothing is left to peel, and the same tiles valid."""
    yield tiles
    yield replace(tiles, peel=False)


def _with_columns(rows: int, columns: int) -> Iterator[Configuration]:
    """`im2col_t`, whose product has so many rows and columns: in large tiles if there are enough for all cores."""
    height, width = _PEELED_LARGE.distribution
    are_many = rows * columns >= _MANY_TILES * height * width
    yield from _with_tiles("im2col_t", _PEELED_LARGE if are_many else _PEELED_SHORT)


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

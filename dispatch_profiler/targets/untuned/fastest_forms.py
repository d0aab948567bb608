"""The fastest known form of an operation, by rules that follow measurements.

Time relative to torch, f32, two cores of a Xeon with AVX-512, filters stored as fhwc, one image unless named.
Each column has the fastest tiles that were tried. Times include permutations; times of im2col, and of
permuted with 14x14 and 7x7 pixels, do not include padding:

    forward                          permuted    blocked    im2col    im2col_t32    winograd    direct
    56x56x64 3x3 64                      1.10                 2.8                       0.96
    28x28x128 3x3 128                    1.07       1.10                                0.95
    28x28x128 3x3 128, 8 images          1.16       1.07                                0.93
    14x14x256 3x3 256                    1.6        1.16      1.67                      1.24
    14x14x256 3x3 256, 8 images          1.9        0.88      1.7                       0.91
    7x7x512 3x3 512                      2.5        1.64      1.59          0.84
    7x7x512 3x3 512, 8 images            3.4        0.89      1.36                      1.00
    14x14x1024 1x1 256                   0.88       0.85      1.24
    14x14x1024 1x1 256, 8 images         1.02       1.01
    14x14x256 3x3 256, hwcf                         1.22      1.57                      1.13      2.96
    7x7x512 3x3 512, hwcf                           1.06      1.53          1.07                  2.08
    28x28x128 3x3 128, hwcf                         1.17                                1.07      1.28
    conv1d of 3000x512, stride 2         1.53                 1.15
    28x28x128 3x3, 4 groups              per_group 0.91; with the compiler's tiles 1.19
    56x56x128 3x3, 32 groups             per_group 1.28; with the compiler's tiles 1.50
    28x28x256 3x3, 32 groups             per_group 1.33; with the compiler's tiles 1.91
    8x28x28x96 3x3x3 128                 1.23
    16x56x56x64 3x3x3 64                 1.52

    forward, time relative to permuted, one core          blocked    direct
    7x7x512 1x1 2048                                         0.50      0.47
    28x28x512 1x1 1024, stride 2                             0.67      0.87
    14x14x256 1x1 1024                                       1.02      1.12

    input_backward                   permuted    blocked    im2col    im2col_t32    winograd    phases
    56x56x64 3x3 64                      1.03                                           0.80
    28x28x128 3x3 128                    1.10       1.04                                1.01
    14x14x256 3x3 256                    1.63       1.12      1.65                      0.94
    7x7x512 3x3 512                      1.75       1.12      1.84          1.31        1.67
    14x14x256 1x1 1024                   0.82       1.12
    8x28x28x128 3x3x3 96                 2.20       1.60
    28x28x512 1x1 256, stride 2                                                                   0.76

    weight_backward                      taps    im2col_t
    56x56x64 3x3 64                      1.16        1.81
    28x28x128 3x3 128                    0.95        1.40
    14x14x256 3x3 256                    0.86        0.84
    7x7x512 3x3 512                      0.34        0.23
    14x14x256 1x1 1024                   0.35        0.36
    16x56x56x64 3x3x3 64                 1.65        9.4

Products on two threads of another Xeon with AVX-512, shared with other programs, so within some 10 %; rhs
stored as n x k, with bias in the first six, with gelu for n = 3072. Relative to the faster of numpy and
torch:

    matmul               transposed_panels    panels    transposed    data_tiling    tiles    direct
    128x768x768                       1.07                     1.12           1.62              1.91
    128x3072x768                      0.91                     0.86           1.35              1.89
    128x768x3072                      0.83                     1.15           1.51              1.73
    384x768x768                       0.96      0.91           1.11           1.22              1.73
    384x3072x768                      1.10      1.07           1.37           1.48              2.03
    384x768x3072                      1.05      1.10           1.87           1.78              2.10
    512x2048x512                      0.98      0.99           1.04           1.29              2.00
    1024x1024x1024                    1.39      1.36           2.81           1.99              2.34
    64x512x512                                                 0.90           1.50              1.69
    32x3072x768                                                0.53           1.24              1.07
    16x1024x1024                                               0.61           1.32              0.85
    8x4096x4096                                                0.79           7.07     1.22     0.66
    4x4096x1024                                                1.33           1.85              0.66
    1x1000x2048                                                2.11           3.27     1.12     2.72
    1x4096x1024                                                               3.11     0.99     1.01
    1x3072x768                                                                3.47     1.05     1.06

    batch_matmul                           permuted    transposed    data_tiling    tiles    direct
    12x128x128x64                              0.95          1.34           1.12     1.54      1.51
    12x384x384x64                              0.98          1.79           1.31     1.58      1.51
    12x128x64x128, rhs stored as k x n                                      1.62     0.78      1.11
    12x384x64x384, rhs stored as k x n                                      1.53     0.76      1.42

Input channels that one step of `blocked` and `phases` multiplies, time relative to one channel:

                                                     2       4       8
    blocked, 14x14x256 3x3 256                     1.03    1.00    0.91
    blocked, 14x14x256 3x3 256, 8 images           0.97    0.94    0.93
    blocked, 7x7x512 3x3 512, 8 images             0.75    0.65    0.62
    blocked, 14x14x1024 1x1 256                    0.98    1.01    0.99
    blocked, input_backward 7x7x512 3x3 512        0.67    0.64    0.59
    blocked, input_backward 8x28x28x128 3x3x3 96   1.03    0.79    0.76
    phases, 28x28x128 3x3, stride 2                0.85    0.86    0.84
    phases, 28x28x512 1x1 256, stride 2            0.94    0.91    0.91
    phases, 8x28x28x128 3x3x3 64, stride 2         0.87    0.91    1.01

In `permuted`, more channels are between 0.86 and 1.20 times as slow, so that it stays at one.

Packed weights, relative to the first column, two cores of an EPYC with AVX-512, chains of six convolutions with different
filters, one image:

    forward                    im2col_t32    blocked    permuted    packed: blocked    permuted    winograd
    7x7x512 3x3 512                  1.00                                      0.84        1.34
    14x14x256 3x3 256                            1.00                          0.87        0.97        0.81
    14x14x1024 1x1 256                           1.00                          0.72        0.86
    28x28x512 1x1 128                                        1.00              0.77        0.92

Forms of products of 64 to 384 rows gain nothing: `transposed_panels` reads the weight once, as it is stored.

Winograd's rounding errors are larger than other forms', so that it is never chosen here: it is in the
target's list of configurations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from dispatch_profiler.configurations import FORMS, Configuration, CpuTiles, Default, Flow, Formed, Limits
from dispatch_profiler.configurations.splits import longest_sum
from dispatch_profiler.operations import ConvolutionGeometry, Operation, ProductGeometry
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.bf16_products import bf16_configurations, converts_bf16
from dispatch_profiler.targets.untuned.narrow_vectors import has_narrow_vectors, narrow_configurations
from dispatch_profiler.targets.untuned.unaligned_extents import (
    VECTOR,
    are_tiled,
    of_channels,
    of_filters,
    unaligned_configurations,
)

#: With at most this many pixels, the packed product of columns and filter is faster than the convolution.
_FEW_PIXELS = 128
_PACKED = Formed("im2col", Flow("data_tiling"))
#: The fastest form of filters that are not packed: it reads filters whose first axis is f once, as they are stored.
_UNPACKED = Formed("im2col_t32", CpuTiles((32, 64), (4, 64, 8)))
#: The product of filter and image, the fastest tiles first.
_TILED = tuple(
    Formed("im2col_t", inner)
    for inner in (
        CpuTiles((64, 64), (8, 32, 1)),
        CpuTiles((64, 128), (8, 32, 4), (8, 128, 256)),
        Flow("data_tiling"),
    )
)

#: The product of the gradient and columns, likewise.
_GRADIENT = tuple(
    Formed("im2col_t", inner)
    for inner in (
        CpuTiles((64, 64), (8, 32, 1), (32, 64, 256)),
        Flow("data_tiling"),
        Default(),
    )
)
#: With at most this many elements, the products of all taps find gradient and image in the caches.
_CACHED_ELEMENTS = 2**19

#: Elements that a pixel reads of each filter, and filters, from which on the elements do not stay in the caches if
#: filters lie side by side. A canonical convolution reads filters as they are stored, so that it is slow from fewer
#: filters on.
_LONG_WINDOW, _WIDE, _WIDE_DIRECTLY = 1024, 256, 128
#: The same for a forward convolution with one tap: (filters, channels).
_MANY_FILTERS, _THEIR_CHANNELS = 1024, 512
#: Tiles of a convolution: for many workgroups, for few, for rows of 7 pixels and for a single tap.
_LARGE = CpuTiles((1, 14, 28, 64), (1, 1, 14, 32, 1, 1, 1))
_FLAT = CpuTiles((1, 7, 28, 64), (1, 1, 14, 32, 1, 1, 1))
_SEVENS = CpuTiles((1, 7, 7, 64), (1, 1, 7, 64, 1, 1, 1))
#: Input channels that one step multiplies, by form; 1 in other forms, and where they do not divide the channels.
_CHANNELS_PER_STEP = {"blocked": 8, "phases": 4}
#: Tiles of a transposed product, the fastest first: for multiples of 32 rows of lhs, and of 16.
_COLUMNS = (CpuTiles((64, 128), (8, 32, 8)), CpuTiles((64, 16), (8, 16, 8)))
#: Tiles of a product of panels, the fastest first: with many rows of lhs, and with at most `_FEW_ROWS`.
_PANELS = (CpuTiles((96, 32), (12, 32, 4)), CpuTiles((64, 32), (8, 32, 8)), CpuTiles((32, 32), (8, 32, 8)))
_PANELS_OF_ROWS = (_PANELS[1], _PANELS[2], _PANELS[0])
_PANELS_OF_FEW_ROWS = (_PANELS[2],)
_FEW_ROWS = 256
#: Tiles of a batch of products whose rhs is permuted, the fastest first, and the least rows for which they are used.
_BATCH = (CpuTiles((64, 64), (4, 64, 4)), CpuTiles((64, 32), (8, 32, 4)))
_ROWS_OF_BATCH = 64
#: A row times n columns that vectors do not divide, which the compiler otherwise multiplies one by one.
_ROW = CpuTiles((1, 64), (1, 16, 16), peel=True)
#: Filters of a group that fill a part of a vector.
_NARROW = (4, 8, 16)
#: Sums of slices have at most so many times as many additions, one after another, as a slice.
_LONGEST_CHAINS = 2
#: Fewer workgroups of `_LARGE` leave cores idle.
_MANY_WORKGROUPS = 4


def fastest_form(
    operation: Operation, target: Target, *, packed_weights: bool = False
) -> Configuration | None:
    """The fastest known form of `operation` on `target`; None for the direct form, or if no form was measured.

    With `packed_weights`, the fastest form if the weight is packed at load time; it is returned without
    `packed`. `packed_microkernel` may be faster.
    """
    if target.limits.backend != "llvm-cpu":
        return None
    usable = _usable(operation, target.limits, packed_weights=packed_weights)
    fastest = next((each for each in usable if not (packed_weights and each == _UNPACKED)), None)
    return None if fastest == Default() else fastest


def _usable(operation: Operation, limits: Limits, *, packed_weights: bool) -> Iterator[Configuration]:
    """Valid and precise configurations, the fastest first."""
    geometry = operation.convolution
    usual = _of_product(operation) if geometry is None else _candidates(operation, geometry)
    unaligned = unaligned_configurations(operation)
    # Forms of convolutions without tiles leave the compiler an operation that it may not vectorize either.
    of_any_type = chain(usual, unaligned) if geometry is None else chain(unaligned, usual)
    # With packed weights, nothing was measured on such CPUs.
    is_narrow = has_narrow_vectors(limits) and not packed_weights
    narrow = narrow_configurations(operation) if is_narrow else ()
    for each in chain(bf16_configurations(operation, limits), narrow, of_any_type):
        is_usable = each.invalid_reason(operation, limits) is None and _is_precise(each, operation)
        if is_usable and not converts_bf16(each, operation, limits):
            yield each


def _is_precise(configuration: Configuration, operation: Operation) -> bool:
    """Whether sums of products are about as precise as torch's.

    The compiler adds the products of the direct form one after another, as torch does in channels_last memory.
    """
    geometry = operation.convolution
    if geometry is None or _is_fast_directly(geometry):
        return True
    bound = configuration.error_bound(operation)
    chain = operation.accumulations if bound is None else bound.longest_chain(operation)
    return chain <= _LONGEST_CHAINS * longest_sum(operation.element_type)


def _of_product(operation: Operation) -> Iterator[Configuration]:
    """Forms and tiles of a matrix product, the fastest first: if rhs is stored as n x k and rows fill vectors."""
    product = operation.product
    if product is None or operation.element_type.name != "f32" or product.rhs_layout != "n":
        return
    if product.is_batched:
        if product.m >= _ROWS_OF_BATCH:
            yield from (Formed("permuted", tiles) for tiles in _BATCH)
    elif product.m == 1:
        yield _ROW
    else:
        yield from _of_panels(operation, product)
        yield from (Formed("transposed", tiles) for tiles in _COLUMNS)


def _of_panels(operation: Operation, product: ProductGeometry) -> Iterator[Configuration]:
    """Forms with panels: first the panels of rhs, if this moves fewer elements than permuting lhs and the result."""
    has_operands = bool(operation.as_contraction().epilogue.operands)
    lhs, result = product.m * product.k, product.m * product.n
    of_lhs = lhs + (2 if has_operands else 1) * result
    of_rhs = product.n * product.k + (lhs if product.lhs_layout == "n" else 0)
    if of_rhs <= of_lhs:
        yield from (Formed("panels", tiles) for tiles in _PANELS if product.m % tiles.distribution[0] == 0)
    order = _PANELS_OF_FEW_ROWS if product.m <= _FEW_ROWS else _PANELS_OF_ROWS
    yield from (
        Formed("transposed_panels", tiles) for tiles in order if product.n % tiles.distribution[0] == 0
    )


def _candidates(operation: Operation, geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    """Configurations, the fastest first; empty if the direct form is the fastest."""
    if geometry.mode == "weight_backward":
        yield from _of_filter_gradient(geometry)
        return
    if geometry.variant == "grouped":
        yield from _tiled("per_group", operation)
        yield Formed("per_group")
        yield Formed("im2col")
        return
    is_direct = _is_fast_directly(geometry)
    if geometry.variant == "depthwise" and geometry.mode == "forward":
        yield Flow("fused_padding")
        yield Formed("permuted", Flow("fused_padding"))
    if geometry.variant == "dense":
        yield from _of_dense(operation, geometry, is_direct=is_direct)
    if not is_direct:
        if geometry.variant == "dense" and operation.element_type.name == "f32":
            yield from _of_untiled(geometry)
        yield Formed("permuted")
        yield Formed("phases")


def _of_dense(
    operation: Operation, geometry: ConvolutionGeometry, *, is_direct: bool
) -> Iterator[Configuration]:
    """Forms of a convolution without groups, the fastest first."""
    is_wide = _is_wide(geometry, _WIDE_DIRECTLY if is_direct else _WIDE)
    is_wide = is_wide or (not is_direct and _has_many_filters(geometry))
    if _is_product_in_place(geometry):
        yield from _TILED
    has_few_pixels = max(geometry.filter_size) > 1 and _pixels(geometry) <= _FEW_PIXELS
    if has_few_pixels and geometry.mode == "forward" and geometry.filter_layout[0] == "f":
        yield _UNPACKED
    if is_wide and not _is_gathered(geometry):
        yield from _tiled("blocked", operation)
    if (has_few_pixels and not is_direct) or _is_gathered(geometry):
        yield _PACKED
    if not is_direct:
        for form in ("permuted", "phases", "blocked"):
            yield from _tiled(form, operation)


def _of_untiled(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    """Products instead of convolutions that the compiler finds no tiles for."""
    is_forward = geometry.mode == "forward"
    channels, pixels = (
        (geometry.filters, geometry.output_size) if is_forward else (geometry.channels, geometry.size)
    )
    if not are_tiled(channels, pixels[-1]):
        yield from of_filters(geometry) if is_forward else of_channels(geometry)


def _of_filter_gradient(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    """Forms of weight_backward, the fastest first; empty for depthwise filters, whose sums are no matrix products."""
    if geometry.variant == "depthwise":
        return
    pixels = geometry.batch * math.prod(geometry.output_size)
    if pixels * (geometry.channels + geometry.filters) > _CACHED_ELEMENTS:
        columns = 64 if geometry.channels % 64 == 0 else 32
        yield Formed("taps", CpuTiles((32, columns), (8, 32, 1), (32, columns, 1024)))
        yield Formed("taps", Flow("data_tiling"))
    elif max(geometry.filter_size) == 1:
        yield Formed("taps", CpuTiles((64, 64), (8, 32, 1)))
    elif pixels > _FEW_PIXELS and geometry.channels % VECTOR == 0:
        yield Formed("taps")
    yield from _GRADIENT


def _tiled(form: str, operation: Operation) -> Iterator[Configuration]:
    """`form` with the tiles that divide its convolutions, the fastest first. Only f32 was measured."""
    if operation.element_type.name != "f32" or FORMS[form].invalid_reason(operation):
        return
    kernels = [kernel.convolution for kernel in Formed(form).reduced(operation).kernels]
    kernel = next(iter(kernels), None)  # The kernels of phases differ by a pixel, and in their taps.
    if kernel is None or kernel.spatial_rank != 2:
        return
    height, width = kernel.output_size
    workgroups = kernel.batch * -(-height // 14) * -(-width // 28) * -(-kernel.filters // 64)
    order = [_LARGE if workgroups >= _MANY_WORKGROUPS and form != "phases" else _FLAT, _SEVENS]
    if form == "per_group" and kernel.filters in _NARROW:
        order = [CpuTiles(_LARGE.distribution, (1, 1, 14, kernel.filters, 1, 1, 1))]
    is_pointwise = all(each is not None and max(each.filter_size) == 1 for each in kernels)
    channels = math.gcd(_CHANNELS_PER_STEP.get(form, 1), *(each.channels for each in kernels if each))
    for tiles in reversed(order) if is_pointwise and width < 28 else order:
        if _divides(tiles, width, kernel.filters):
            yield Formed(form, replace(tiles, vector=(*tiles.vector[:-1], channels)))


def _divides(tiles: CpuTiles, width: int, filters: int) -> bool:
    """Whether `tiles` leave no remainder along pixels of a row and filters: that would not be vectorized."""
    sizes = zip((width, filters), tiles.distribution[2:4], tiles.vector[2:4], strict=True)
    return all(
        extent % vector == 0 and (extent <= tile or extent % tile == 0) for extent, tile, vector in sizes
    )


def _is_wide(geometry: ConvolutionGeometry, channels: int) -> bool:
    """Whether the result has at least `channels` channels, each the sum of a long window."""
    inner, outer = geometry.channels, geometry.filters
    if geometry.mode == "input_backward":
        inner, outer = outer, inner
    return outer >= channels and inner * math.prod(geometry.filter_size) >= _LONG_WINDOW


def _has_many_filters(geometry: ConvolutionGeometry) -> bool:
    """Whether a forward convolution with one tap has so many filters that each channel reads another page."""
    return (
        geometry.mode == "forward"
        and math.prod(geometry.filter_size) == 1
        and geometry.filters >= _MANY_FILTERS
        and geometry.channels >= _THEIR_CHANNELS
    )


def _is_gathered(geometry: ConvolutionGeometry) -> bool:
    """Whether `permuted` gathers all taps too: for filters of one row or column, the compiler has no fast code."""
    taps = geometry.filter_size
    return max(taps) > 1 and (len(taps) == 1 or min(taps[-2:]) == 1)


def _is_fast_directly(geometry: ConvolutionGeometry) -> bool:
    """Whether the compiler has fast code for the operation as it is: a forward conv2d in nhwc, hwcf."""
    return geometry.is_nhwc and not (geometry.variant == "dense" and _is_gathered(geometry))


def _is_product_in_place(geometry: ConvolutionGeometry) -> bool:
    """Whether it is a product of filter and image as they are stored: pointwise, one image in nchw."""
    layouts = (geometry.input_layout, geometry.filter_layout, geometry.output_layout)
    axes = geometry.spatial_letters
    return (
        geometry.mode == "forward"
        and geometry.batch == 1
        and geometry.padded_size == geometry.output_size
        and math.prod(geometry.filter_size) == 1
        and layouts == (f"nc{axes}", f"fc{axes}", f"nc{axes}")
    )


def _pixels(geometry: ConvolutionGeometry) -> int:
    """Pixels that one kernel computes; for a gradient, the pixels of one phase."""
    if geometry.mode == "input_backward":
        return geometry.batch * math.prod(geometry.size) // math.prod(geometry.stride)
    return geometry.batch * math.prod(geometry.output_size)

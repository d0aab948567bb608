"""The fastest known form of an operation, by rules that follow measurements.

f32 on two cores with AVX-512, batch 1, filters stored as fhwc, time relative to torch:

    convolution               permuted   im2col, data tiling
    56x56x64 3x3 64               1.01                  2.0
    28x28x128 3x3 128             1.72                  2.06
    14x14x256 3x3 256             2.96                  2.03
    7x7x512 3x3 512               4.2                   1.22
    14x14x1024 1x1 256            1.73                  1.24
    7x7x2048 1x1 512              2.5                   0.77

`permuted` copies the filter, which takes as long as its product with few pixels. CPU time on one core (busy, so
within some 20 %), relative to torch:

    weight_backward of 56x56x64 3x3 64 / 14x14x256 3x3 256: im2col_t with tiles 2.1 / 0.36, with data tiling 2.5 / 0.5
    conv1d of 3000x80, 512 filters / 3000x512, stride 2: permuted 1.0 / 5.2, im2col with data tiling 1.1 / 1.5
    28x28 with 4 groups of 32 / 32 groups of 8 channels: per_group 1.1 / 1.0, im2col 2.3 / 3.7
    conv3d of 8x28x28x64 3x3x3 64: permuted 0.42, im2col 1.2
    56x56x64 1x1 256 in nchw: im2col_t with tiles 1.2, permuted 2.4

Tiles of the conv2d that `permuted` and `phases` compute, on two cores of another machine with AVX-512:

    convolution                                        1x1x14x32    1x1x7x32    compiler's choice
    56x56x64 3x3 64, fhwc                                   0.98        1.22                 1.22
    14x14x1024 1x1 256, fhwc, fused epilogue                0.90        0.93                 1.24
    14x14x1024 1x1 256, nchw                                1.18        1.00                 1.55
    input_backward of 56x56x256 1x1 512, stride 2           0.76        0.83                 1.12

With 8 images of 14x14x256 3x3 256: im2col_t with data tiling 1.7, permuted 1.9 with the first tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dispatch_profiler.configurations import Configuration, CpuTiles, Flow, Formed
from dispatch_profiler.operations import ConvolutionGeometry, Operation
from dispatch_profiler.targets._base import Target

#: With at most this many pixels, the packed product of columns and filter is faster than the convolution.
_FEW_PIXELS = 256
_PACKED = Formed("im2col", Flow("data_tiling"))
#: The product of filter and columns, the fastest tiles first.
_TILED = tuple(
    Formed("im2col_t", inner)
    for inner in (
        CpuTiles((64, 64), (8, 32, 1)),
        CpuTiles((64, 128), (8, 32, 4), (8, 128, 256)),
        Flow("data_tiling"),
    )
)

#: With many channels and at most this many pixels, so is the product of filter and columns: the filter is too large
#: to be permuted.
_SOME_PIXELS, _MANY_CHANNELS = 2048, 256
#: Tiles of the convolution, the fastest first. They need multiples of 14 or 7 pixels and of 32 filters.
_CONVOLUTION = (
    CpuTiles((1, 14, 28, 64), (1, 1, 14, 32, 1, 1, 1)),
    CpuTiles((1, 7, 14, 64), (1, 1, 7, 32, 1, 1, 1)),
)


def fastest_form(operation: Operation, target: Target) -> Configuration | None:
    """The fastest known form of `operation` on `target`; None if it is the direct one, or if none was measured."""
    geometry = operation.convolution
    if geometry is None or target.limits.backend != "llvm-cpu":
        return None
    candidates = _candidates(geometry, operation.element_type.name)
    return next((each for each in candidates if each.invalid_reason(operation, target.limits) is None), None)


def _candidates(geometry: ConvolutionGeometry, type_: str) -> Iterator[Configuration]:
    """Configurations, the fastest first; none if the direct form is the fastest."""
    if geometry.mode == "weight_backward":
        yield from _TILED
        return
    if geometry.variant == "grouped":
        yield Formed("per_group")
        yield Formed("im2col")
        return
    if _is_fast_directly(geometry):
        return
    if geometry.variant == "dense":
        if _is_product_in_place(geometry):
            yield from _TILED
        if max(geometry.filter_size) > 1:
            if _pixels(geometry) <= _FEW_PIXELS or _is_gathered(geometry):
                yield _PACKED
            if _pixels(geometry) <= _SOME_PIXELS and geometry.channels >= _MANY_CHANNELS:
                yield Formed("im2col_t", Flow("data_tiling"))
        if type_ == "f32" and geometry.spatial_rank == 2:  # tiles were measured for nothing else
            forms = [Formed(form, tiles) for form in ("permuted", "phases") for tiles in _CONVOLUTION]
            yield from (each for each in forms if _are_divided(each, geometry))
    yield Formed("permuted")
    yield Formed("phases")


def _is_gathered(geometry: ConvolutionGeometry) -> bool:
    """Whether `permuted` gathers all taps too: those of a row or column, which the compiler has no fast code for."""
    taps = geometry.filter_size
    return max(taps) > 1 and (len(taps) == 1 or min(taps[-2:]) == 1)


def _is_fast_directly(geometry: ConvolutionGeometry) -> bool:
    """Whether the compiler has fast code for the operation as it is: a forward conv2d in nhwc, hwcf."""
    layouts = (geometry.input_layout, geometry.filter_layout, geometry.output_layout)
    is_canonical = geometry.mode == "forward" and layouts == ("nhwc", "hwcf", "nhwc")
    return is_canonical and not (geometry.variant == "dense" and _is_gathered(geometry))


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
    """Pixels that one kernel computes; those of one phase of a gradient."""
    if geometry.mode == "input_backward":
        return geometry.batch * math.prod(geometry.size) // math.prod(geometry.stride)
    return geometry.batch * math.prod(geometry.output_size)


def _are_divided(configuration: Formed, geometry: ConvolutionGeometry) -> bool:
    """Whether the workgroups of `_CONVOLUTION` divide what `geometry` computes: remainders are slow."""
    tiles = configuration.inner
    is_gradient = geometry.mode == "input_backward"
    strides = geometry.stride if is_gradient else (1, 1)
    size = geometry.size if is_gradient else geometry.output_size
    pixels = [extent // stride for extent, stride in zip(size, strides, strict=True)]
    extents = (*pixels, geometry.channels if is_gradient else geometry.filters)
    return isinstance(tiles, CpuTiles) and all(
        extent <= tile or extent % tile == 0
        for extent, tile in zip(extents, tiles.distribution[1:], strict=True)
    )

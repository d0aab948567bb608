"""The fastest known form of an operation, by rules that follow measurements.

f32 on two cores with AVX-512, batch 1, time relative to torch; filters are stored as fhwc:

    convolution        permuted   im2col_t   im2col, data tiling   weight_backward as im2col_t
    56x56x64 3x3 64        1.01       3.6                   2.0                           2.0
    28x28x128 3x3 128      1.72       2.3                   2.06                          1.67
    14x14x256 3x3 256      2.96       2.4                   2.03                          0.80
    7x7x512 3x3 512        4.2        1.11                  1.22                          0.11
    14x14x1024 1x1 256     1.73       1.43                  1.24                          0.54
    7x7x2048 1x1 512       2.5        0.55                  0.77                          0.13

`permuted` copies the filter, which takes as long as its product with few pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed
from dispatch_profiler.operations import ConvolutionGeometry, Operation
from dispatch_profiler.targets._base import Target

#: With at most this many pixels, the product of the filter and the columns is fastest, ...
_FEW_PIXELS = 64
#: ... and with at most this many, the packed product of the columns and the filter.
_SOME_PIXELS = 256
#: Tiles of matrix products, the fastest first.
_PRODUCT = (
    CpuTiles((32, 128), (8, 32, 1), (32, 64, 128)),
    CpuTiles((64, 128), (8, 32, 4), (8, 128, 256)),
    CpuTiles((32, 128), (8, 32, 1), (32, 64, 128), peel=True),
)


def fastest_form(operation: Operation, target: Target) -> Configuration | None:
    """The fastest known form of `operation` on `target`; None if it is the direct one, or if none was measured."""
    geometry = operation.convolution
    if geometry is None or target.limits.backend != "llvm-cpu":
        return None
    candidates = _candidates(geometry)
    return next((each for each in candidates if each.invalid_reason(operation, target.limits) is None), None)


def _candidates(geometry: ConvolutionGeometry) -> Iterator[Configuration]:
    """Configurations, the fastest first; none if the direct form is the fastest."""
    if geometry.mode == "weight_backward":
        yield from _products("im2col_t")
        return
    is_grouped = geometry.variant == "grouped"
    if _is_fast_directly(geometry) and not is_grouped:
        return
    pixels = _pixels(geometry)
    if geometry.variant != "depthwise":
        if pixels <= _FEW_PIXELS or _is_product_in_place(geometry):
            yield from _products("im2col_t")
        if pixels <= _SOME_PIXELS:
            yield Formed("im2col", Flow("data_tiling"))
        if is_grouped:
            yield from _products("im2col")
    yield Formed("permuted")
    yield Formed("phases")


def _products(form: str) -> Iterator[Configuration]:
    yield from (Formed(form, tiles) for tiles in (*_PRODUCT, Default()))


def _is_fast_directly(geometry: ConvolutionGeometry) -> bool:
    """Whether the code generator has fast code for the operation as it is: a forward conv2d in nhwc, hwcf."""
    layouts = (geometry.input_layout, geometry.filter_layout, geometry.output_layout)
    return geometry.mode == "forward" and layouts == ("nhwc", "hwcf", "nhwc")


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

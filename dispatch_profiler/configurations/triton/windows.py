"""Convolutions whose windows the bulk copy engine fetches, as Triton's kernels see them: boxes of pixels."""

from __future__ import annotations

import math

from dispatch_profiler.configurations.triton.convolutions import (
    Constants,
    axes_of,
    convolution_constants,
    weight_constants,
)
from dispatch_profiler.operations import ConvolutionGeometry
from dispatch_profiler.operations.geometry import Role

#: Parameters of the kernels that gather windows; kernels that fetch windows lack them.
_UNUSED = {
    "forward": ("STRIDE_H", "STRIDE_W", "PADDING_H", "PADDING_W", "PHASES_H", "PHASES_W", "LHS_C", "RHS_G"),
    "weight_backward": ("STRIDE_H", "STRIDE_W", "FLAT", "RHS_C", "OUT_G"),
}


def window_tiles(convolution: ConvolutionGeometry, tile: tuple[int, int, int]) -> int:
    """The number of tiles of the kernels that fetch windows; tiles of weight gradients do not span taps."""
    m, n, _ = tile
    if convolution.mode == "weight_backward":
        taps = math.prod(each.taps for each in axes_of(convolution))
        return -(-convolution.filters // m) * taps * -(-convolution.channels // n)
    columns = convolution.channels if convolution.mode == "input_backward" else convolution.filters
    return _box_count(_box_extents(convolution), box_of(convolution, m)) * -(-columns // n)


def box_of(convolution: ConvolutionGeometry, pixels: int) -> tuple[int, int, int]:
    """Images, rows and columns of the boxes of `pixels` pixels, a power of two, in which copies fetch windows.

    All are powers of two. The fewest boxes cover all pixels of the result, or of the output in weight_backward;
    of several such boxes, the box with the fewest images, then with the widest rows.
    """
    powers = [2**i for i in range(pixels.bit_length())]
    boxes = [
        (n, h, pixels // (n * h))
        for n in powers
        for h in powers
        if n * h <= pixels and n < 2 * convolution.batch
    ]
    extents = _box_extents(convolution)
    return min(boxes, key=lambda box: (_box_count(extents, box), box))


def box_steps(convolution: ConvolutionGeometry, tile: tuple[int, int, int]) -> int:
    """Steps of the reduction of a tile that fetches windows: boxes, or taps times slices of channels."""
    if convolution.mode == "weight_backward":
        return _box_count(_box_extents(convolution), box_of(convolution, tile[2]))
    taps = math.prod(each.taps for each in axes_of(convolution))
    summed = convolution.filters if convolution.mode == "input_backward" else convolution.channels
    return taps * -(-summed // tile[2])


def _box_extents(convolution: ConvolutionGeometry) -> tuple[int, int, int]:
    """Images, rows and columns that the boxes cover."""
    height, width = axes_of(convolution)
    if convolution.mode == "input_backward":
        return convolution.batch, height.size, width.size
    return convolution.batch, height.output_size, width.output_size


def _box_count(extents: tuple[int, int, int], box: tuple[int, int, int]) -> int:
    return math.prod(-(-extent // n) for extent, n in zip(extents, box, strict=True))


def window_constants(convolution: ConvolutionGeometry, pixels: int, slices: int) -> Constants:
    """Constants of the kernels `convolution_by_descriptors` and `weight_gradient_by_descriptors`."""
    if convolution.mode == "weight_backward":
        found, unused = weight_constants(convolution, slices), _UNUSED["weight_backward"]
    else:
        found, unused = convolution_constants(convolution) | {"SLICES": slices}, _UNUSED["forward"]
    box = dict(zip(("BOX_N", "BOX_H", "BOX_W"), box_of(convolution, pixels), strict=True))
    # A descriptor has no stride of 0, which a tensor without a height has along its height of 1.
    found |= {f"{tensor}_H": found[f"{tensor}_H"] or found[f"{tensor}_W"] for tensor in ("LHS", "RHS")}
    return {name: value for name, value in found.items() if name not in (*unused, "BOUNDED", "GROUPS")} | box


def descriptor_strides(constants: Constants, mode: str, windows_only: bool) -> tuple[int, ...]:
    """Strides of the described tensors, in elements."""
    if mode == "weight_backward":
        names: tuple[str, ...] = ("RHS_N", "RHS_H", "RHS_W")
    else:
        names = ("LHS_N", "LHS_H", "LHS_W") + (() if windows_only else ("RHS_H", "RHS_W", "RHS_C", "RHS_F"))
    return tuple(int(constants[name]) for name in names)


def window_invalid_reason(convolution: ConvolutionGeometry) -> str | None:
    """Why the bulk copy engine cannot fetch windows of `convolution`; None if it can."""
    if convolution.groups > 1:
        return f"descriptors fetch windows of convolutions with one group, not {convolution.groups}"
    for each in axes_of(convolution):
        if each.stride > 1:
            return f"descriptors fetch windows of convolutions with stride 1, not {each.stride}"
    roles: tuple[Role, ...] = ("input", "output")
    if convolution.mode != "weight_backward":
        roles = ("output" if convolution.mode == "input_backward" else "input", "filter")
    for role in roles:
        layout = convolution.layout_of(role)
        if layout[-1] not in "cf":
            return f"the bulk copy engine needs contiguous channels, but the layout of the {role} is {layout}"
    return None

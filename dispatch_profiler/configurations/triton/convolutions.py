"""Convolutions as Triton's kernels see them: constants, pointwise convolutions as products, and limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dispatch_profiler.operations import ConvolutionGeometry, Operation, ProductGeometry
from dispatch_profiler.operations.geometry import Role

#: Constants of a kernel, by the names of its parameters.
Constants = dict[str, int | bool]


def product_of(operation: Operation) -> ProductGeometry | None:
    """The matrix product that `operation` is; None for a convolution with windows."""
    convolution = operation.convolution
    return operation.product if convolution is None else as_product(convolution)


def is_weight_gradient(operation: Operation) -> bool:
    """Whether `operation` is the weight_backward of a convolution."""
    return operation.convolution is not None and operation.convolution.mode == "weight_backward"


def unsupported_reason(what: str, operation: Operation) -> str | None:
    """Why no Triton kernel of products and convolutions computes `operation`. `what` is its first words."""
    if operation.contraction is None:
        return f"{what} matrix products and convolutions, not {operation.kind}"
    convolution = operation.convolution
    return None if convolution is None else convolution_invalid_reason(what, convolution)


class SpatialAxis(NamedTuple):
    """One spatial axis of a convolution."""

    size: int
    output_size: int
    taps: int
    stride: int
    padding: int
    dilation: int


def convolution_invalid_reason(what: str, convolution: ConvolutionGeometry) -> str | None:
    """Why the kernels cannot compute `convolution`; None if they can. `what` is its first words."""
    if convolution.spatial_rank > 2:
        return f"{what} convolutions with one or two spatial axes, not {convolution.spatial_rank}"
    if convolution.variant == "depthwise":
        return "the Triton kernels do not support depthwise convolutions"
    if convolution.mode == "input_backward":
        for each in axes_of(convolution):
            if each.stride > 1 and each.dilation > 1:
                return (
                    "the Triton kernels compute input_backward with a stride or a dilation along an axis, not with "
                    f"stride {each.stride} and dilation {each.dilation}"
                )
    return None


def as_product(convolution: ConvolutionGeometry) -> ProductGeometry | None:
    """The matrix product that a pointwise convolution is if no operand has to be permuted; otherwise None.

    forward          [pixels, c] x [c, f] -> [pixels, f]
    input_backward   [pixels, f] x [f, c] -> [pixels, c]
    weight_backward  [f, pixels] x [pixels, c] -> [f, c]
    """
    plain = all(
        each.taps == 1 and each.stride == 1 and each.size == each.output_size and each.padding == 0
        for each in axes_of(convolution)
    )
    is_last = convolution.is_channels_last and convolution.input_layout == convolution.output_layout
    if not plain or not is_last or convolution.groups > 1:
        return None
    pixels, c, f = _pixels(convolution), convolution.channels, convolution.filters
    filter_rows_are_filters = convolution.filter_layout.index("f") < convolution.filter_layout.index("c")
    if convolution.mode == "forward":
        return ProductGeometry(1, pixels, f, c, "t", "n" if filter_rows_are_filters else "t")
    if convolution.mode == "input_backward":
        return ProductGeometry(1, pixels, c, f, "t", "t" if filter_rows_are_filters else "n")
    return ProductGeometry(1, f, c, pixels, "n", "t") if filter_rows_are_filters else None


def as_implicit_product(convolution: ConvolutionGeometry) -> tuple[int, int, int, int]:
    """Independent parts (groups and phases), m, n and k of the product that a kernel computes.

    k is the reduction of the part with the most taps.
    """
    c, f = convolution.channels_per_group, convolution.filters_per_group
    if convolution.mode == "weight_backward":
        taps = math.prod(each.taps for each in axes_of(convolution))
        return convolution.groups, f, taps * c, _pixels(convolution)
    taps = math.prod(-(-each.taps // phases) for each, phases in _phased(convolution))
    if convolution.mode == "forward":
        return convolution.groups, _pixels(convolution), f, taps * c
    pixels = math.prod(-(-each.size // phases) for each, phases in _phased(convolution))
    phases = math.prod(phases for _, phases in _phased(convolution))
    return convolution.groups * phases, convolution.batch * pixels, c, taps * f


def convolution_constants(convolution: ConvolutionGeometry) -> Constants:
    """Constants of the kernel `convolution`, for forward and input_backward."""
    backward = convolution.mode == "input_backward"
    axes, phased = axes_of(convolution), _phased(convolution)
    image, filters, gradient = (_strides(convolution, role) for role in ("input", "filter", "output"))
    source, out = (gradient, image) if backward else (image, gradient)
    c, f = convolution.channels_per_group, convolution.filters_per_group
    constants: Constants = {
        **_each("{}", (each.output_size if backward else each.size for each in axes)),
        **_each("O{}", (each.size if backward else each.output_size for each in axes)),
        "R": axes[0].taps, "S": axes[1].taps,
        **_each("STRIDE_{}", (1 if backward else each.stride for each in axes)),
        **_each("STEP_{}", (_step(each, phases) if backward else each.dilation for each, phases in phased)),
        **_each("SHIFT_{}", (each.padding if backward else -each.padding for each in axes)),
        **_each("PADDING_{}", (each.padding for each in axes)),
        **_each("PHASES_{}", (phases for _, phases in phased)),
        "BOUNDED": any(_leaves_source(each, phases, backward) for each, phases in phased),
        "IMAGES": convolution.batch,
        "CHANNELS": f if backward else c, "FILTERS": c if backward else f, "GROUPS": convolution.groups,
        **_named("LHS", source, {"N": "n", "H": "h", "W": "w", "C": "c"}),
        **_named("RHS", filters, {"H": "h", "W": "w", "C": "f" if backward else "c", "F": "c" if backward else "f"}),
        "RHS_G": f * filters["f"],
        **_named("OUT", out, {"N": "n", "H": "h", "W": "w", "F": "c"}),
    }  # fmt: skip
    return constants


def weight_constants(convolution: ConvolutionGeometry, slices: int) -> Constants:
    """Constants of the kernel `weight_gradient`."""
    axes, filters = axes_of(convolution), _strides(convolution, "filter")
    gradient, image = _strides(convolution, "output"), _strides(convolution, "input")
    unmoved = all(each.stride == 1 and each.size == each.output_size for each in axes)
    constants: Constants = {
        **_each("{}", (each.size for each in axes)),
        **_each("O{}", (each.output_size for each in axes)),
        "R": axes[0].taps, "S": axes[1].taps,
        **_each("STRIDE_{}", (each.stride for each in axes)),
        **_each("STEP_{}", (each.dilation for each in axes)),
        **_each("SHIFT_{}", (-each.padding for each in axes)),
        "BOUNDED": any(_leaves_source(each, 1, False) for each in axes),
        "FLAT": unmoved and _is_flat(gradient, axes) and _is_flat(image, axes),
        "IMAGES": convolution.batch,
        "CHANNELS": convolution.channels_per_group,
        "FILTERS": convolution.filters_per_group,
        "GROUPS": convolution.groups,
        **_named("LHS", gradient, {"N": "n", "H": "h", "W": "w", "F": "c"}),
        **_named("RHS", image, {"N": "n", "H": "h", "W": "w", "C": "c"}),
        **_named("OUT", filters, {"H": "h", "W": "w", "C": "c", "F": "f"}),
        "OUT_G": convolution.filters_per_group * filters["f"],
        "SLICES": slices,
    }  # fmt: skip
    return constants


def axes_of(convolution: ConvolutionGeometry) -> tuple[SpatialAxis, SpatialAxis]:
    """Height and width; a convolution with one spatial axis has a height of 1."""
    axes = [
        SpatialAxis(size, output, taps, stride, padding, dilation if taps > 1 else 1)
        for size, output, taps, stride, padding, dilation in zip(
            convolution.size, convolution.output_size, convolution.filter_size, convolution.stride,
            convolution.padding, convolution.dilation, strict=True,
        )
    ]  # fmt: skip
    height, width = [SpatialAxis(1, 1, 1, 1, 0, 1), *axes][-2:]
    return height, width


def _phased(convolution: ConvolutionGeometry) -> tuple[tuple[SpatialAxis, int], ...]:
    """Each axis with the number of phases of its result."""
    backward = convolution.mode == "input_backward"
    return tuple((each, each.stride if backward else 1) for each in axes_of(convolution))


def _step(axis: SpatialAxis, phases: int) -> int:
    """Rows between the taps of a phase, in an output's gradient."""
    return -1 if phases > 1 else -axis.dilation


def _leaves_source(axis: SpatialAxis, phases: int, backward: bool) -> bool:
    """Whether a tap of a pixel of the result is outside the source along this axis."""
    if phases > 1:
        return True
    reach = (axis.taps - 1) * axis.dilation
    if backward:
        return axis.padding - reach < 0 or axis.size - 1 + axis.padding >= axis.output_size
    return axis.padding > 0 or (axis.output_size - 1) * axis.stride + reach >= axis.size


def _strides(convolution: ConvolutionGeometry, role: Role) -> dict[str, int]:
    """Distance in elements along each letter of a tensor's layout; 0 along a height that it lacks."""
    layout, shape = convolution.layout_of(role), convolution.shape_of(role)
    return {"h": 0} | {letter: math.prod(shape[i + 1 :]) for i, letter in enumerate(layout)}


def _is_flat(strides: Mapping[str, int], axes: tuple[SpatialAxis, SpatialAxis]) -> bool:
    """Whether the pixels of all images follow each other at equal distances."""
    height, width = axes
    row = strides["w"] * width.output_size
    return strides["n"] == row * height.output_size and strides["h"] in (row, 0)


def _pixels(convolution: ConvolutionGeometry) -> int:
    """Pixels of the forward convolution's output, of all images."""
    return convolution.batch * math.prod(convolution.output_size)


def _each(pattern: str, values: Iterable[int]) -> Constants:
    """`_each("STRIDE_{}", (1, 2))` -> {"STRIDE_H": 1, "STRIDE_W": 2}"""
    return {pattern.format(letter): value for letter, value in zip("HW", values, strict=True)}


def _named(tensor: str, strides: Mapping[str, int], letters: Mapping[str, str]) -> Constants:
    return {f"{tensor}_{name}": strides[letter] for name, letter in letters.items()}


# -- windows ---------------------------------------------------------------------------------------

# Convolutions whose windows the bulk copy engine fetches, as Triton's kernels see them: boxes of pixels.


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
        constants, unused = weight_constants(convolution, slices), _UNUSED["weight_backward"]
    else:
        constants, unused = convolution_constants(convolution) | {"SLICES": slices}, _UNUSED["forward"]
    box = dict(zip(("BOX_N", "BOX_H", "BOX_W"), box_of(convolution, pixels), strict=True))
    # A descriptor has no stride of 0, which a tensor without a height has along its height of 1.
    constants |= {
        f"{tensor}_H": constants[f"{tensor}_H"] or constants[f"{tensor}_W"] for tensor in ("LHS", "RHS")
    }
    return {
        name: value for name, value in constants.items() if name not in (*unused, "BOUNDED", "GROUPS")
    } | box


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

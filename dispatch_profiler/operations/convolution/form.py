"""The direct form of a convolution: one linalg operation, by the loops that index its tensors.

forward          the padded input and the filter
input_backward   the gradient, spread by the stride into zeros, and the flipped filter, at stride 1
weight_backward  the gradient and the padded input
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.operations._base import Loop
from dispatch_profiler.operations.geometry import CONV_ROLES, ConvolutionGeometry


@dataclass(frozen=True)
class IndexedTensor:
    """A tensor as loops index it. If `axes` has several extents for an axis, the axis has several parts.

    A filter of two groups in hwcf: `axes` ((3,), (3,), (8,), (2, 4)), `subscripts` (kh, kw, ic, g, oc).
    """

    axes: tuple[tuple[int, ...], ...]
    subscripts: tuple[str, ...]

    @property
    def shape(self) -> list[int]:
        """As it is stored."""
        return [extents[0] if len(extents) == 1 else extents[0] * extents[1] for extents in self.axes]

    @property
    def split_shape(self) -> list[int]:
        """With an axis for the groups."""
        return list(itertools.chain(*self.axes))

    @property
    def reassociation(self) -> list[list[int]]:
        """For each stored axis, its axes in `split_shape`."""
        positions = itertools.count()
        return [[next(positions) for _ in extents] for extents in self.axes]


@dataclass(frozen=True)
class Spread:
    """Where the gradient goes in input_backward: with a step of `stride` from `offset`, into zeros.

    Along each axis, `count` of its pixels from `first` on are within the zeros.
    """

    first: tuple[int, ...]
    count: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """No pixel of the gradient reaches the input."""
        return min(self.count) < 1


@dataclass(frozen=True)
class DirectForm:
    """`lhs` and `rhs` are the operands of the linalg operation: see the top of this module."""

    lhs: IndexedTensor
    rhs: IndexedTensor
    result: IndexedTensor
    loops: tuple[Loop, ...]
    #: The named linalg operation; "" if it is a generic one.
    named: str = ""
    #: In input_backward, where the gradient goes.
    spread: Spread | None = None
    #: Only a part of the padded input is read.
    is_cropped: bool = False


def direct_form(geometry: ConvolutionGeometry) -> DirectForm:
    """The linalg operation of `geometry`, with its tensors and loops in the order of the layouts."""
    axes = geometry.spatial_letters
    if geometry.is_canonical and geometry.variant == "depthwise" and geometry.spatial_rank == 2:
        return _depthwise(geometry)
    is_input_gradient = geometry.mode == "input_backward"
    outputs = [f"o{axis}" for axis in axes]
    taps = [f"k{axis}" for axis in axes]
    # A gradient of the input sums over filters.
    channels, filters = ("oc", "ic") if is_input_gradient else ("ic", "oc")
    stride = (1,) * len(axes) if is_input_gradient else geometry.stride
    windows = [
        f"{out} * {step} + {tap} * {dilation}"
        for out, tap, step, dilation in zip(outputs, taps, stride, geometry.dilation, strict=True)
    ]
    if is_input_gradient:
        image = _image(geometry, "input", geometry.size, outputs, channels)
        output = _image(geometry, "output", _spread_size(geometry), windows, filters)
    else:
        image = _image(geometry, "input", _read_size(geometry), windows, channels)
        output = _image(geometry, "output", geometry.output_size, outputs, filters)
    filter_ = _filter(geometry, taps, channels, filters)
    named = {"input": image, "filter": filter_, "output": output}
    lhs, rhs, result = (named[role] for role in CONV_ROLES[geometry.mode])
    if geometry.mode == "weight_backward":
        # IREE 3.13 recognizes a convolution only with the input first; its GPU code rejects it otherwise.
        lhs, rhs = rhs, lhs
    summed = output if geometry.mode == "weight_backward" else filter_
    return DirectForm(
        lhs,
        rhs,
        result,
        _loops(_extents(geometry), result.subscripts, summed.subscripts),
        _name(geometry),
        _spread(geometry) if is_input_gradient else None,
        not is_input_gradient and _read_size(geometry) != geometry.padded_size,
    )


def _spread_size(geometry: ConvolutionGeometry) -> tuple[int, ...]:
    """Pixels of the spread gradient in input_backward, along each spatial axis."""
    return tuple(size + window - 1 for size, window in zip(geometry.size, geometry.window, strict=True))


def _spread(geometry: ConvolutionGeometry) -> Spread:
    """Where the gradient goes in input_backward.

    Before it are window - 1 - padding zeros; if that is negative, its first pixels are left out, and likewise
    its last ones.
    """
    spreads = []
    for window, padding, stride, outputs, size in zip(
        geometry.window,
        geometry.padding,
        geometry.stride,
        geometry.output_size,
        _spread_size(geometry),
        strict=True,
    ):
        low = window - 1 - padding
        first = max(0, -(low // stride))
        last = min(outputs - 1, (size - 1 - low) // stride)
        spreads.append((first, last - first + 1, low + stride * first))
    first_, count, offset = zip(*spreads, strict=True)
    return Spread(first_, count, offset)


def _image(
    geometry: ConvolutionGeometry, role: str, size: Sequence[int], subscripts: Sequence[str], channel: str
) -> IndexedTensor:
    """The input or the output, whose pixels are indexed by `subscripts` and channels by the loop `channel`."""
    of_group = geometry.channels_per_group if role == "input" else geometry.filters_per_group
    parts: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        axis: ((extent,), (subscript,))
        for axis, extent, subscript in zip(geometry.spatial_letters, size, subscripts, strict=True)
    }
    parts["n"] = ((geometry.batch,), ("n",))
    parts["c"] = _grouped(geometry, of_group, channel)
    return _indexed(parts, geometry.input_layout if role == "input" else geometry.output_layout)


def _filter(geometry: ConvolutionGeometry, taps: Sequence[str], channel: str, filter_: str) -> IndexedTensor:
    parts: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        axis: ((extent,), (tap,))
        for axis, extent, tap in zip(geometry.spatial_letters, geometry.filter_size, taps, strict=True)
    }
    parts["c"] = ((geometry.channels_per_group,), (channel,))
    parts["f"] = _grouped(geometry, geometry.filters_per_group, filter_)
    return _indexed(parts, geometry.filter_layout)


def _grouped(
    geometry: ConvolutionGeometry, extent: int, loop: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Channels of all groups: an axis for the group, and an axis for the channels of a group."""
    return ((extent,), (loop,)) if geometry.groups == 1 else ((geometry.groups, extent), ("g", loop))


def _indexed(parts: Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]], layout: str) -> IndexedTensor:
    ordered = [parts[letter] for letter in layout]
    return IndexedTensor(
        tuple(extents for extents, _ in ordered), tuple(itertools.chain(*(names for _, names in ordered)))
    )


def _extents(geometry: ConvolutionGeometry) -> dict[str, int]:
    """Loop -> its extent."""
    is_input_gradient = geometry.mode == "input_backward"
    channels, filters = geometry.channels_per_group, geometry.filters_per_group
    outputs = geometry.size if is_input_gradient else geometry.output_size
    return {
        "n": geometry.batch,
        "g": geometry.groups,
        "ic": filters if is_input_gradient else channels,
        "oc": channels if is_input_gradient else filters,
        **{f"o{axis}": n for axis, n in zip(geometry.spatial_letters, outputs, strict=True)},
        **{f"k{axis}": n for axis, n in zip(geometry.spatial_letters, geometry.filter_size, strict=True)},
    }


def _loops(extents: Mapping[str, int], parallel: Sequence[str], summed: Sequence[str]) -> tuple[Loop, ...]:
    """Loops over the result in its order, then the remaining loops of `summed`."""
    return (
        *(Loop(name, extents[name], "parallel") for name in parallel),
        *(Loop(name, extents[name], "reduction") for name in summed if name not in parallel),
    )


def _name(geometry: ConvolutionGeometry) -> str:
    """linalg's own operation for a dense convolution in its layouts: `conv_2d_nhwc_hwcf`."""
    if not geometry.is_canonical or geometry.variant != "dense":
        return ""
    return f"conv_{geometry.spatial_rank}d_{geometry.input_layout}_{geometry.filter_layout}"


def _depthwise(geometry: ConvolutionGeometry) -> DirectForm:
    """linalg's own operation for images with a filter for each channel; its filter has no axis for channels."""
    last = geometry.is_channels_last
    channels, (r, s) = geometry.channels, geometry.filter_size
    extents = {**_extents(geometry), "oc": channels}
    dense = ("n", "oh", "ow", "oc")
    taps = ((r,), (s,), (channels,)) if last else ((channels,), (r,), (s,))
    sizes = dict(zip("hw", _read_size(geometry), strict=True), n=geometry.batch, c=channels)
    return DirectForm(
        IndexedTensor(tuple((sizes[letter],) for letter in geometry.input_layout), ()),
        IndexedTensor(taps, ()),
        IndexedTensor(tuple((extent,) for extent in geometry.shape_of("output")), ()),
        _loops(extents, dense, ("kh", "kw")),
        f"depthwise_conv_2d_{'nhwc_hwc' if last else 'nchw_chw'}",
        is_cropped=_read_size(geometry) != geometry.padded_size,
    )


def _read_size(geometry: ConvolutionGeometry) -> tuple[int, ...]:
    """Size of the padded input, of which only one window is left along axes with one output.

    IREE 3.13 removes a loop of one iteration, and then rejects an input of which the taps read a part.
    """
    axes = zip(geometry.padded_size, geometry.window, geometry.output_size, strict=True)
    return tuple(window if outputs == 1 else padded for padded, window, outputs in axes)

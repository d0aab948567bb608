"""The forms of a convolution in each mode: which steps compute it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations.forms.builder import Builder, Labeled, Reduction
from dispatch_profiler.configurations.forms.forward import (
    FilterWindows,
    ForwardConvolution,
    as_conv2d,
    as_conv2d_per_block,
    as_conv2d_per_group,
    as_product,
    as_products_of_taps,
    as_rounded_product,
    columns,
    product,
    with_wide_result,
)
from dispatch_profiler.configurations.splits import sliceable_extent
from dispatch_profiler.operations import Contraction, ConvolutionGeometry, Tensor

# -- backward --------------------------------------------------------------------------------------

# The phases of a gradient along one spatial axis of a strided convolution, alone and in groups.


@dataclass(frozen=True)
class Phase:
    """Pixels `start`, `start + stride`, ... of the input: a convolution with stride 1 of the output's gradient.

    `taps` are the taps of the filter that reach these pixels, in ascending order; the convolution reads them in
    descending order. `padding` is (low, high); a negative amount removes pixels.
    """

    start: int
    extent: int
    taps: tuple[int, ...]
    dilation: int
    padding: tuple[int, int]


def phases_along(size: int, output: int, taps: int, stride: int, padding: int, dilation: int) -> list[Phase]:
    """The phases along an axis with `size` input and `output` output pixels; without phases whose pixels are zero.

    Output pixel y reads input pixel y * stride + tap * dilation - padding. So input pixel x = start + t *
    stride takes from output pixel t + (start + padding - tap * dilation) / stride, for the taps for which
    this is a whole number:

        stride 2, padding 1, three taps:  even pixels take tap 1, odd ones taps 0 and 2
    """
    phases = []
    for start in range(min(stride, size)):
        reaching = [tap for tap in range(taps) if (start + padding - tap * dilation) % stride == 0]
        if not reaching:
            continue
        extent = -((start - size) // stride)
        first = (start + padding - reaching[-1] * dilation) // stride
        last = (start + padding - reaching[0] * dilation) // stride
        if first >= output or last + extent <= 0:
            continue
        step = (last - first) // (len(reaching) - 1) if len(reaching) > 1 else 1
        high = extent - 1 + last - (output - 1)
        phases.append(Phase(start, extent, tuple(reaching), step, (-first, high)))
    return phases


@dataclass(frozen=True)
class PhaseGroup:
    """Phases `start`, `start + 1`, ..., `count` of them, that `taps` taps of the filter reach: one in each stride."""

    start: int
    count: int
    taps: int


def phase_groups(taps: int, stride: int) -> list[PhaseGroup]:
    """Phases by the number of taps, at most two groups; without phases that no tap reaches.

    stride 3, four taps:  phase 0 takes taps 0 and 3; phases 1 and 2 take taps 1 and 2
    """
    whole, more = divmod(taps, stride)
    groups = (PhaseGroup(0, more, whole + 1), PhaseGroup(more, stride - more, whole))
    return [each for each in groups if each.count and each.taps]


def _one_block(filters: int) -> int:
    return 1


@dataclass(frozen=True)
class ConvolutionLowering:
    """How one form computes a forward convolution, and the axes of the filter that it reads without a copy.

    `blocks` is the number of blocks that it divides a group's filters into. With several, the axis b counts them,
    and f the filters of a block.
    """

    lower: Callable[[Builder, ForwardConvolution], Labeled]
    filter_axes: Callable[[tuple[str, ...]], tuple[str, ...]]
    blocks: Callable[[int], int] = _one_block


def _product(builder: Builder, forward: ForwardConvolution) -> Labeled:
    return as_product(builder, forward, filters_left=False)


def _product_of_filters(builder: Builder, forward: ForwardConvolution) -> Labeled:
    return as_product(builder, forward, filters_left=True)


def filter_blocks(filters: int) -> int:
    """The number of blocks of 64 filters, or of 32; 1 if these do not divide `filters`."""
    size = next((size for size in (64, 32) if filters % size == 0), filters)
    return filters // size


CONV2D = ConvolutionLowering(as_conv2d, lambda taps: (*taps[-2:], *taps[:-2], "c", "g", "f"))
CONV2D_PER_BLOCK = ConvolutionLowering(
    as_conv2d_per_block, lambda taps: (*taps[-2:], "b", *taps[:-2], "c", "f"), filter_blocks
)
CONV2D_PER_GROUP = ConvolutionLowering(as_conv2d_per_group, lambda taps: ("g", *taps, "c", "f"))
PRODUCT = ConvolutionLowering(_product, lambda taps: ("g", *taps, "c", "f"))
PRODUCT_OF_FILTERS = ConvolutionLowering(_product_of_filters, lambda taps: ("g", "f", *taps, "c"))
PRODUCTS_OF_TAPS = ConvolutionLowering(as_products_of_taps, lambda taps: ("g", "f", *taps, "c"))
ROUNDED_PRODUCT = ConvolutionLowering(as_rounded_product, PRODUCT_OF_FILTERS.filter_axes)


class LabeledConvolution:
    """A convolution, its operands as labeled tensors, and the steps so far.

    `blocks` divides the channels of the result: filters of the output, or channels of the input's gradient.
    """

    def __init__(self, operation: Contraction, geometry: ConvolutionGeometry, blocks: int = 1) -> None:
        self.geometry = geometry
        self.builder = Builder()
        self.lhs, self.rhs = operation.operands[:2]
        self.types = with_wide_result(operation.types)
        self.epilogue = operation.epilogue
        self.spatial = tuple(geometry.spatial_letters)
        self.taps = tuple(f"k{axis}" for axis in self.spatial)
        self.group = ("g",) if geometry.groups > 1 else ()
        self.blocks = {"b": blocks} if blocks > 1 else {}

    # -- operands ---------------------------------------------------------------------------------

    def input(self, tensor: Tensor) -> Labeled:
        """The input, with the axes n, h, w, ..., g and c."""
        value = Labeled(tensor, tuple(self.geometry.input_layout))
        return self._grouped(value, "c", self.geometry.channels_per_group)

    def filter(self, tensor: Tensor, blocked: str = "f") -> Labeled:
        """The filter, with the axes kh, kw, ..., g, f, and the channels c of a group; b divides the axis `blocked`."""
        value = Labeled(tensor, tuple(self.geometry.filter_layout))
        value = value.renamed(dict(zip(self.spatial, self.taps, strict=True)))
        value = self._grouped(value, "f", self.geometry.filters_per_group)
        return self.builder.split(value, blocked, self.in_blocks(blocked, value.extents[blocked]))

    def in_blocks(self, axis: str, extent: int) -> dict[str, int]:
        """The axes b and `axis` that `extent` channels of the result have."""
        return {**self.blocks, axis: extent // math.prod(self.blocks.values())}

    def gradient(self, tensor: Tensor) -> Labeled:
        """The output's gradient, with the axes n, h, w, ..., g and f."""
        value = Labeled(tensor, tuple(self.geometry.output_layout)).renamed({"c": "f"})
        return self._grouped(value, "f", self.geometry.filters_per_group)

    def _grouped(self, value: Labeled, axis: str, each: int) -> Labeled:
        extents = {"g": self.geometry.groups, axis: each} if self.group else {axis: each}
        return self.builder.split(value, axis, extents)

    # -- results ----------------------------------------------------------------------------------

    def output_axes(self) -> tuple[str, ...]:
        """Axes of the output as it is stored: n, oh, ow, ..., g, b, f."""
        return self._axes(self.geometry.output_layout, {**self.outputs(), "c": "f"}, "f")

    def input_axes(self) -> tuple[str, ...]:
        """Axes of the input's gradient as it is stored: n, h, w, ..., g, b, c."""
        return self._axes(self.geometry.input_layout, {}, "c")

    def filter_axes(self) -> tuple[str, ...]:
        """Axes of the filter as it is stored: kh, kw, ..., c, g, f."""
        return self._axes(self.geometry.filter_layout, dict(zip(self.spatial, self.taps, strict=True)), "f")

    def outputs(self) -> dict[str, str]:
        """Spatial axis -> the output's spatial axis."""
        return {axis: f"o{axis}" for axis in self.spatial}

    def _axes(self, layout: str, names: Mapping[str, str], grouped: str) -> tuple[str, ...]:
        axes = (names.get(letter, letter) for letter in layout)
        whole = (*self.group, *self.blocks, grouped)
        return tuple(name for axis in axes for name in (whole if axis == grouped else (axis,)))

    def stored(self, value: Labeled, axes: Sequence[str], grouped: str) -> Labeled:
        """`value` with its axes in the order `axes`, and g and b combined with the axis `grouped`."""
        arranged = self.builder.permuted(value, axes, self.epilogue)
        whole = (*self.group, *self.blocks, grouped)
        plain = [axis for axis in axes if axis == grouped or axis not in whole]
        groups = {axis: whole if axis == grouped else (axis,) for axis in plain}
        return self.builder.merge(arranged, groups)

    def reduction(self, value: Labeled, axes: Sequence[str], grouped: str) -> Reduction:
        """The steps so far, with `value` as the sums."""
        sums = self.stored(value, axes, grouped)
        return Reduction(tuple(self.builder.steps), sums.tensor)

    # -- geometry ---------------------------------------------------------------------------------

    def _along(self) -> tuple[tuple[int, ...], ...]:
        """Arguments of `_used_padding`, each with an entry for each spatial axis."""
        it = self.geometry
        taps, steps = (it.size, it.output_size, it.filter_size), (it.stride, it.dilation)
        return (*taps, *steps, it.padding, it.padding_after)

    def windows(self, image: Labeled) -> FilterWindows:
        """The windows of the forward convolution."""
        geometry = self.geometry
        return FilterWindows(
            image,
            self.spatial,
            geometry.filter_size,
            geometry.stride,
            geometry.dilation,
            tuple(map(_used_padding, *self._along())),
            geometry.output_size,
            tuple(axis for axis in self.output_axes() if axis not in ("g", "b", "f")),
        )


def _used_padding(
    size: int, output: int, taps: int, stride: int, dilation: int, low: int, high: int
) -> tuple[int, int]:
    """(low, high) padding, without pixels that no window reads.

    Pixels that no window reads are removed only if there is one output pixel: the compiler then drops its loop,
    and rejects an image that is larger than the window.
    """
    needed = (output - 1) * stride + (taps - 1) * dilation + 1 - size - low
    return (low, needed if output == 1 else min(high, max(0, needed)))


# -- modes -----------------------------------------------------------------------------------------------


def forward(
    operation: Contraction, geometry: ConvolutionGeometry, lowering: ConvolutionLowering
) -> Reduction:
    """Mode forward: lhs is the input, rhs the filter."""
    it = LabeledConvolution(operation, geometry, lowering.blocks(geometry.filters_per_group))
    image, filter_ = it.input(it.lhs), it.filter(it.rhs)
    sums = lowering.lower(it.builder, ForwardConvolution(it.windows(image), filter_, it.types))
    return it.reduction(sums, it.output_axes(), "f")


def geometry_along(geometry: ConvolutionGeometry) -> tuple[tuple[int, ...], ...]:
    """Arguments of `phases_along`, each with an entry for each spatial axis."""
    it = geometry
    return it.size, it.output_size, it.filter_size, it.stride, it.padding, it.dilation


def input_backward(
    operation: Contraction, geometry: ConvolutionGeometry, lowering: ConvolutionLowering
) -> Reduction:
    """Mode input_backward: lhs is the output's gradient, rhs the filter.

    The pixels of the input at one distance from a multiple of the stride are a convolution of the gradient with
    stride 1: a phase. Its filter has the taps that reach these pixels, reversed, with f and c exchanged.
    """
    it = LabeledConvolution(operation, geometry, lowering.blocks(geometry.channels_per_group))
    gradient = it.gradient(it.lhs).renamed({"f": "c"})
    filter_ = it.filter(it.rhs, blocked="c")
    along = list(map(phases_along, *geometry_along(geometry)))
    axes = it.input_axes()
    parts, starts = [], []
    for phases in itertools.product(*along):
        sums = _phase(it, gradient, filter_, phases, lowering)
        if all(stride == 1 for stride in geometry.stride):
            return it.reduction(sums, axes, "c")
        if it.builder.moves(sums, axes):
            sums = it.builder.barrier(sums)
        parts.append(it.builder.arrange("arranged", sums, axes))
        starts.append({axis: phase.start for axis, phase in zip(it.spatial, phases, strict=True)})
    sizes = {"n": geometry.batch, "g": geometry.groups, **it.in_blocks("c", geometry.channels_per_group)}
    sizes |= dict(zip(it.spatial, geometry.size, strict=True))
    strides = dict(zip(it.spatial, geometry.stride, strict=True))
    extents = {axis: sizes[axis] for axis in axes}
    joined = it.builder.interleave(parts, starts, extents, strides, it.types.accumulator)
    return it.reduction(joined, axes, "c")


def _phase(
    it: LabeledConvolution,
    gradient: Labeled,
    filter_: Labeled,
    phases: Sequence[Phase],
    lowering: ConvolutionLowering,
) -> Labeled:
    """The pixels of one phase along each spatial axis, with the axes n, h, w, ..., g, b, c."""
    windows = FilterWindows(
        gradient,
        it.spatial,
        tuple(len(phase.taps) for phase in phases),
        (1,) * len(phases),
        tuple(phase.dilation for phase in phases),
        tuple(phase.padding for phase in phases),
        tuple(phase.extent for phase in phases),
        tuple(
            f"o{axis}" if axis in it.spatial else axis
            for axis in it.input_axes()
            if axis not in ("g", "b", "c")
        ),
    )
    exchanged = filter_.renamed({"f": "c", "c": "f"})
    order = tuple(axis for axis in lowering.filter_axes(it.taps) if axis in exchanged.axes)
    taps = [phase.taps for phase in phases]
    turned = _turned(it.builder, exchanged, order, dict(zip(it.taps, taps, strict=True)))
    sums = lowering.lower(it.builder, ForwardConvolution(windows, turned, it.types))
    return sums.renamed({"f": "c", **{f"o{axis}": axis for axis in it.spatial}})


def input_backward_of_many_phases(
    operation: Contraction, geometry: ConvolutionGeometry, lowering: ConvolutionLowering
) -> Reduction:
    """Like `input_backward` without dilation, but phases with equally many taps are filters of one convolution.

    Its result has the pixels of these phases as channels, which are then stored side by side:

        stride 2, four taps:   pixel 2 y + r - padding takes taps r and r + 2 of the gradient's pixels y and y - 1
        stride 4, three taps:  pixel 4 y + r - padding takes tap r of pixel y if r < 3, and is 0 if r = 3
    """
    it = LabeledConvolution(operation, geometry)
    builder, phases = it.builder, tuple(f"r{axis}" for axis in it.spatial)
    gradient, filter_ = it.gradient(it.lhs).renamed({"f": "c"}), it.filter(it.rhs)
    for tap, phase, taps, stride in zip(it.taps, phases, geometry.filter_size, geometry.stride, strict=True):
        steps = -(-taps // stride)
        filter_ = builder.pad(filter_, {tap: (0, steps * stride - taps)})
        filter_ = builder.split(filter_, tap, {tap: steps, phase: stride})
    # x + padding = stride * y + r
    extents = tuple(
        -(-(size + padding) // stride)
        for size, padding, stride in zip(geometry.size, geometry.padding, geometry.stride, strict=True)
    )
    axes, sides = _beside(it)
    parts, starts = [], []
    for group in itertools.product(*map(phase_groups, geometry.filter_size, geometry.stride)):
        sums = _phases(it, gradient, filter_, group, extents, lowering)
        if builder.moves(sums, axes):
            sums = builder.barrier(sums)
        parts.append(builder.arrange("arranged", sums, axes))
        starts.append({phase: each.start for phase, each in zip(phases, group, strict=True)})
    if len(parts) == 1 and all(
        parts[0].extents[x] == n for x, n in zip(phases, geometry.stride, strict=True)
    ):
        joined = parts[0]
    else:
        sizes = {**parts[0].extents, **dict(zip(phases, geometry.stride, strict=True))}
        joined = builder.interleave(
            parts, starts, {axis: sizes[axis] for axis in axes}, {}, it.types.accumulator
        )
    pixels = builder.merge(joined, sides)
    for axis, padding, size in zip(it.spatial, geometry.padding, geometry.size, strict=True):
        pixels = builder.part(pixels, axis, padding, size)
    return it.reduction(pixels, it.input_axes(), "c")


def _beside(it: LabeledConvolution) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The axes of the input's gradient with oh and rh in place of h, ..., and the axes that each axis combines."""
    groups: dict[str, tuple[str, ...]] = {axis: (axis,) for axis in it.input_axes()}
    groups |= {axis: (f"o{axis}", f"r{axis}") for axis in it.spatial}
    return tuple(axis for group in groups.values() for axis in group), groups


def _phases(
    it: LabeledConvolution,
    gradient: Labeled,
    filter_: Labeled,
    group: Sequence[PhaseGroup],
    extents: tuple[int, ...],
    lowering: ConvolutionLowering,
) -> Labeled:
    """The pixels of some phases, with the axes n, oh, rh, ow, rw, ..., g, c in some order.

    `filter_` has an axis for phases, such as rh, besides each of taps.
    """
    builder, phases = it.builder, tuple(f"r{axis}" for axis in it.spatial)
    for tap, phase, each in zip(it.taps, phases, group, strict=True):
        filter_ = builder.part(builder.part(filter_, phase, each.start, each.count), tap, 0, each.taps)
    exchanged = filter_.renamed({"f": "c", "c": "f"})
    plain = [axis for axis in lowering.filter_axes(it.taps) if axis in exchanged.axes]
    combined = {axis: (*phases, "f") if axis == "f" else (axis,) for axis in plain}
    order = tuple(axis for names in combined.values() for axis in names)
    taps = {tap: tuple(range(each.taps)) for tap, each in zip(it.taps, group, strict=True)}
    turned = builder.merge(_turned(builder, exchanged, order, taps), combined)
    ones = (1,) * len(group)
    windows = FilterWindows(
        gradient,
        it.spatial,
        tuple(each.taps for each in group),
        ones,
        ones,
        tuple(
            (each.taps - 1, extent - output)
            for each, extent, output in zip(group, extents, it.geometry.output_size, strict=True)
        ),
        extents,
        tuple(
            f"o{axis}" if axis in it.spatial else axis for axis in it.input_axes() if axis not in ("g", "c")
        ),
    )
    sums = lowering.lower(builder, ForwardConvolution(windows, turned, it.types))
    counts = {phase: each.count for phase, each in zip(phases, group, strict=True)}
    return builder.split(sums, "f", {**counts, "c": it.geometry.channels_per_group})


def _turned(
    builder: Builder, filter_: Labeled, order: Sequence[str], taps: Mapping[str, tuple[int, ...]]
) -> Labeled:
    """`filter_` with only `taps` along each of their axes, the last one first, and its axes in the order `order`.

    Each tap is copied separately: one loop nest over descending indices would not be vectorized.
    """
    if all(filter_.extents[axis] == 1 for axis in taps):
        return builder.arrange("turned", filter_, order, store=True)
    parts, starts = [], []
    for tap in itertools.product(*(tuple(enumerate(reversed(each))) for each in taps.values())):
        part = filter_
        for axis, (_, index) in zip(taps, tap, strict=True):
            part = builder.part(part, axis, index)
        parts.append(builder.arrange("turned", part, order))
        starts.append({axis: position for axis, (position, _) in zip(taps, tap, strict=True)})
    sizes = {**filter_.extents, **{axis: len(each) for axis, each in taps.items()}}
    joined = builder.interleave(parts, starts, {axis: sizes[axis] for axis in order}, {}, filter_.tensor.type)
    return builder.barrier(joined)


def weight_backward(
    operation: Contraction, geometry: ConvolutionGeometry, *, filters_left: bool
) -> Reduction:
    """Mode weight_backward: lhs is the output's gradient, rhs the input; a matrix product for each group.

    Its left operand are the columns; with `filters_left`, it is the gradient.
    """
    it = LabeledConvolution(operation, geometry)
    gradient = it.gradient(it.lhs).renamed(it.outputs())
    windows = it.windows(it.input(it.rhs))
    axes = it.filter_axes()
    inner = [axis for axis in axes if axis not in ("g", "f")]
    gathered = columns(it.builder, windows, inner, pixels_last=not filters_left)
    pixels = windows.pixels
    order = (*it.group, "f", *pixels) if filters_left else (*it.group, *pixels, "f")
    grouped = {axis: (axis,) for axis in it.group}
    halves: dict[str, Sequence[str]] = (
        {"f": ("f",), "p": pixels} if filters_left else {"p": pixels, "f": ("f",)}
    )
    arranged = it.builder.arrange("gradient", gradient, order, store=True)
    gradients = it.builder.merge(arranged, {**grouped, **halves})
    if filters_left:
        sums = product(it.builder, gradients, gathered, ("f", "j", "p"), it.types)
    else:
        sums = product(it.builder, gathered, gradients, ("j", "f", "p"), it.types)
    sums = it.builder.split(sums, "j", {axis: windows.extents[axis] for axis in inner})
    return it.reduction(sums, axes, "f")


def weight_backward_by_taps(operation: Contraction, geometry: ConvolutionGeometry) -> Reduction:
    """Mode weight_backward with stride 1: a matrix product for each tap, gradient x the pixels that the tap reads.

    Zeros after each row, column, ... of the gradient give it as many pixels as the padded image. Counted over all
    axes, pixel p of the gradient then meets pixel p + offset of the image, with one offset for each tap:

        4x4 image, 3x3 filter, 2x2 gradient: tap (kh, kw) has the offset 4 * kh + kw
    """
    it = LabeledConvolution(operation, geometry)
    windows = it.windows(it.input(it.rhs))
    taps = list(itertools.product(*map(range, windows.taps)))
    image = it.builder.arrange("image", windows.image, ("n", *it.spatial, "c"), store=True)
    image = it.builder.pad(image, dict(zip(it.spatial, windows.padding, strict=True)))
    gradient = it.builder.arrange("gradient", it.gradient(it.lhs), ("n", *it.spatial, "f"), store=True)
    more = {axis: (0, image.extents[axis] - gradient.extents[axis]) for axis in it.spatial}
    gradient = it.builder.pad(gradient, more)
    sizes = [image.extents[axis] for axis in it.spatial]
    steps = [math.prod(sizes[axis + 1 :]) * each for axis, each in enumerate(windows.dilation)]
    offsets = [sum(index * step for index, step in zip(tap, steps, strict=True)) for tap in taps]
    read, given = (
        it.builder.merge(value, {"p": ("n", *it.spatial), axis: (axis,)})
        for value, axis in ((image, "c"), (gradient, "f"))
    )
    # Zeros after the last pixels give long sums a length that slices divide.
    terms = read.extents["p"] - offsets[-1]
    count = sliceable_extent(terms, it.types.input)
    if count > terms:
        read, given = (it.builder.pad(each, {"p": (0, count - terms)}) for each in (read, given))
    given = it.builder.part(given, "p", 0, count)
    parts = [
        product(
            it.builder,
            given,
            it.builder.part(read, "p", offset, count),
            ("f", "c", "p"),
            it.types,
            ("n", "t"),
        )
        for offset in offsets
    ]
    extents = {"taps": len(taps), **parts[0].extents}
    joined = it.builder.interleave(
        [it.builder.split(part, "f", {"taps": 1, "f": part.extents["f"]}) for part in parts],
        [{"taps": index} for index in range(len(taps))],
        extents,
        {},
        it.types.accumulator,
    )
    sums = it.builder.split(joined, "taps", dict(zip(it.taps, windows.taps, strict=True)))
    return it.reduction(sums, it.filter_axes(), "f")

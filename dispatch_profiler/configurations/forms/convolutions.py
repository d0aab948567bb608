"""The forms of a convolution in each mode: which steps compute it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations.forms.backward import Phase, phases_along
from dispatch_profiler.configurations.forms.builder import Builder, Reduction
from dispatch_profiler.configurations.forms.forward import (
    Forward,
    Windows,
    as_conv2d,
    as_conv2d_per_group,
    as_product,
    columns,
    product,
)
from dispatch_profiler.configurations.forms.steps import Index, Labeled
from dispatch_profiler.operations import Contraction, ConvolutionGeometry, ElementTypes, Tensor


@dataclass(frozen=True)
class Lowering:
    """How one form computes a forward convolution, and the axes of the filter that it reads without a copy."""

    lower: Callable[[Builder, Forward], Labeled]
    filter_axes: Callable[[tuple[str, ...]], tuple[str, ...]]


def _product(builder: Builder, forward: Forward) -> Labeled:
    return as_product(builder, forward, filters_left=False)


def _product_of_filters(builder: Builder, forward: Forward) -> Labeled:
    return as_product(builder, forward, filters_left=True)


CONV2D = Lowering(as_conv2d, lambda taps: (*taps[-2:], *taps[:-2], "c", "g", "f"))
CONV2D_PER_GROUP = Lowering(as_conv2d_per_group, lambda taps: ("g", *taps, "c", "f"))
PRODUCT = Lowering(_product, lambda taps: ("g", *taps, "c", "f"))
PRODUCT_OF_FILTERS = Lowering(_product_of_filters, lambda taps: ("g", "f", *taps, "c"))


class _Convolution:
    """A convolution, its operands as labeled tensors, and the steps so far."""

    def __init__(self, operation: Contraction, geometry: ConvolutionGeometry) -> None:
        self.geometry = geometry
        self.builder = Builder()
        self.lhs, self.rhs = operation.operands[:2]
        self.types = with_wide_result(operation.types)
        self.spatial = tuple(geometry.spatial_letters)
        self.taps = tuple(f"k{axis}" for axis in self.spatial)
        self.group = ("g",) if geometry.groups > 1 else ()

    # -- operands ---------------------------------------------------------------------------------

    def input(self, tensor: Tensor) -> Labeled:
        """The input, with the axes n, h, w, ..., g and c."""
        value = Labeled(tensor, tuple(self.geometry.input_layout))
        return self._grouped(value, "c", self.geometry.channels_per_group)

    def filter(self, tensor: Tensor) -> Labeled:
        """The filter, with the axes kh, kw, ..., g, f, and the channels c of a group."""
        value = Labeled(tensor, tuple(self.geometry.filter_layout))
        value = value.renamed(dict(zip(self.spatial, self.taps, strict=True)))
        return self._grouped(value, "f", self.geometry.filters_per_group)

    def gradient(self, tensor: Tensor) -> Labeled:
        """The output's gradient, with the axes n, h, w, ..., g and f."""
        value = Labeled(tensor, tuple(self.geometry.output_layout)).renamed({"c": "f"})
        return self._grouped(value, "f", self.geometry.filters_per_group)

    def _grouped(self, value: Labeled, axis: str, each: int) -> Labeled:
        extents = {"g": self.geometry.groups, axis: each} if self.group else {axis: each}
        return self.builder.split(value, axis, extents)

    # -- results ----------------------------------------------------------------------------------

    def output_axes(self) -> tuple[str, ...]:
        """Axes of the output as it is stored: n, oh, ow, ..., g, f."""
        return self._axes(self.geometry.output_layout, {**self.outputs(), "c": "f"}, "f")

    def input_axes(self) -> tuple[str, ...]:
        """Axes of the input as it is stored: n, h, w, ..., g, c."""
        return self._axes(self.geometry.input_layout, {}, "c")

    def filter_axes(self) -> tuple[str, ...]:
        """Axes of the filter as it is stored: kh, kw, ..., c, g, f."""
        return self._axes(self.geometry.filter_layout, dict(zip(self.spatial, self.taps, strict=True)), "f")

    def outputs(self) -> dict[str, str]:
        """Spatial axis -> that of the output."""
        return {axis: f"o{axis}" for axis in self.spatial}

    def _axes(self, layout: str, names: Mapping[str, str], grouped: str) -> tuple[str, ...]:
        axes = (names.get(letter, letter) for letter in layout)
        return tuple(name for axis in axes for name in ((*self.group, axis) if axis == grouped else (axis,)))

    def stored(self, value: Labeled, axes: Sequence[str], grouped: str) -> Labeled:
        """`value` with its axes in the order `axes`, and g combined with the axis `grouped`.

        A permutation is done apart from what makes `value`: fused with it, it would make that slow.
        """
        if self.builder.moves(value, axes):
            value = self.builder.barrier(value)
        arranged = self.builder.arrange("arranged", value, axes)
        plain = [axis for axis in axes if axis != "g"]
        groups = {axis: (*self.group, axis) if axis == grouped else (axis,) for axis in plain}
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

    def windows(self, image: Labeled) -> Windows:
        """The windows of the forward convolution."""
        geometry = self.geometry
        return Windows(
            image,
            self.spatial,
            geometry.filter_size,
            geometry.stride,
            geometry.dilation,
            tuple(map(_used_padding, *self._along())),
            geometry.output_size,
            tuple(axis for axis in self.output_axes() if axis not in ("g", "f")),
        )


def _used_padding(
    size: int, output: int, taps: int, stride: int, dilation: int, low: int, high: int
) -> tuple[int, int]:
    """(low, high) padding, without what no window reads.

    Pixels that no window reads are removed only if there is one output pixel: the compiler then drops its loop,
    and rejects an image that is larger than the window.
    """
    needed = (output - 1) * stride + (taps - 1) * dilation + 1 - size - low
    return (low, needed if output == 1 else min(high, max(0, needed)))


def with_wide_result(types: ElementTypes) -> ElementTypes:
    """Types of a kernel whose result is the sums, in the accumulator's type."""
    return ElementTypes(types.lhs, types.rhs, types.accumulator.name, types.sums)


# -- modes -----------------------------------------------------------------------------------------------


def forward(operation: Contraction, geometry: ConvolutionGeometry, lowering: Lowering) -> Reduction:
    """Mode forward: lhs is the input, rhs the filter."""
    it = _Convolution(operation, geometry)
    image, filter_ = it.input(it.lhs), it.filter(it.rhs)
    sums = lowering.lower(it.builder, Forward(it.windows(image), filter_, it.types))
    return it.reduction(sums, it.output_axes(), "f")


def input_backward(operation: Contraction, geometry: ConvolutionGeometry, lowering: Lowering) -> Reduction:
    """Mode input_backward: lhs is the output's gradient, rhs the filter.

    The pixels of the input at one distance from a multiple of the stride are a convolution of the gradient with
    stride 1: a phase. Its filter has the taps that reach these pixels, reversed, with f and c exchanged.
    """
    it = _Convolution(operation, geometry)
    gradient = it.gradient(it.lhs).renamed({"f": "c"})
    filter_ = it.filter(it.rhs)
    along = [
        phases_along(*each)
        for each in zip(
            geometry.size,
            geometry.output_size,
            geometry.filter_size,
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            strict=True,
        )
    ]
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
    sizes = {"n": geometry.batch, "g": geometry.groups, "c": geometry.channels_per_group}
    sizes |= dict(zip(it.spatial, geometry.size, strict=True))
    strides = dict(zip(it.spatial, geometry.stride, strict=True))
    extents = {axis: sizes[axis] for axis in axes}
    joined = it.builder.interleave(parts, starts, extents, strides, it.types.accumulator)
    return it.reduction(joined, axes, "c")


def _phase(
    it: _Convolution, gradient: Labeled, filter_: Labeled, phases: Sequence[Phase], lowering: Lowering
) -> Labeled:
    """The pixels of one phase along each spatial axis, with the axes n, h, w, ..., g, c."""
    windows = Windows(
        gradient,
        it.spatial,
        tuple(len(phase.taps) for phase in phases),
        (1,) * len(phases),
        tuple(phase.dilation for phase in phases),
        tuple(phase.padding for phase in phases),
        tuple(phase.extent for phase in phases),
        tuple(
            f"o{axis}" if axis in it.spatial else axis for axis in it.input_axes() if axis not in ("g", "c")
        ),
    )
    sizes = {**windows.extents, "c": filter_.extents["f"], "f": filter_.extents["c"]}
    order = tuple(axis for axis in lowering.filter_axes(it.taps) if axis in sizes)
    exchanged = {"f": Index((("c", 1),)), "c": Index((("f", 1),))}
    if all(phase.taps == (0,) for phase in phases) and set(it.geometry.filter_size) == {1}:
        turned = it.builder.arrange("turned", filter_.renamed({"f": "c", "c": "f"}), order, store=True)
    else:
        taps = {tap: phase.index(tap) for tap, phase in zip(it.taps, phases, strict=True)}
        extents = {axis: sizes[axis] for axis in order}
        turned = it.builder.barrier(it.builder.gather("turned", filter_, extents, {**exchanged, **taps}))
    sums = lowering.lower(it.builder, Forward(windows, turned, it.types))
    return sums.renamed({"f": "c", **{f"o{axis}": axis for axis in it.spatial}})


def weight_backward(
    operation: Contraction, geometry: ConvolutionGeometry, *, filters_left: bool
) -> Reduction:
    """Mode weight_backward: lhs is the output's gradient, rhs the input; a matrix product for each group.

    Its left operand are the columns; with `filters_left`, it is the gradient.
    """
    it = _Convolution(operation, geometry)
    gradient = it.gradient(it.lhs).renamed(it.outputs())
    windows = it.windows(it.input(it.rhs))
    axes = it.filter_axes()
    inner = [axis for axis in axes if axis not in ("g", "f")]
    found = columns(it.builder, windows, inner, pixels_last=not filters_left)
    pixels = windows.pixels
    order = (*it.group, "f", *pixels) if filters_left else (*it.group, *pixels, "f")
    grouped = {axis: (axis,) for axis in it.group}
    halves: dict[str, Sequence[str]] = (
        {"f": ("f",), "p": pixels} if filters_left else {"p": pixels, "f": ("f",)}
    )
    arranged = it.builder.arrange("gradient", gradient, order, store=True)
    gradients = it.builder.merge(arranged, {**grouped, **halves})
    if filters_left:
        sums = product(it.builder, gradients, found, ("f", "j", "p"), it.types)
    else:
        sums = product(it.builder, found, gradients, ("j", "f", "p"), it.types)
    sums = it.builder.split(sums, "j", {axis: windows.extents[axis] for axis in inner})
    return it.reduction(sums, axes, "f")


def is_nhwc(geometry: ConvolutionGeometry) -> bool:
    """Whether it is a forward conv2d in nhwc, hwcf: what other convolutions are reduced to."""
    layouts = (geometry.input_layout, geometry.filter_layout, geometry.output_layout)
    return geometry.mode == "forward" and layouts == ("nhwc", "hwcf", "nhwc")

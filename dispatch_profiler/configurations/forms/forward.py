"""A forward convolution as matrix products, or as canonical two-dimensional convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dispatch_profiler.configurations.forms.builder import Builder, Index, Labeled
from dispatch_profiler.configurations.splits import lengths_of_slices
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul

#: Convolutions that one is divided into, for precise sums: each is compiled by itself.
_MOST_KERNELS = 16


@dataclass(frozen=True)
class FilterWindows:
    """The windows of an image that a filter reads; every tuple has an entry for each spatial axis.

    `image` has, in any order, the axes n, c and `spatial`, such as h and w; with several groups also g, and c then
    counts the channels of a group. `padding` has (low, high); a negative amount removes pixels.
    """

    image: Labeled
    spatial: tuple[str, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    output: tuple[int, ...]
    #: n, oh, ow, ...: the axes of the output's pixels, in the order in which they are stored.
    pixels: tuple[str, ...]

    @property
    def extents(self) -> dict[str, int]:
        """Extents of n, g, c, the taps (kh, kw, ...) and the output's pixels (oh, ow, ...)."""
        extents = {axis: extent for axis, extent in self.image.extents.items() if axis not in self.spatial}
        for axis, taps, size in zip(self.spatial, self.taps, self.output, strict=True):
            extents |= {f"k{axis}": taps, f"o{axis}": size}
        return extents

    @property
    def group(self) -> tuple[str, ...]:
        """The axis of groups, if there are several."""
        return tuple(axis for axis in self.image.axes if axis == "g")


@dataclass(frozen=True)
class ForwardConvolution:
    """A forward convolution. `filter` has the axes f, c, kh, kw, ..., and g if the image has it, in any order."""

    windows: FilterWindows
    filter: Labeled
    types: ElementTypes


# -- as a matrix product -------------------------------------------------------------------------------


def columns(builder: Builder, windows: FilterWindows, inner: Sequence[str], *, pixels_last: bool) -> Labeled:
    """The elements of every window, with the axes g, p, j; with `pixels_last` g, j, p.

    p combines `windows.pixels`; j combines `inner`, which are c and the taps in some order.
    """
    sizes = windows.extents
    # A tap of extent 1 needs no loop.
    window = [axis for axis in inner if axis == "c" or sizes[axis] > 1]
    order = (*window, *windows.pixels) if pixels_last else (*windows.pixels, *window)
    extents = {axis: sizes[axis] for axis in (*windows.group, *order)}
    image = builder.pad(windows.image, dict(zip(windows.spatial, windows.padding, strict=True)))
    indices = {}
    for axis, stride, dilation in zip(windows.spatial, windows.stride, windows.dilation, strict=True):
        tap = ((f"k{axis}", dilation),) if f"k{axis}" in window else ()
        indices[axis] = Index(((f"o{axis}", stride), *tap))
    # A filter of one tap with stride 1 reads the image as it is.
    if all(index.loop for index in indices.values()):
        plain = image.renamed({axis: f"o{axis}" for axis in windows.spatial})
        arranged = builder.arrange("columns", plain, tuple(extents), store=True)
    else:
        arranged = builder.barrier(builder.gather("columns", image, extents, indices))
    halves = {"j": window, "p": windows.pixels} if pixels_last else {"p": windows.pixels, "j": window}
    return builder.merge(arranged, {**_alone(windows.group), **halves})


def as_product(builder: Builder, forward: ForwardConvolution, *, filters_left: bool) -> Labeled:
    """The sums as one matrix product for each group, with the axes g, f and the axes of pixels, in some order.

    Its left operand are the columns, and its result is pixels x filters; with `filters_left`, its left operand is
    the filter, and its result is filters x pixels. A filter whose axis f is first or last is read as it is.
    """
    windows, filter_ = forward.windows, forward.filter
    inner = [axis for axis in filter_.axes if axis not in ("g", "f")]
    is_last = filter_.axes[-1] == "f"
    order = (*inner, "f") if is_last else ("f", *inner)
    arranged = builder.arrange("filters", filter_, (*windows.group, *order), store=True)
    names: dict[str, Sequence[str]] = {"j": inner, "f": ("f",)} if is_last else {"f": ("f",), "j": inner}
    filters = builder.merge(arranged, {**_alone(windows.group), **names})
    pixels = columns(builder, windows, inner, pixels_last=filters_left)
    # A Matmul's layout is "n" if its lhs is stored as k x m, or its rhs as n x k.
    if filters_left:
        layouts = ("n" if is_last else "t", "t")
        sums = product(builder, filters, pixels, ("f", "p", "j"), forward.types, layouts)
    else:
        layouts = ("t", "t" if is_last else "n")
        sums = product(builder, pixels, filters, ("p", "f", "j"), forward.types, layouts)
    return builder.split(sums, "p", {axis: windows.extents[axis] for axis in windows.pixels})


def as_products_of_taps(builder: Builder, forward: ForwardConvolution) -> Labeled:
    """The sums of a convolution with stride 1, with the axes g, f, n, oh, ow, ... in some order.

    One matrix product for each group multiplies every pixel with every tap of every filter. An output pixel
    is then the sum of its taps' products with the pixels that they read:

        three taps, padding 1:  out[x] = tap 0 of pixel x - 1, plus tap 1 of pixel x, plus tap 2 of pixel x + 1
    """
    windows = forward.windows
    taps = tuple(f"k{axis}" for axis in windows.spatial)
    pixels = ("n", *windows.spatial)
    rows = {"j": ("f", *taps), "c": ("c",)}
    filters = builder.arrange("filters", forward.filter, (*windows.group, "f", *taps, "c"), store=True)
    filters = builder.merge(filters, {**_alone(windows.group), **rows})
    is_last = windows.image.axes[-1] == "c"
    halves: dict[str, Sequence[str]] = {"p": pixels, "c": ("c",)} if is_last else {"c": ("c",), "p": pixels}
    order = (*windows.group, *(axis for half in halves.values() for axis in half))
    image = builder.arrange("image", windows.image, order, store=True)
    image = builder.merge(image, {**_alone(windows.group), **halves})
    if is_last:
        sums = product(builder, image, filters, ("p", "j", "c"), forward.types, ("t", "n"))
    else:
        sums = product(builder, filters, image, ("j", "p", "c"), forward.types)
    extents = {**windows.image.extents, **forward.filter.extents}
    for axis, parts in (("j", rows["j"]), ("p", pixels)):
        sums = builder.split(sums, axis, {part: extents[part] for part in parts})
    padded = builder.pad(sums, dict(zip(windows.spatial, windows.padding, strict=True)))
    return builder.sum(list(_shifted(builder, windows, builder.barrier(padded))))


def _shifted(builder: Builder, windows: FilterWindows, sums: Labeled) -> Iterator[Labeled]:
    """The terms of each tap, for every output pixel; `sums` has axes of the padded image and of the taps."""
    for place in itertools.product(*map(range, windows.taps)):
        part = sums
        for axis, tap, step, size in zip(
            windows.spatial, place, windows.dilation, windows.output, strict=True
        ):
            part = builder.part(builder.part(part, f"k{axis}", tap), axis, tap * step, size)
        for axis in windows.spatial:
            part = builder.without(part, f"k{axis}")
        yield part.renamed({axis: f"o{axis}" for axis in windows.spatial})


def as_rounded_product(builder: Builder, forward: ForwardConvolution) -> Labeled:
    """Like `as_product` with the filter on the left, for `rounded` pixels; pixels beyond the output are cut off.

    7x7 pixels -> 8x8 = two vectors of 32, where 49 pixels would leave a remainder.
    """
    windows = forward.windows
    output = rounded(windows.image.extents["n"], windows.output)
    padding = tuple(
        (low, high + (more - size) * stride)
        for (low, high), more, size, stride in zip(
            windows.padding, output, windows.output, windows.stride, strict=True
        )
    )
    wider = replace(windows, padding=padding, output=output)
    sums = as_product(builder, replace(forward, windows=wider), filters_left=True)
    for axis, size in zip(windows.spatial, windows.output, strict=True):
        sums = builder.part(sums, f"o{axis}", 0, size)
    return sums


def rounded(images: int, output: tuple[int, ...]) -> tuple[int, ...]:
    """The output with the fewest pixels that are a multiple of 32 in all, made larger along its last two axes."""
    fixed, plane = output[:-2], output[-2:]
    larger = itertools.product(*(range(size, size + 32) for size in plane))
    count = images * math.prod(fixed)
    return (*fixed, *min((each for each in larger if count * math.prod(each) % 32 == 0), key=math.prod))


def with_wide_result(types: ElementTypes) -> ElementTypes:
    """Types of a kernel whose result is the sums, in the accumulator's type."""
    return ElementTypes(types.lhs, types.rhs, types.accumulator.name, types.sums)


def product(
    builder: Builder,
    lhs: Labeled,
    rhs: Labeled,
    axes: tuple[str, str, str],
    types: ElementTypes,
    layouts: tuple[str, str] = ("t", "t"),
) -> Labeled:
    """The product over the last of `axes` (m, n, k); if the operands have an axis g, one for each g."""
    m, n, k = axes
    size = {**lhs.extents, **rhs.extents}
    shape = (size[m], size[n], size[k])
    if "g" not in size:
        return builder.kernel(Matmul(*shape, types, *layouts), lhs, rhs, (m, n))
    return builder.kernel(BatchMatmul(size["g"], *shape, types, *layouts), lhs, rhs, ("g", m, n))


# -- as a canonical convolution ------------------------------------------------------------------------


def as_conv2d(builder: Builder, forward: ForwardConvolution) -> Labeled:
    """The sums as one conv2d (nhwc, hwcf), with the axes n, oh, ow, ..., g and f, in this order.

    Taps along a third spatial axis are gathered into channels: each of the n * od images has kd * c channels.
    All taps of a filter with one row or column are gathered too, because the code generator has no fast
    convolution for such filters: the conv2d is then pointwise.
    """
    gathered = _gathered(forward.windows)
    image = _image(builder, forward.windows, gathered, forward.filter.axes)
    return _conv2d(builder, forward, image, _filter(builder, forward, gathered))


def as_conv2d_per_block(builder: Builder, forward: ForwardConvolution) -> Labeled:
    """The sums as one conv2d for each block of filters, with the axes b, n, oh, ow, ... and f, in this order.

    A convolution reads a few filters of one tap and channel, then of the next. With many filters side by
    side, the filters of one tap and channel lie so far apart that they evict each other from the caches; the
    filters of a block are close together.
    """
    gathered = _gathered(forward.windows)
    image = _image(builder, forward.windows, gathered, forward.filter.axes)
    filters = _filter(builder, forward, gathered, ("b",))
    parts, starts = [], []
    for block in range(filters.extents["b"]):
        its = builder.without(builder.part(filters, "b", block), "b")
        sums = _conv2d(builder, forward, image, its, blocks=filters.extents["b"])
        parts.append(builder.split(sums, "n", {"b": 1, "n": sums.extents["n"]}))
        starts.append({"b": block})
    extents = {**parts[0].extents, "b": len(parts)}
    return builder.interleave(parts, starts, extents, {}, parts[0].tensor.type)


def _conv2d(
    builder: Builder, forward: ForwardConvolution, image: Labeled, filter_: Labeled, *, blocks: int = 1
) -> Labeled:
    """The sums of `image` and `filter_`, as `_image` and `_filter` arrange them; one of `blocks` of filters."""
    windows = forward.windows
    rank, sizes = len(windows.spatial), windows.extents
    (top, bottom), (left, right) = ((0, 0), (0, 0)) if _gathered(windows) else windows.padding[-2:]
    is_symmetric = top == bottom >= 0 and left == right >= 0
    lengths = _channels_of_parts(forward, filter_, blocks)
    if not is_symmetric or len(lengths) > 1:
        image = builder.pad(image, {"h": (top, bottom), "w": (left, right)})
        top = left = 0
    sums: Labeled | None = None
    for start, length in zip(itertools.accumulate(lengths, initial=0), lengths, strict=False):
        # A single part reads the whole image: with several groups, the image has more channels than the filter.
        read = image if len(lengths) == 1 else builder.part(image, "c", start, length)
        part = _part_of_conv2d(builder, forward, read, builder.part(filter_, "c", start, length), (top, left))
        # The compiler adds the sums of earlier channels where it computes the sums of later channels.
        sums = part if sums is None else builder.sum([part, sums])
    assert sums is not None
    if rank == 1:
        sums = builder.merge(sums, {"n": ("n",), "ow": ("oh", "ow"), "f": ("f",)})
    if rank == 3:
        sums = builder.split(sums, "n", {"n": sizes["n"], "od": sizes["od"]})
    filters = {**sizes, "f": forward.filter.extents["f"]}
    return builder.split(sums, "f", {axis: filters[axis] for axis in (*windows.group, "f")})


def _channels_of_parts(forward: ForwardConvolution, filter_: Labeled, blocks: int) -> Sequence[int]:
    """Channels of each conv2d whose results are added up, so that none adds too many products one after another."""
    taps = filter_.extents
    if forward.windows.group:
        return (taps["c"],)
    most = max(1, _MOST_KERNELS // blocks)
    return lengths_of_slices(taps["c"], taps["kh"] * taps["kw"], forward.types.input, most=most)


def _part_of_conv2d(
    builder: Builder, forward: ForwardConvolution, image: Labeled, filter_: Labeled, padding: tuple[int, int]
) -> Labeled:
    """The terms of the channels of `image` and `filter_`, for each output pixel, with the axes n, oh, ow and f."""
    windows = forward.windows
    is_pointwise = "w" in _gathered(windows)
    size, taps = image.extents, filter_.extents
    operation = Conv2d(
        n=size["n"],
        h=size["h"],
        w=size["w"],
        c=size["c"],
        k=taps["f"],
        r=taps["kh"],
        s=taps["kw"],
        stride=(1, 1) if is_pointwise else windows.stride[-2:],
        padding=padding,
        dilation=(1, 1) if is_pointwise else windows.dilation[-2:],
        groups=windows.extents.get("g", 1),
        types=forward.types,
    )
    return builder.kernel(operation, image, filter_, ("n", "oh", "ow", "f"))


def as_conv2d_per_group(builder: Builder, forward: ForwardConvolution) -> Labeled:
    """The sums as one conv2d for each group, with the axes g, n, oh, ow, ... and f, in this order."""
    windows = forward.windows
    image = builder.pad(windows.image, dict(zip(windows.spatial, windows.padding, strict=True)))
    padded = replace(windows, image=image, padding=((0, 0),) * len(windows.spatial))
    taps = tuple(f"k{axis}" for axis in windows.spatial)
    filter_ = builder.arrange("filters", forward.filter, ("g", *taps, "c", "f"), store=True)
    parts = []
    for group in range(windows.extents["g"]):
        one = builder.without(builder.part(image, "g", group), "g")
        its = builder.without(builder.part(filter_, "g", group), "g")
        sums = as_conv2d(builder, ForwardConvolution(replace(padded, image=one), its, forward.types))
        parts.append(builder.split(sums, "n", {"g": 1, "n": sums.extents["n"]}))
    extents = {**parts[0].extents, "g": len(parts)}
    starts = [{"g": group} for group in range(len(parts))]
    return builder.interleave(parts, starts, extents, {}, parts[0].tensor.type)


def _gathered(windows: FilterWindows) -> tuple[str, ...]:
    """The spatial axes along which taps are gathered into channels."""
    plane = windows.taps[-2:]
    if len(plane) == 1 or min(plane) == 1 < max(plane):
        return windows.spatial
    return windows.spatial[:-2]


def _image(
    builder: Builder, windows: FilterWindows, gathered: Sequence[str], filter_axes: Sequence[str]
) -> Labeled:
    """The image with the axes n, h, w and c; c has the taps along the axes `gathered`, and all groups.

    If taps are gathered, the image is padded before, since it then has fewer channels.
    """
    padding = dict(zip(windows.spatial, windows.padding, strict=True)) if gathered else {}
    image = builder.pad(windows.image, padding)
    sizes = {**image.extents, **windows.extents}
    # A tap of extent 1 needs no loop.
    taps = [axis for axis in filter_axes if axis[1:] in gathered and sizes[axis] > 1]
    steps = zip(windows.spatial, windows.stride, windows.dilation, strict=True)
    indices = {
        axis: Index(((f"o{axis}", stride), *(((f"k{axis}", dilation),) if f"k{axis}" in taps else ())))
        for axis, stride, dilation in steps
        if axis in gathered
    }
    pixels = tuple(f"o{axis}" if axis in gathered else axis for axis in windows.spatial)
    order = ("n", *pixels, *windows.group, *taps, "c")
    if all(index.loop for index in indices.values()):
        plain = image.renamed({axis: f"o{axis}" for axis in gathered})
        arranged = builder.arrange("image", plain, order, store=True)
    else:
        arranged = builder.barrier(builder.gather("image", image, {x: sizes[x] for x in order}, indices))
    plane = dict(zip("hw"[-len(pixels) :], pixels[-2:], strict=True))
    images = ("n", *pixels[:-2])
    names = {"n": images, **{x: (pixel,) for x, pixel in plane.items()}, "c": (*windows.group, *taps, "c")}
    merged = builder.merge(arranged, names)
    if len(pixels) == 1:
        merged = builder.split(merged, "w", {"h": 1, "w": merged.extents["w"]})
    return merged


def _filter(
    builder: Builder, forward: ForwardConvolution, gathered: Sequence[str], blocks: Sequence[str] = ()
) -> Labeled:
    """The filter with the axes kh, kw, `blocks`, c and f; c has the taps along the axes `gathered`, f all groups."""
    group = forward.windows.group
    taps = [axis for axis in forward.filter.axes if axis[1:] in gathered]
    plane = [f"k{axis}" for axis in forward.windows.spatial if axis not in gathered]
    kept = [*plane, *blocks]
    filter_ = builder.arrange("filters", forward.filter, (*kept, *taps, "c", *group, "f"), store=True)
    filter_ = builder.merge(filter_, {**_alone(kept), "c": (*taps, "c"), "f": (*group, "f")})
    return filter_ if plane else builder.split(filter_, "c", {"kh": 1, "kw": 1, "c": filter_.extents["c"]})


def _alone(axes: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """A group of its own for each of `axes`, for `Builder.merge`."""
    return {axis: (axis,) for axis in axes}

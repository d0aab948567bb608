"""Winograd's form of a convolution with 3x3 filters and stride 1.

Lavin and Gray ("Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308, 2015) compute m x m output
pixels with (m + 2)^2 products for each channel and filter, instead of 9 m^2: the formula is below.
All tiles together are (m + 2)^2 matrix products, tiles x channels x filters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dispatch_profiler.configurations.forms.builder import Builder, Index, Labeled, Reduction
from dispatch_profiler.configurations.forms.convolutions import LabeledConvolution
from dispatch_profiler.configurations.forms.forward import product
from dispatch_profiler.operations import (
    Contraction,
    ContractionBound,
    ConvolutionGeometry,
    ElementType,
    accumulation_factor,
    are_alike,
)

# -- winograd transforms ---------------------------------------------------------------------------

# Winograd's transforms of 3x3 filters, and the error bound that follows from them.
#
# Lavin and Gray ("Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308, 2015) compute m x m output
# pixels from a tile `d` of (m + 2) x (m + 2) pixels and the taps `g`, with one product for each element of the tile:
#
#     F(m x m, 3 x 3):  y = A^T [ sum over channels of (G g G^T) * (B^T d B) ] A
#
# Each path from an operand to an output passes a number of roundings, which factors 1 + delta with |delta| <= u
# express (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, lemma 3.1). So the error is at most
#
#     gamma(roundings) |A^T| [ sum over channels of (|G| |g| |G^T|) * (|B^T| |d| |B|) ] |A|
#
# with the transforms of absolute values. `accumulation_factor` is gamma, or its probabilistic form if that is less.


#: Rows of a matrix.
Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Transforms:
    """B^T, G and A^T of F(m x m, 3 x 3): (m + 2, m + 2), (m + 2, 3) and (m, m + 2)."""

    input: Matrix
    filter: Matrix
    output: Matrix

    def filter_matrix(self, *, is_reversed: bool) -> Matrix:
        """G; of a gradient, whose taps are reversed, with its columns reversed."""
        return tuple(row[::-1] for row in self.filter) if is_reversed else self.filter

    @property
    def outputs(self) -> int:
        """m: output pixels of a tile along each axis."""
        return len(self.output)

    @property
    def tile(self) -> int:
        """m + 2: pixels that a tile reads along each axis."""
        return len(self.input)

    @property
    def roundings(self) -> int:
        """Roundings between an operand and an output, without the roundings of channel sums and of coefficients."""
        return 2 * (_roundings(self.input) + _roundings(self.filter) + _roundings(self.output))

    @property
    def rounded_coefficients(self) -> int:
        """Rounded coefficients between an operand and an output: coefficients with thirds, in both passes."""
        matrices = (self.input, self.filter, self.output)
        return 2 * sum(any(not _is_dyadic(value) for row in each for value in row) for each in matrices)

    @property
    def integer_growth(self) -> float:
        """The largest intermediate value of a channel with pixels and taps of magnitude 1, in units of its fractions.

        Infinite if integers are not transformed exactly.
        """
        fractions = [value for row in self.filter for value in row]
        if not all(map(_is_dyadic, fractions)):
            return math.inf
        rows = math.prod(_largest_row(each) for each in (self.input, self.filter, self.output))
        return float(rows * max(value.denominator for value in fractions)) ** 2

    @property
    def growth(self) -> float:
        """The bound divided by the bound of a sum of nine products, for operands of equal magnitudes."""
        pixels, taps, outputs = (np.abs(_array(each)) for each in (self.input, self.filter, self.output))
        along = outputs @ (pixels.sum(axis=1) * taps.sum(axis=1))
        return float(np.max(along) / 3.0) ** 2


def _roundings(matrix: Matrix) -> int:
    """The most roundings of a row's sum; products with powers of two are exact."""
    terms = ([value for value in row if value] for row in matrix)
    return max(len(row) - 1 + any(not _is_power_of_two(value) for value in row) for row in terms)


def _is_dyadic(value: Fraction) -> bool:
    """Whether it is an integer divided by a power of two, and so is not rounded."""
    return value.denominator.bit_count() == 1


def _is_power_of_two(value: Fraction) -> bool:
    return _is_dyadic(value) and abs(value.numerator).bit_count() == 1


def _largest_row(matrix: Matrix) -> Fraction:
    """The largest sum of absolute values of a row."""
    return max(sum(map(abs, row), Fraction(0)) for row in matrix)


def _array(matrix: Matrix) -> np.ndarray:
    return np.array(matrix, np.float64)


def _matrix(*rows: str) -> Matrix:
    return tuple(tuple(map(Fraction, row.split())) for row in rows)


#: F(2x2, 3x3): section 4.1 of the paper.
TWO = Transforms(
    input=_matrix("1 0 -1 0", "0 1 1 0", "0 -1 1 0", "0 1 0 -1"),
    filter=_matrix("1 0 0", "1/2 1/2 1/2", "1/2 -1/2 1/2", "0 0 1"),
    output=_matrix("1 1 1 0", "0 1 -1 -1"),
)
#: F(4x4, 3x3) with the points 0, 5/8, -5/8, 5/4, -5/4 and infinity. The points of section 4.2 (0, 1, -1, 2, -2) have
#: rounding errors three to four times as large. Source of such points: Barabasz, Anderson, Soodhalter
#: and Gregg, "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", ACM TOMS 46(4), 2020.
FOUR = Transforms(
    input=_matrix(
        "625/1024 0 -125/64 0 1 0",
        "0 -125/128 -25/16 5/8 1 0",
        "0 125/128 -25/16 -5/8 1 0",
        "0 -125/256 -25/64 5/4 1 0",
        "0 125/256 -25/64 -5/4 1 0",
        "0 625/1024 0 -125/64 0 1",
    ),
    filter=_matrix(
        "1024/625 0 0",
        "-2048/1875 -256/375 -32/75",
        "-2048/1875 256/375 -32/75",
        "512/1875 128/375 32/75",
        "512/1875 -128/375 32/75",
        "0 0 1",
    ),
    output=_matrix(
        "1 1 1 1 1 0",
        "0 5/8 -5/8 5/4 -5/4 0",
        "0 25/64 25/64 25/16 25/16 0",
        "0 125/512 -125/512 125/64 -125/64 1",
    ),
)


def margins(geometry: ConvolutionGeometry, outputs: int) -> list[tuple[int, int, int]]:
    """(low padding, high padding, tiles) along rows and columns of the image that is read; negative padding is cropped.

    In forward, the image is the input; in input_backward, it is the output's gradient, whose padding
    complements the input's padding.
    """
    if geometry.mode == "forward":
        axes = zip(geometry.padding, geometry.size, geometry.output_size, strict=True)
    else:
        lows = (2 - padding for padding in geometry.padding)
        axes = zip(lows, geometry.output_size, geometry.size, strict=True)
    margins_along = []
    for low, size, results in list(axes)[-2:]:
        tiles = -(-results // outputs)
        margins_along.append((low, tiles * outputs + 2 - size - low, tiles))
    return margins_along


@dataclass(frozen=True)
class WinogradBound(ContractionBound):
    """The bound of F(m x m, 3 x 3) for a convolution with stride 1, forward or input_backward; of volumes, for each plane."""

    transforms: Transforms

    def largest_integer(self, operation: Contraction, lhs: float, rhs: float) -> float:
        growth = self.transforms.integer_growth
        return math.inf if math.isinf(growth) else growth * _channels(_geometry(operation)) * lhs * rhs

    def of_sums(self, operation: Contraction, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        geometry, u = _geometry(operation), operation.accumulator.unit_roundoff
        roundings = self.transforms.roundings + _channels(geometry)
        factor = accumulation_factor(roundings, operation.accumulator, are_alike=are_alike(lhs, rhs))
        factor += self.transforms.rounded_coefficients * u
        magnitudes = _magnitudes(
            self.transforms, geometry, *(np.abs(x.astype(np.float64)) for x in (lhs, rhs))
        )
        # 1.01 covers products of roundoffs, and the rounding of the bound itself.
        return 1.01 * factor * magnitudes


def _geometry(operation: Contraction) -> ConvolutionGeometry:
    geometry = operation.convolution
    if geometry is None:
        raise ValueError(f"{operation.kind} is not a convolution")
    return geometry


def _channels(geometry: ConvolutionGeometry) -> int:
    """Channels that are summed, of all planes that a filter reads."""
    channels = geometry.channels if geometry.mode == "forward" else geometry.filters
    return channels * math.prod(geometry.filter_size[:-2])


def _magnitudes(
    transforms: Transforms, geometry: ConvolutionGeometry, lhs: np.ndarray, rhs: np.ndarray
) -> np.ndarray:
    """`|A^T| [ sum (|G| |g| |G^T|) * (|B^T| |d| |B|) ] |A|` of operands without signs, in the result's layout."""
    is_forward = geometry.mode == "forward"
    read, stored = geometry.input_layout, geometry.output_layout
    if not is_forward:
        read, stored = stored, read
    depth = "d" if geometry.spatial_rank == 3 else ""
    images = _in_order(lhs, read, f"n{depth}hwc")
    taps = _in_order(rhs, geometry.filter_layout, f"{depth}hwcf" if is_forward else f"{depth}hwfc")
    if not depth:
        images, taps = images[:, None], taps[None]
    taps = taps if is_forward else taps[:, ::-1, ::-1]
    filters = [_along(_along(each, transforms.filter, 0, 1), transforms.filter, 2, 1) for each in taps]
    size = (geometry.output_size if is_forward else geometry.size)[-2:]
    magnitudes = np.stack(
        [_of_volume(transforms, geometry, image, filters)[:, : size[0], : size[1]] for image in images]
    )
    return _in_order(magnitudes if depth else magnitudes[:, 0], f"n{depth}hwc", stored)


def _of_volume(
    transforms: Transforms, geometry: ConvolutionGeometry, planes: np.ndarray, filters: list[np.ndarray]
) -> np.ndarray:
    """(d, h, w, c) -> (planes of the result, tiles * m, tiles * m, f): each sums what its taps read."""
    along = margins(geometry, transforms.outputs)
    padded = [_with_margins(plane, along) for plane in planes]
    if geometry.spatial_rank == 2:
        return _of_image(transforms, padded[0], filters[0], along)[None]
    stride, dilation, low = geometry.stride[0], geometry.dilation[0], geometry.padding[0]
    nothing = np.zeros_like(padded[0])
    return np.stack(
        [
            sum(
                _of_image(transforms, padded[at] if 0 <= at < len(padded) else nothing, each, along)
                for at, each in (
                    (plane * stride + tap * dilation - low, each) for tap, each in enumerate(filters)
                )
            )
            for plane in range(geometry.output_size[0])
        ]
    )


def _of_image(
    transforms: Transforms, image: np.ndarray, filters: np.ndarray, along: list[tuple[int, int, int]]
) -> np.ndarray:
    """(h, w, c) -> (tiles * m, tiles * m, f); `filters` are (m + 2, 1, m + 2, 1, c, f)."""
    (*_, rows), (*_, columns) = along
    step = transforms.outputs
    tiles = _along(_along(image, transforms.input, 0, rows, step), transforms.input, 2, columns, step)
    a, channels = transforms.tile, image.shape[-1]
    pairs = tiles.transpose(0, 2, 1, 3, 4).reshape(a, a, -1, channels) @ filters[:, 0, :, 0]
    sums = pairs.reshape(a, a, rows, columns, -1)
    outputs = _along(_along(sums, transforms.output, 0, 1), transforms.output, 2, 1)
    # (m, 1, m, 1, rows, columns, f) -> (rows, m, columns, m, f)
    placed = outputs[:, 0, :, 0].transpose(2, 0, 3, 1, 4)
    return placed.reshape(rows * step, columns * step, -1)


def _along(array: np.ndarray, matrix: Matrix, axis: int, windows: int, step: int = 1) -> np.ndarray:
    """Each window along `axis`, multiplied by the matrix of absolute values; windows begin `step` apart.

    `axis` becomes two: the rows of the matrix, then the windows.
    """
    taken = [array.take(range(begin, begin + windows * step, step), axis) for begin in range(len(matrix[0]))]
    return np.moveaxis(np.tensordot(np.abs(_array(matrix)), np.stack(taken), 1), 0, axis)


def _with_margins(image: np.ndarray, along: list[tuple[int, int, int]]) -> np.ndarray:
    """(h, w, c) padded, or cropped where the padding is negative."""
    for axis, (low, high, _) in enumerate(along):
        kept = image.take(range(max(0, -low), image.shape[axis] - max(0, -high)), axis)
        pairs = [(max(0, low), max(0, high)) if each == axis else (0, 0) for each in range(image.ndim)]
        image = np.pad(kept, pairs)
    return image


def _in_order(array: np.ndarray, layout: str, order: str) -> np.ndarray:
    return array.transpose([layout.index(letter) for letter in order])


_FIRST = Index(())


def winograd_rejects(form: str, geometry: ConvolutionGeometry) -> str | None:
    """Why a convolution does not have `form`; None if it has."""
    if geometry.mode == "weight_backward":
        return f"the form {form} is not for weight_backward: use im2col or im2col_t"
    if geometry.spatial_rank != 2:
        return f"the form {form} is for conv2d, not conv{geometry.spatial_rank}d"
    if geometry.groups > 1:
        return f"the form {form} is for one group, not {geometry.groups}"
    rules = (("filters of", geometry.filter_size, 3), ("stride", geometry.stride, 1))
    for what, values, needed in (*rules, ("dilation", geometry.dilation, 1)):
        if any(value != needed for value in values):
            return f"the form {form} is for {what} {needed}x{needed}, not {'x'.join(map(str, values))}"
    return None


def winograd_rejects_type(form: str, type_: ElementType) -> str | None:
    """Why inputs of a type do not have `form`; None if they have."""
    if type_.is_integer:
        return f"the form {form} is for f32 and f64, not {type_.name}: its transforms have fractions"
    if type_.bits < 32:
        return (
            f"the form {form} is for f32 and f64, not {type_.name}: "
            "its kernel would read transformed operands that are rounded to that type"
        )
    return None


def winograd(transforms: Transforms) -> Callable[[Contraction, ConvolutionGeometry], Reduction]:
    """`reduce` of the form with these transforms."""

    def reduce(operation: Contraction, geometry: ConvolutionGeometry) -> Reduction:
        it = LabeledConvolution(operation, geometry)
        image, filter_ = it.input(it.lhs), it.filter(it.rhs)
        if geometry.mode == "input_backward":
            image = it.gradient(it.lhs).renamed({"f": "c"})
            filter_ = filter_.renamed({"f": "c", "c": "f"})
        sums = _Winograd(it, transforms).sums(image, filter_)
        if geometry.mode == "input_backward":
            sums = sums.renamed({"f": "c", "oh": "h", "ow": "w"})
            reduction = it.reduction(sums, it.input_axes(), "c")
        else:
            reduction = it.reduction(sums, it.output_axes(), "f")
        return replace(reduction, error_bound=WinogradBound(transforms))

    return reduce


class _Winograd:
    """The steps between the operands and the sums.

    Every transform has two passes, one for each axis. The result of a pass is stored before it is read;
    otherwise, the compiler would compute it again for every element that reads it.
    """

    def __init__(self, it: LabeledConvolution, transforms: Transforms) -> None:
        self.builder: Builder = it.builder
        self.types = it.types
        self.is_reversed = it.geometry.mode == "input_backward"
        self.transforms = transforms
        self.margins = margins(it.geometry, transforms.outputs)
        self.size = it.geometry.size if self.is_reversed else it.geometry.output_size

    def sums(self, image: Labeled, filter_: Labeled) -> Labeled:
        """The sums with the axes n, oh, ow and f; the image has n, h, w, c, the filter kh, kw, c, f, in any order."""
        matrix = self.transforms.filter_matrix(is_reversed=self.is_reversed)
        filters, tiles = transformed_filters(self.builder, filter_, matrix), self._tiles(image)
        extents = tiles.extents
        pairs = {"g": ("x", "y"), "p": ("n", "th", "tw"), "c": ("c",)}
        left = self.builder.barrier(self.builder.merge(tiles, pairs))
        right = self.builder.barrier(self.builder.merge(filters, {"g": ("x", "y"), "c": ("c",), "f": ("f",)}))
        products = product(self.builder, left, right, ("p", "f", "c"), self.types)
        products = self.builder.barrier(products)
        products = self.builder.split(products, "g", {axis: extents[axis] for axis in ("x", "y")})
        return self._outputs(
            self.builder.split(products, "p", {axis: extents[axis] for axis in ("n", "th", "tw")})
        )

    def _tiles(self, image: Labeled) -> Labeled:
        """B^T d B of every tile: x, y, n, th, tw, c."""
        builder, m = self.builder, self.transforms.outputs
        arranged = builder.arrange("image", image, ("n", "h", "w", "c"), store=True)
        (top, bottom, rows), (left, right, columns) = self.margins
        padded = builder.pad(arranged, {"h": (top, bottom), "w": (left, right)})
        if padded != arranged:
            padded = builder.barrier(padded)
        matrix, size = self.transforms.input, padded.extents
        axes = {"n": size["n"], "th": rows, "x": len(matrix), "w": size["w"], "c": size["c"]}
        half = builder.transform("tile_rows", padded, "h", matrix, axes, Index((("th", m),)))
        axes = {"x": len(matrix), "y": len(matrix), "n": size["n"], "th": rows, "tw": columns, "c": size["c"]}
        return builder.transform("tiles", builder.barrier(half), "w", matrix, axes, Index((("tw", m),)))

    def _outputs(self, products: Labeled) -> Labeled:
        """A^T m A of every tile, without the pixels beyond the image: n, oh, ow, f."""
        builder, matrix, size = self.builder, self.transforms.output, products.extents
        m = len(matrix)
        kept = {"y": size["y"], "tw": size["tw"], "f": size["f"]}
        axes = {"n": size["n"], "th": size["th"], "h": m, **kept}
        half = builder.barrier(builder.transform("output_rows", products, "x", matrix, axes, _FIRST))
        axes = {"n": size["n"], "th": size["th"], "h": m, "tw": size["tw"], "w": m, "f": size["f"]}
        tiles = builder.transform("outputs", half, "y", matrix, axes, _FIRST)
        whole = builder.merge(tiles, {"n": ("n",), "oh": ("th", "h"), "ow": ("tw", "w"), "f": ("f",)})
        beyond = {
            axis: (0, size - whole.extents[axis]) for axis, size in zip(("oh", "ow"), self.size, strict=True)
        }
        return builder.pad(whole, beyond)


def transformed_filters(builder: Builder, filter_: Labeled, matrix: Matrix) -> Labeled:
    """G g G^T of every filter, channel and plane: x, y, then the other axes without kh and kw, f last."""
    others = tuple(axis for axis in filter_.axes if axis not in ("kh", "kw", "c", "f"))
    if filter_.axes[-1] != "f":
        # A product whose right operand is stored as filters x channels would be slower than this copy.
        filter_ = builder.arrange("filter", filter_, ("kh", "kw", *others, "c", "f"), store=True)
    size = filter_.extents
    rest = {axis: size[axis] for axis in (*others, "c", "f")}
    rows = {"x": len(matrix), "kw": size["kw"], **rest}
    half = builder.barrier(builder.transform("filter_rows", filter_, "kh", matrix, rows, _FIRST))
    both = {"x": len(matrix), "y": len(matrix), **rest}
    return builder.transform("filters", half, "kw", matrix, both, _FIRST)

"""Winograd's form of a convolution with 3x3 filters and stride 1.

Lavin and Gray ("Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308, 2015) compute m x m output
pixels with (m + 2)^2 products for each channel and filter, instead of 9 m^2: `winograd_transforms` has the formula.
All tiles together are (m + 2)^2 matrix products, tiles x channels x filters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dispatch_profiler.configurations.forms.builder import Builder, Reduction
from dispatch_profiler.configurations.forms.convolutions import LabeledConvolution
from dispatch_profiler.configurations.forms.forward import product
from dispatch_profiler.configurations.forms.steps import Index, Labeled
from dispatch_profiler.configurations.forms.winograd_transforms import (
    Matrix,
    Transforms,
    WinogradBound,
    margins,
)
from dispatch_profiler.operations import Contraction, ConvolutionGeometry, ElementType

_FIRST = Index(())


def winograd_rejects(name: str) -> Callable[[ConvolutionGeometry], str | None]:
    """Reasons of the form `name`, for `Form.rejects`."""

    def rejects(geometry: ConvolutionGeometry) -> str | None:
        if geometry.mode == "weight_backward":
            return f"the form {name} is not for weight_backward: use im2col or im2col_t"
        if geometry.spatial_rank != 2:
            return f"the form {name} is for conv2d, not conv{geometry.spatial_rank}d"
        if geometry.groups > 1:
            return f"the form {name} is for one group, not {geometry.groups}"
        rules = (("filters of", geometry.filter_size, 3), ("stride", geometry.stride, 1))
        for what, values, needed in (*rules, ("dilation", geometry.dilation, 1)):
            if any(value != needed for value in values):
                return f"the form {name} is for {what} {needed}x{needed}, not {'x'.join(map(str, values))}"
        return None

    return rejects


def winograd_rejects_type(name: str) -> Callable[[ElementType], str | None]:
    """Reasons of the form `name`, for `Form.rejects_type`."""

    def rejects(type_: ElementType) -> str | None:
        if type_.is_integer:
            return f"the form {name} is for f32 and f64, not {type_.name}: its transforms have fractions"
        if type_.bits < 32:
            return (
                f"the form {name} is for f32 and f64, not {type_.name}: "
                "its kernel would read transformed operands that are rounded to that type"
            )
        return None

    return rejects


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
            found = it.reduction(sums, it.input_axes(), "c")
        else:
            found = it.reduction(sums, it.output_axes(), "f")
        return replace(found, error_bound=WinogradBound(transforms))

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
        filters, tiles = self._filters(filter_), self._tiles(image)
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

    def _filters(self, filter_: Labeled) -> Labeled:
        """G g G^T of every filter and channel: x, y, c, f."""
        builder = self.builder
        if filter_.axes[-1] != "f":
            # A product whose right operand is stored as filters x channels would be slower than this copy.
            filter_ = builder.arrange("filter", filter_, ("kh", "kw", "c", "f"), store=True)
        matrix, size = self._filter_matrix(), filter_.extents
        rest = {"c": size["c"], "f": size["f"]}
        rows = {"x": len(matrix), "kw": size["kw"], **rest}
        half = builder.barrier(builder.transform("filter_rows", filter_, "kh", matrix, rows, _FIRST))
        both = {"x": len(matrix), "y": len(matrix), **rest}
        return builder.transform("filters", half, "kw", matrix, both, _FIRST)

    def _filter_matrix(self) -> Matrix:
        """G; of a gradient, whose taps are reversed, with its columns reversed."""
        matrix = self.transforms.filter
        return tuple(row[::-1] for row in matrix) if self.is_reversed else matrix

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

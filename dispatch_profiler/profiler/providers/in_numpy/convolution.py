"""Convolutions in numpy: windows of one image as columns (im2col), and a product with BLAS.

Any rank, layout and mode. Only the columns of one image are in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dispatch_profiler.operations import ConvolutionGeometry, Operation
from dispatch_profiler.profiler.providers.in_numpy._base import (
    NumpyComputation,
    NumpyFamily,
    ProductCall,
    blas_contraction,
    contraction_computation,
    epilogue_operands,
)


class NumpyConvolution(NumpyFamily):
    """See `NumpyFamily`."""

    def method(self, kind: str) -> str:
        """See `NumpyFamily.method`."""
        return "im2col"

    def operands(self, operation: Operation, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """See `NumpyFamily.operands`: filters are stored as im2col reads them."""
        contraction, convolution = blas_contraction(operation), operation.convolution
        assert convolution is not None
        lhs, rhs, *rest = (np.array(array, order="C") for array in arrays)
        rhs = rhs if convolution.mode == "weight_backward" else _stored_filters(convolution, rhs)
        return [lhs, rhs, *epilogue_operands(contraction, rest, lhs.dtype)]

    def computation(self, operation: Operation) -> NumpyComputation:
        """See `NumpyFamily.computation`."""
        contraction, convolution = blas_contraction(operation), operation.convolution
        assert convolution is not None
        sums = _convolution_product(convolution, contraction.types.input.dtype)
        return contraction_computation(contraction, sums)

    def converts_weights_ahead(self, operation: Operation) -> bool:
        """See `Library.converts_weights_ahead`: filters."""
        return operation.reads_weight


def _stored_filters(convolution: ConvolutionGeometry, filters: np.ndarray) -> np.ndarray:
    """The filters as one matrix per group, as `_convolution_product` reads them.

    Channels last: (G, R*S*C, F); channels first: (G, F, C*R*S)
    """
    axes, groups = convolution.spatial_letters, convolution.groups
    last = _is_last(convolution)
    ordered = _in_order(filters, convolution.filter_layout, f"{axes}cf" if last else f"fc{axes}")
    taps = filters.size // convolution.filters
    if last:
        split = ordered.reshape(taps, groups, convolution.filters_per_group)
        return np.ascontiguousarray(split.transpose(1, 0, 2))
    return np.ascontiguousarray(ordered.reshape(groups, convolution.filters_per_group, taps))


def _convolution_product(convolution: ConvolutionGeometry, dtype: np.dtype) -> ProductCall:
    """The computation for the operands of a convolution in its mode; filters are stored by `_stored_filters`."""
    if convolution.mode == "input_backward":
        return _input_backward(convolution, dtype)
    if convolution.mode == "weight_backward":
        return _weight_backward(convolution, dtype)
    return _forward(convolution, dtype)


def _is_last(convolution: ConvolutionGeometry) -> bool:
    """Whether the columns are in channels-last order; gradients always are."""
    return convolution.mode != "forward" or convolution.output_layout.endswith("c")


def _in_order(array: np.ndarray, layout: str, wanted: str) -> np.ndarray:
    """A view of `array`, stored in `layout`, with its axes in the order `wanted`."""
    return array.transpose([layout.index(letter) for letter in wanted])


class _Columns:
    """Windows of one padded image, as views and as a matrix per group.

    Channels last: padded (H, W, C), windows (G, OH, OW, R, S, C/G), matrix (G, OH*OW, R*S*C/G)
    channels first: padded (C, H, W), windows (G, C/G, R, S, OH, OW), matrix (G, C/G*R*S, OH*OW)
    """

    def __init__(self, convolution: ConvolutionGeometry, dtype: np.dtype, *, last: bool) -> None:
        size, channels = convolution.padded_size, convolution.channels
        self.padded = np.zeros((*size, channels) if last else (channels, *size), dtype)
        inside = tuple(slice(p, p + n) for p, n in zip(convolution.padding, convolution.size, strict=True))
        self.interior = self.padded[inside if last else (slice(None), *inside)]
        self.windows = _windows(convolution, self.padded, last=last)
        self.columns = np.empty(self.windows.shape, dtype)
        taps = math.prod(convolution.filter_size) * convolution.channels_per_group
        pixels = math.prod(convolution.output_size)
        shape = (pixels, taps) if last else (taps, pixels)
        self.matrix = self.columns.reshape(convolution.groups, *shape)

    def load(self, image: np.ndarray) -> None:
        """Fill the matrix with the windows of an image."""
        np.copyto(self.interior, image)
        np.copyto(self.columns, self.windows)


def _windows(convolution: ConvolutionGeometry, padded: np.ndarray, *, last: bool) -> np.ndarray:
    """A view of one padded image with the elements of each window."""
    groups, channels = convolution.groups, convolution.channels_per_group
    *spatial, c = padded.strides if last else (*padded.strides[1:], padded.strides[0])
    outputs = [step * stride for step, stride in zip(convolution.stride, spatial, strict=True)]
    taps = [step * stride for step, stride in zip(convolution.dilation, spatial, strict=True)]
    if last:
        shape = (groups, *convolution.output_size, *convolution.filter_size, channels)
        strides = (channels * c, *outputs, *taps, c)
    else:
        shape = (groups, channels, *convolution.filter_size, *convolution.output_size)
        strides = (channels * c, c, *taps, *outputs)
    return as_strided(padded, shape, strides, writeable=False)


def _forward(convolution: ConvolutionGeometry, dtype: np.dtype) -> ProductCall:
    """im2col and a product for each image, as in Caffe.

    Channels last: columns (G, OH*OW, R*S*C) x filters (G, R*S*C, F) -> (G, OH*OW, F)
    channels first: filters (G, F, C*R*S) x columns (G, C*R*S, OH*OW) -> (G, F, OH*OW)
    """
    last, axes, groups = _is_last(convolution), convolution.spatial_letters, convolution.groups
    order = f"n{axes}c" if last else f"nc{axes}"
    columns = _Columns(convolution, dtype, last=last)
    pixels, count = math.prod(convolution.output_size), convolution.filters_per_group
    product = np.empty((groups, pixels, count) if last else (groups, count, pixels), dtype)
    # With channels last, the groups' products are apart, but their channels together.
    is_direct = convolution.output_layout == order and not (last and groups > 1)

    def contract(images: np.ndarray, filters: np.ndarray, sums: np.ndarray) -> None:
        left, right = (columns.matrix, filters) if last else (filters, columns.matrix)
        inputs = _in_order(images, convolution.input_layout, order)
        for image, result in zip(inputs, _in_order(sums, convolution.output_layout, order), strict=True):
            columns.load(image)
            if is_direct:
                np.matmul(left, right, out=result.reshape(product.shape))
                continue
            np.matmul(left, right, out=product)
            found = product.transpose(1, 0, 2) if last else product
            np.copyto(result, found.reshape(result.shape))

    return contract


def _input_backward(convolution: ConvolutionGeometry, dtype: np.dtype) -> ProductCall:
    """A product for each image, whose columns are added up where they were read from (col2im).

    gradient (G, OH*OW, F) x filters (G, F, R*S*C) -> columns (G, OH*OW, R*S*C)
    """
    axes, groups, channels = convolution.spatial_letters, convolution.groups, convolution.channels_per_group
    order, taps = f"n{axes}c", convolution.filter_size
    columns = _Columns(convolution, dtype, last=True)
    outputs = np.empty((groups, math.prod(convolution.output_size), convolution.filters_per_group), dtype)
    by_group = columns.padded.reshape(*convolution.padded_size, groups, channels)
    parts = columns.columns.transpose(*range(1, columns.columns.ndim - 1), 0, columns.columns.ndim - 1)
    rank = convolution.spatial_rank
    places = [
        (by_group[_pixels(convolution, tap)], parts[(slice(None),) * rank + tap])
        for tap in itertools.product(*map(range, taps))
    ]

    def contract(gradients: np.ndarray, filters: np.ndarray, sums: np.ndarray) -> None:
        results = _in_order(sums, convolution.input_layout, order)
        for gradient, result in zip(
            _in_order(gradients, convolution.output_layout, order), results, strict=True
        ):
            np.copyto(outputs, gradient.reshape(-1, *outputs.shape[::2]).transpose(1, 0, 2))
            np.matmul(outputs, filters.swapaxes(1, 2), out=columns.matrix)
            columns.padded[...] = 0
            for pixels, part in places:
                np.add(pixels, part, out=pixels)
            np.copyto(result, columns.interior)

    return contract


def _weight_backward(convolution: ConvolutionGeometry, dtype: np.dtype) -> ProductCall:
    """im2col and a product for each image, summed over the images.

    columns (G, R*S*C, OH*OW) x gradient (G, OH*OW, F) -> (G, R*S*C, F)
    """
    axes, groups, count = convolution.spatial_letters, convolution.groups, convolution.filters_per_group
    order = f"n{axes}c"
    columns = _Columns(convolution, dtype, last=True)
    outputs = np.empty((groups, math.prod(convolution.output_size), count), dtype)
    product = np.empty((groups, columns.matrix.shape[2], count), dtype)
    total = np.empty_like(product)
    # (G, R, S, C, F) -> (R, S, C, G, F)
    shaped = total.reshape(groups, *convolution.filter_size, convolution.channels_per_group, count)
    last = shaped.ndim - 1
    shaped = shaped.transpose(*range(1, last), 0, last)

    def contract(gradients: np.ndarray, images: np.ndarray, sums: np.ndarray) -> None:
        inputs = _in_order(images, convolution.input_layout, order)
        total[...] = 0
        for gradient, image in zip(
            _in_order(gradients, convolution.output_layout, order), inputs, strict=True
        ):
            columns.load(image)
            np.copyto(outputs, gradient.reshape(-1, groups, count).transpose(1, 0, 2))
            np.matmul(columns.matrix.swapaxes(1, 2), outputs, out=product)
            np.add(total, product, out=total)
        result = _in_order(sums, convolution.filter_layout, f"{axes}cf")
        np.copyto(result, shaped.reshape(result.shape))

    return contract


def _pixels(convolution: ConvolutionGeometry, tap: tuple[int, ...]) -> tuple[slice, ...]:
    """The pixels of a padded image that a tap reads."""
    along = zip(tap, convolution.stride, convolution.dilation, convolution.output_size, strict=True)
    return tuple(
        slice(at * dilation, at * dilation + stride * (count - 1) + 1, stride)
        for at, stride, dilation, count in along
    )


FAMILY = NumpyConvolution()

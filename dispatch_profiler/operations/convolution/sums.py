"""References of convolutions in every mode: a BLAS product for each filter tap, in the arrays' precision.

Tensors are first brought into one order, here with G groups, C channels and F filters a group:

    images (N, ..., G*C)    filters (..., G, C, F)    outputs (G, N*OH*OW, F)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from dispatch_profiler.operations.geometry import CONV_ROLES, ConvolutionGeometry

#: The pixels of a padded image that one tap reads: a slice for each axis of the images.
_Window = tuple[slice, ...]


def contract(geometry: ConvolutionGeometry, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The sums of products of a convolution in its mode, from operands in its layouts."""
    left, right, result = CONV_ROLES[geometry.mode]
    arrays = {left: _in_order(geometry, left, lhs), right: _in_order(geometry, right, rhs)}
    if geometry.mode == "forward":
        sums = _forward(geometry, arrays["input"], arrays["filter"])
    elif geometry.mode == "input_backward":
        sums = _input_backward(geometry, arrays["output"], arrays["filter"])
    else:
        sums = _weight_backward(geometry, arrays["output"], arrays["input"])
    order, stored = _order(geometry, result), geometry.layout_of(result)
    return sums.transpose([order.index(letter) for letter in stored])


def most_terms(geometry: ConvolutionGeometry) -> int:
    """The most products that are summed into one element of the result; products with padding count in forward."""
    if geometry.mode == "forward":
        return math.prod(geometry.filter_size) * geometry.channels_per_group
    along_axes = [_terms(geometry, axis) for axis in range(geometry.spatial_rank)]
    if geometry.mode == "input_backward":
        return max(
            1, math.prod(int(terms.sum(axis=0).max()) for terms in along_axes) * geometry.filters_per_group
        )
    return max(1, math.prod(int(terms.sum(axis=1).max()) for terms in along_axes) * geometry.batch)


def _terms(geometry: ConvolutionGeometry, axis: int) -> np.ndarray:
    """(tap, pixel of the input) -> whether the tap reads that pixel for some output, along one axis."""
    size, taps = geometry.size[axis], geometry.filter_size[axis]
    is_read = np.zeros((taps, size), bool)
    for tap in range(taps):
        pixels = geometry.stride[axis] * np.arange(geometry.output_size[axis])
        pixels += tap * geometry.dilation[axis] - geometry.padding[axis]
        is_read[tap, pixels[(pixels >= 0) & (pixels < size)]] = True
    return is_read


def _order(geometry: ConvolutionGeometry, role: str) -> str:
    """Letters of a tensor in the order of this module: channels, or filters, last."""
    axes = geometry.spatial_letters
    return f"{axes}cf" if role == "filter" else f"n{axes}c"


def _in_order(geometry: ConvolutionGeometry, role: str, array: np.ndarray) -> np.ndarray:
    stored = {
        "input": geometry.input_layout,
        "filter": geometry.filter_layout,
        "output": geometry.output_layout,
    }
    return array.transpose([stored[role].index(letter) for letter in _order(geometry, role)])


def _forward(geometry: ConvolutionGeometry, images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    padded, by_group = _padded(geometry, images), _filters_by_group(geometry, filters)
    pixels = geometry.batch * math.prod(geometry.output_size)
    total = np.zeros((geometry.groups, pixels, geometry.filters_per_group), images.dtype)
    for tap, window in _windows(geometry):
        total += _product(_by_group(geometry, padded[window]), by_group[tap])
    return _from_groups(geometry, total)


def _input_backward(geometry: ConvolutionGeometry, gradient: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """Each tap adds to the pixels that it reads in the forward convolution."""
    outputs, by_group = _by_group(geometry, gradient), _filters_by_group(geometry, filters)
    padded = np.zeros((geometry.batch, *geometry.padded_size, geometry.channels), gradient.dtype)
    for tap, window in _windows(geometry):
        padded[window] += _from_groups(geometry, _product(outputs, by_group[tap].swapaxes(1, 2)))
    return padded[_interior(geometry)]


def _weight_backward(geometry: ConvolutionGeometry, gradient: np.ndarray, images: np.ndarray) -> np.ndarray:
    """For each tap, the product of the pixels that it reads with the outputs that they contribute to."""
    padded, outputs = _padded(geometry, images), _by_group(geometry, gradient)
    groups, channels = geometry.groups, geometry.channels_per_group
    gradients = np.empty(
        (*geometry.filter_size, groups, channels, geometry.filters_per_group), gradient.dtype
    )
    for tap, window in _windows(geometry):
        gradients[tap] = _by_group(geometry, padded[window]).swapaxes(1, 2) @ outputs
    # (..., G, C, F) -> (..., C, G*F)
    return gradients.swapaxes(-3, -2).reshape(*geometry.filter_size, channels, geometry.filters)


def _windows(geometry: ConvolutionGeometry) -> Iterator[tuple[tuple[int, ...], _Window]]:
    """Each tap, and the pixels of the padded images that it reads."""
    axes = list(zip(geometry.stride, geometry.dilation, geometry.output_size, strict=True))
    for tap in itertools.product(*map(range, geometry.filter_size)):
        starts = (at * dilation for at, (_, dilation, _) in zip(tap, axes, strict=True))
        ends = (
            slice(start, start + stride * (count - 1) + 1, stride)
            for start, (stride, _, count) in zip(starts, axes, strict=True)
        )
        yield tap, (slice(None), *ends)


def _interior(geometry: ConvolutionGeometry) -> _Window:
    """The pixels of the padded images inside the padding."""
    inside = (slice(at, at + size) for at, size in zip(geometry.padding, geometry.size, strict=True))
    return (slice(None), *inside)


def _padded(geometry: ConvolutionGeometry, images: np.ndarray) -> np.ndarray:
    margins = zip(geometry.padding, geometry.padding_after, strict=True)
    return np.pad(images, ((0, 0), *margins, (0, 0)))


def _by_group(geometry: ConvolutionGeometry, pixels: np.ndarray) -> np.ndarray:
    """(N, ..., G*C) -> (G, N*..., C)"""
    return pixels.reshape(-1, geometry.groups, pixels.shape[-1] // geometry.groups).transpose(1, 0, 2)


def _from_groups(geometry: ConvolutionGeometry, products: np.ndarray) -> np.ndarray:
    """(G, N*OH*OW, C) -> (N, OH, OW, G*C)"""
    return products.transpose(1, 0, 2).reshape(geometry.batch, *geometry.output_size, -1)


def _filters_by_group(geometry: ConvolutionGeometry, filters: np.ndarray) -> np.ndarray:
    """(..., C, G*F) -> (..., G, C, F)"""
    split = filters.reshape(*filters.shape[:-1], geometry.groups, geometry.filters_per_group)
    return split.swapaxes(-3, -2)


def _product(pixels: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """(G, P, C) x (G, C, F) -> (G, P, F); broadcasting is faster than BLAS where C is 1."""
    return pixels * taps if pixels.shape[2] == 1 else pixels @ taps

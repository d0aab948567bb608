"""Layouts of convolutions: letters such as NHWC, and the order of a tensor's axes in memory.

A tensor has torch's axes, N, C and the spatial ones, whatever its layout in memory. `to_torch` gives a tensor whose axes
are in another order torch's axes; `to_memory` gives one with torch's axes the order of its memory:

    NHWC: shape (2, 8, 9, 3) -- to_torch (0, 3, 1, 2) -> shape (2, 3, 8, 9) -- to_memory (0, 2, 3, 1) -> (2, 8, 9, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.errors import UsageError

#: torch as Any, because parts of it are untyped.
_torch: Any = torch
#: Spatial axes -> the layout of a contiguous tensor, and of one in channels-last format.
CHANNELS_FIRST = {1: "NCH", 2: "NCHW", 3: "NCDHW"}
CHANNELS_LAST = {1: "NHC", 2: "NHWC", 3: "NDHWC"}

Order = tuple[int, ...]


def checked(name: str, layout: str, axes: int) -> str:
    """`layout` in capital letters. Raises UsageError unless it is an order of N, C and the `axes` spatial axes."""
    letters, default = str(layout).upper(), CHANNELS_FIRST[axes]
    if axes == 1:
        letters = letters.replace("W", "H")
    if sorted(letters) != sorted(default):
        raise UsageError(
            f"{name} {layout!r} is no layout of {axes + 2} axes",
            hint=f"use each of {', '.join(default)} once",
        )
    return letters


def to_torch(layout: str) -> Order:
    """What permutes a tensor with axes in `layout` to torch's axes."""
    return tuple(map(layout.index, CHANNELS_FIRST[len(layout) - 2]))


def to_memory(layout: str) -> Order:
    """What permutes a tensor with torch's axes to axes in `layout`."""
    return tuple(map(CHANNELS_FIRST[len(layout) - 2].index, layout))


def layout_of(order: Order) -> str:
    """Inverse of `to_memory`."""
    letters = CHANNELS_FIRST[len(order) - 2]
    return "".join(letters[axis] for axis in order)


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...], order: Order) -> bool:
    """Whether the axes in `order` are row major: the memory of a tensor that is permuted by `order` is dense."""
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= shape[axis]
    return True


def dense_order(shape: tuple[int, ...], strides: tuple[int, ...], preferred: str) -> Order | None:
    """The order of axes in which a tensor without empty axes is row major; `preferred` if several are.

    None if its memory has gaps, or is shared by elements.
    """
    axes = len(shape) - 2
    standard = [to_memory(each) for each in (preferred, CHANNELS_FIRST[axes], CHANNELS_LAST[axes])]
    return next(
        (each for each in (*standard, storage_order(strides)) if is_dense(shape, strides, each)), None
    )


def storage_order(strides: Sequence[int]) -> Order:
    """The axes of a tensor, from the outermost in memory to the innermost."""
    return tuple(sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis)))


def strides_of(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Strides of a tensor with torch's axes and this shape, which is dense in `layout`. As torch's, without zeros."""
    return dense_strides(shape, to_memory(layout))


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps. `order` has the axes from the outermost in memory to the innermost."""
    strides, extent = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = extent
        extent = extent * _torch.sym_max(shape[axis], 1)
    return tuple(strides)


def is_channels_last(tensor: Tensor) -> bool:
    """Whether torch takes a tensor for one in channels-last format: by its strides, also of axes with one element."""
    if tensor.dim() not in (4, 5) or tensor.stride(1) == 0:
        return False
    shape, strides, least = tensor.shape, tensor.stride(), 0
    for axis in (1, *range(tensor.dim() - 1, 1, -1), 0):
        # Strides of tensors with one column and row fit both formats: these are contiguous.
        if not shape[axis] or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def result_layout(x: Tensor, w: Tensor) -> str:
    """The layout of torch's result: channels last if the input's or the weight's is, otherwise contiguous."""
    axes = w.dim() - 2
    return CHANNELS_LAST[axes] if is_channels_last(x) or is_channels_last(w) else CHANNELS_FIRST[axes]

"""Geometry of matrix products, convolutions and layer norms, independent of the operation's class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Variant = Literal["dense", "grouped", "depthwise"]
Mode = Literal["forward", "input_backward", "weight_backward", "bias_backward"]


@dataclass(frozen=True)
class ProductGeometry:
    """`batch` products of M x K and K x N matrices; layout `n` means stored transposed.

    If `is_batched`, the tensors have a leading batch axis.
    """

    batch: int
    m: int
    n: int
    k: int
    lhs_layout: str
    rhs_layout: str
    is_batched: bool = False


@dataclass(frozen=True)
class ConvolutionGeometry:
    """A convolution in any number of spatial dimensions; every tuple has one entry per dimension.

    `size` and `output_size` count pixels, `filter_size` counts taps, and `padding` applies to both sides.
    `input_layout`, `filter_layout` and `output_layout` are layout letters, such as `nhwc` and `hwcf`.
    `channels` and `filters` are totals over all groups.
    """

    batch: int
    channels: int
    filters: int
    size: tuple[int, ...]
    filter_size: tuple[int, ...]
    output_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    input_layout: str
    filter_layout: str
    output_layout: str
    mode: Mode = "forward"

    @property
    def spatial_rank(self) -> int:
        return len(self.size)

    @property
    def is_channels_last(self) -> bool:
        return self.input_layout.endswith("c")

    @property
    def padded_size(self) -> tuple[int, ...]:
        """Size of the padded input, in pixels."""
        return tuple(size + 2 * padding for size, padding in zip(self.size, self.padding, strict=True))

    @property
    def channels_per_group(self) -> int:
        return self.channels // self.groups

    @property
    def filters_per_group(self) -> int:
        return self.filters // self.groups

    @property
    def variant(self) -> Variant:
        """Depthwise: one input channel and one filter per group."""
        if self.groups == 1:
            return "dense"
        return "depthwise" if self.groups == self.channels == self.filters else "grouped"


@dataclass(frozen=True)
class NormGeometry:
    """A layer norm of `rows` rows of `size` elements; `eps` is 0 in the backward modes, which do not read it."""

    rows: int
    size: int
    is_affine: bool
    eps: float = 0.0
    mode: Mode = "forward"

"""Geometry of matrix products, convolutions, layer norms, sums and attention, independent of the operation's class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dispatch_profiler.operations.strided import Strided

Variant = Literal["dense", "grouped", "depthwise"]
Mode = Literal["forward", "input_backward", "weight_backward", "bias_backward"]
#: A tensor of a convolution, or its gradient.
Role = Literal["input", "filter", "output"]
#: Mode of a convolution -> roles of lhs, rhs and result. In the backward modes, lhs and result are gradients.
CONV_ROLES: dict[str, tuple[Role, Role, Role]] = {
    "forward": ("input", "filter", "output"),
    "input_backward": ("output", "filter", "input"),
    "weight_backward": ("output", "input", "filter"),
}

_EXCHANGED = str.maketrans("fc", "cf")


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
class Int4Geometry:
    """A product of `m` rows with `n` columns of 4-bit numbers in panels: see `Int4Matmul`."""

    m: int
    n: int
    k: int
    group: int
    #: Columns of a panel, and the number that stands for 0.
    panel: int
    middle: int

    @property
    def panels(self) -> int:
        return self.n // self.panel

    @property
    def groups(self) -> int:
        """Groups of terms, each with a scale and a zero for each column."""
        return self.k // self.group


@dataclass(frozen=True)
class ConvolutionGeometry:
    """A convolution in any number of spatial dimensions; every tuple has one entry per dimension.

    In every mode, `size` and `output_size` count pixels of the forward convolution's input and output, and
    `filter_size` counts taps. `padding` is the padding on the low side, `padding_after` on the high side.
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
    padding_after: tuple[int, ...]
    mode: Mode = "forward"

    @property
    def spatial_rank(self) -> int:
        return len(self.size)

    @property
    def spatial_letters(self) -> str:
        """Letters of the spatial axes in layouts, outermost first: `hw`."""
        return "dhw"[-self.spatial_rank :]

    @property
    def is_channels_last(self) -> bool:
        return self.input_layout.endswith("c")

    @property
    def is_canonical(self) -> bool:
        """Forward, in the layouts of one of linalg's named operations.

        nhwc, hwcf -> nhwc, or nchw, fchw -> nchw; likewise with one and three spatial axes.
        """
        axes = self.spatial_letters
        layouts = (self.input_layout, self.filter_layout, self.output_layout)
        last, first = (f"n{axes}c", f"{axes}cf", f"n{axes}c"), (f"nc{axes}", f"fc{axes}", f"nc{axes}")
        return self.mode == "forward" and layouts in (last, first)

    @property
    def is_nhwc(self) -> bool:
        """A forward conv2d in nhwc, hwcf -> nhwc, for which code generators have fast code."""
        return self.is_canonical and self.is_channels_last and self.spatial_rank == 2

    @property
    def padded_size(self) -> tuple[int, ...]:
        """Size of the padded input, in pixels."""
        return tuple(map(sum, zip(self.size, self.padding, self.padding_after, strict=True)))

    @property
    def window(self) -> tuple[int, ...]:
        """Pixels that the dilated filter covers."""
        return tuple((n - 1) * step + 1 for n, step in zip(self.filter_size, self.dilation, strict=True))

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

    @property
    def as_forward(self) -> ConvolutionGeometry | None:
        """The forward convolution of the same operands: itself, or that of a gradient, whose taps are in reverse order.

        The input's gradient with stride 1 is a convolution of the output's gradient, in which channels and filters change
        places. None for other gradients, for groups of several channels, and where padding exceeds the filter.
        """
        if self.mode == "forward":
            return self
        if self.mode != "input_backward" or set(self.stride) != {1} or self.variant == "grouped":
            return None
        axes = zip(self.window, self.padding, self.size, self.output_size, strict=True)
        margins = [(window - 1 - low, size + low - output_size) for window, low, size, output_size in axes]
        if any(min(pair) < 0 for pair in margins):
            return None
        before, after = zip(*margins, strict=True)
        layout = self.filter_layout
        return replace(
            self,
            channels=self.filters,
            filters=self.channels,
            size=self.output_size,
            output_size=self.size,
            padding=before,
            padding_after=after,
            input_layout=self.output_layout,
            filter_layout=layout if self.variant == "depthwise" else layout.translate(_EXCHANGED),
            output_layout=self.input_layout,
            mode="forward",
        )

    def layout_of(self, role: Role) -> str:
        """The layout of the input, the filter or the output."""
        return {"input": self.input_layout, "filter": self.filter_layout, "output": self.output_layout}[role]

    def shape_of(self, role: Role) -> tuple[int, ...]:
        """The shape of the input, the filter or the output, in its layout."""
        if role == "filter":
            extents = {"f": self.filters, "c": self.channels_per_group}
        else:
            extents = {"n": self.batch, "c": self.channels if role == "input" else self.filters}
        sizes = {"input": self.size, "filter": self.filter_size, "output": self.output_size}[role]
        extents |= dict(zip(self.spatial_letters, sizes, strict=True))
        return tuple(extents[letter] for letter in self.layout_of(role))


@dataclass(frozen=True)
class NormGeometry:
    """A layer norm of `rows` rows of `size` elements, with the parameters that it reads or whose gradients it computes.

    `eps` is 0 in the backward modes, which do not read it.
    """

    rows: int
    size: int
    has_weight: bool
    has_bias: bool
    eps: float = 0.0
    mode: Mode = "forward"


@dataclass(frozen=True)
class RowSums:
    """`rows` rows of `size` elements, each of which is reduced before each of its elements is computed."""

    rows: int
    size: int


@dataclass(frozen=True)
class ChannelSum:
    """The sums of a tensor of shape (outer, channels, inner) over all axes but the channels."""

    outer: int
    channels: int
    inner: int


# -- attention -------------------------------------------------------------------------------------


#: From where positions are counted: from the first query and the first key, or from the last ones.
CAUSALS = ("", "upper_left", "lower_right")


@dataclass(frozen=True)
class Visibility:
    """Which of `keys` each of `queries` sees: all of them, or with `causal` those up to its own position.

    `upper_left`: query i has the position i, as torch's `is_causal`. `lower_right`: the last query has the position of the
    last key, as for tokens that continue a sequence. With a `window`, only the last so many of them.
    """

    queries: int
    keys: int
    causal: str = ""
    window: int = 0

    @property
    def offset(self) -> int:
        """The position of the first query."""
        return self.keys - self.queries if self.causal == "lower_right" else 0

    def seen(self, rows: slice) -> np.ndarray:
        """(queries of `rows`, keys) -> whether the query sees the key."""
        query, key = np.arange(self.queries)[rows, None] + self.offset, np.arange(self.keys)[None, :]
        if not self.causal:
            return np.ones((len(query), self.keys), bool)
        seen = key <= query
        return seen & (key > query - self.window) if self.window else seen

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees."""
        if not self.causal:
            return self.queries * self.keys
        ends = np.clip(np.arange(self.queries) + self.offset + 1, 0, self.keys)
        begins = (
            np.clip(np.arange(self.queries) + self.offset + 1 - self.window, 0, self.keys)
            if self.window
            else 0
        )
        return int((ends - begins).sum())


def dense_strides(heads: int, positions: int, elements: int, *, heads_first: bool) -> tuple[int, ...]:
    """Distances along batch, head, position and element of a tensor of an attention without gaps."""
    batch = heads * positions * elements
    if heads_first:
        return (batch, positions * elements, elements, 1)
    return (batch, elements, heads * elements, 1)


@dataclass(frozen=True)
class AttentionPlaces:
    """Where the operands and the result of an attention are in memory.

    They have the axes batch, head, position, element; the mask has batch, head, query, key.
    """

    query: Strided
    key: Strided
    value: Strided
    result: Strided
    mask: Strided | None = None


@dataclass(frozen=True)
class AttentionGeometry:
    """The extents of an attention, which keys its queries see, and where its operands are: see `Attention`."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    key_heads: int
    value_size: int
    scale: float
    causal: str
    window: int
    mask: str
    logsumexp: bool
    layout: str
    places: AttentionPlaces

    @property
    def shared(self) -> int:
        """Heads of queries that share a head of keys and values."""
        return self.heads // self.key_heads

    @property
    def is_dense(self) -> bool:
        """Whether each operand, and the result, is a tensor of its own without gaps."""
        extents = (
            (self.heads, self.queries, self.size),
            (self.key_heads, self.keys, self.size),
            (self.key_heads, self.keys, self.value_size),
            (self.heads, self.queries, self.value_size),
        )
        places = (self.places.query, self.places.key, self.places.value, self.places.result)
        return all(
            (place.offset, place.strides) == (0, dense_strides(*extent, heads_first=self.heads_first))
            for place, extent in zip(places, extents, strict=True)
        ) and [each.source for each in places[:3]] == [0, 1, 2]

    @property
    def heads_first(self) -> bool:
        """Whether heads are before the positions in memory."""
        return self.layout == "bhsd"

    @property
    def visibility(self) -> Visibility:
        """The keys that queries see, apart from a mask."""
        return Visibility(self.queries, self.keys, self.causal, self.window)

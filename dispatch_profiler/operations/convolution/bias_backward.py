"""Gradient of a bias: the sum of a tensor over all axes but its channel axis.

It is the same for convolutions and linear layers, so the shape is given by the extents around the channels:
`outer` elements before them and `inner` elements after them. NHWC: outer = N*H*W, inner = 1; NCHW: outer = N,
inner = H*W.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dispatch_profiler.operations._base import (
    Distribution,
    Loop,
    Reference,
    Tensor,
)
from dispatch_profiler.operations.element_types import ElementType
from dispatch_profiler.operations.geometry import ChannelSum
from dispatch_profiler.operations.options import ShapeOption
from dispatch_profiler.operations.reductions import SumOperation, same_terms, type_option
from dispatch_profiler.operations.rounding import rounded_to

#: Two layers of ResNet-50 in NHWC and one in NCHW, and the wide linear layer of BERT-base.
BIAS_PROBLEMS = ((12544, 64, 1), (784, 512, 1), (8, 64, 3136), (384, 3072, 1))


@dataclass(frozen=True)
class BiasBackward(SumOperation):
    """`channels` sums of `outer * inner` terms, in `sums_type`.

    dy: (outer, channels, inner) of `type`; db: (channels,) of `type`.
    """

    kind: ClassVar[str] = "bias_backward"
    parallel_axes: ClassVar[tuple[str, ...]] = ("channel",)
    reduction_axes: ClassVar[tuple[str, ...]] = ("outer", "inner")
    prefix: ClassVar[str] = "bias"
    problems: ClassVar[tuple[tuple[int, ...], ...]] = BIAS_PROBLEMS
    default_extents: ClassVar[Mapping[str, int]] = {"outer": 3136, "channels": 64, "inner": 1}
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (
        ShapeOption("bias_outer", ("--bias-outer",), "elements before the channel axis: N*H*W in NHWC"),
        ShapeOption("bias_channels", ("--bias-channels",), "number of channels"),
        ShapeOption("bias_inner", ("--bias-inner",), "elements after the channel axis: H*W in NCHW"),
        type_option("bias"),
    )

    outer: int
    channels: int
    inner: int = 1
    type: str = "f32"

    @property
    def name(self) -> str:
        """`bias_backward_8x64x3136_f32t`"""
        return f"{self.kind}_{self.outer}x{self.channels}x{self.inner}_{self.type}t"

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (Tensor("dy", (self.outer, self.channels, self.inner), self.element_type),)

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (Tensor("db", (self.channels,), self.element_type),)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (
            Loop("channel", self.channels, "parallel"),
            Loop("outer", self.outer, "reduction"),
            Loop("inner", self.inner, "reduction"),
        )

    @property
    def channel_sum(self) -> ChannelSum:
        return ChannelSum(self.outer, self.channels, self.inner)

    @property
    def flops(self) -> int:
        """One addition per element."""
        return self.channels * self.accumulations

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """Integers whose partial sums are exact and fit the type, reals in (-1, 1), or reals that are almost equal."""
        if distribution is Distribution.REALS:
            return rng.uniform(-1.0, 1.0, operand.shape).astype(operand.type.dtype)
        if distribution is Distribution.OFFSET:
            values = same_terms(rng.uniform(-1.0, 1.0, operand.shape), self.accumulations)
            return values.astype(operand.type.dtype)
        room = min(float(self.accumulator.exact_integers), float(self.element_type.finfo().max))
        most = max(1, min(int(room / self.accumulations), self.element_type.exact_integers, 2**10))
        return rng.integers(-most, most, operand.shape, endpoint=True).astype(operand.type.dtype)

    def in_float64(
        self, operands: Sequence[np.ndarray], added_in: ElementType, *, stepwise: bool
    ) -> tuple[Reference, ...]:
        """In float64; exact if dy holds integers whose partial sums are exact in the accumulator.

        Otherwise `|ddb| <= s sum|dy| + u |db|`, where s is the bound for a sum of `outer * inner` terms, and
        u the bound for rounding it.
        """
        (dy,) = operands
        # einsum adds all terms of a channel one after another, unlike `sum`, which a library may use.
        db = np.einsum("ijk->j", dy)
        if self.sums_exactly((dy,), self.accumulations, float(np.abs(dy).max())):
            return (Reference(rounded_to(db, self.element_type), None),)
        u, sums = self.roundoffs(self.accumulations, added_in, dy)
        error = sums * np.abs(dy).sum(axis=(0, 2)) + u * np.abs(db)
        return (Reference(db, self.stored(db, error, self.element_type)),)

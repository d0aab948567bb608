"""Attention: queries that weigh values by their products with keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dispatch_profiler.boo.op_exports._base import (
    TORCH_NAMES,
    Mode,
    OpSignature,
    joined,
    positive_number,
    sizes,
    switch,
    type_name,
)
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Attention
from dispatch_profiler.operations._base import number_in_symbol
from dispatch_profiler.operations.attention.attention import LAYOUTS
from dispatch_profiler.workloads.miopen.attention import AttentionProblem

#: Letters of the axes of a mask besides keys.
_MASK_AXES = "bhq"


@dataclass(frozen=True, kw_only=True)
class AttentionSignature(OpSignature):
    """Attention as `torch.nn.functional.scaled_dot_product_attention` computes it, with fewer key heads than heads, too.

    The shapes are (batch, heads, positions, elements). Launches take `(query, key, value[, mask])` and return the result; with
    the layout `bshd`, their tensors but the mask have the positions before the heads, as models often store them. A mask of `mask_shape`, whose extents are those of the scores or 1, has numbers that are added to scores, or with
    `mask_dtype="bool"` elements of int8, 0 for keys that are not seen. Without a `scale`, it is 1 / sqrt(elements). Raises
    UsageError for a mode other than the forward.
    """

    problem_type: ClassVar = AttentionProblem

    query_shape: Sequence[int]
    key_shape: Sequence[int]
    value_shape: Sequence[int]
    mask_shape: Sequence[int] | None = None
    mask_dtype: Any = "bool"
    is_causal: bool = False
    scale: float | None = None
    dtype: Any = "bf16"
    mode: Any = Mode.FORWARD
    layout: str = "bhsd"

    def __post_init__(self) -> None:
        shapes = {
            name: sizes(name, getattr(self, name)) for name in ("query_shape", "key_shape", "value_shape")
        }
        mask = None if self.mask_shape is None else sizes("mask_shape", self.mask_shape)
        for name, shape in (*shapes.items(), *(() if mask is None else (("mask_shape", mask),))):
            if len(shape) != 4:
                raise UsageError(f"{name} of attention has 4 numbers, but got {shape}")
        size = shapes["query_shape"][3]
        dtype = type_name(self.dtype)
        self._set(
            {
                **shapes,
                "mask_shape": mask,
                # Equal signatures have equal fields.
                "mask_dtype": "bool" if mask is None else _mask_type(self.mask_dtype, dtype),
                "is_causal": switch("is_causal", self.is_causal),
                "scale": 1.0 / math.sqrt(size)
                if self.scale is None
                else positive_number("scale", self.scale),
                "dtype": dtype,
                "mode": Mode.parse(self.mode),
            }
        )
        if self.layout not in LAYOUTS:
            raise UsageError(f"no layout {self.layout!r}", hint=f"available: {', '.join(LAYOUTS)}")
        self._check_shapes()
        if not self.is_forward:
            raise UsageError(
                "no operation computes the gradient of an attention", hint="available modes: fwd"
            )

    def _check_shapes(self) -> None:
        batch, _, queries, size = self.query_shape
        key_batch, key_heads, keys, key_size = self.key_shape
        if (batch, size) != (key_batch, key_size) or tuple(self.value_shape[:3]) != (batch, key_heads, keys):
            raise UsageError(
                f"query_shape {self.query_shape}, key_shape {self.key_shape} and value_shape {self.value_shape} do not fit",
                hint="they are (batch, heads, queries, size), (batch, key heads, keys, size) and (batch, key heads, keys, ...)",
            )
        if self.mask_shape is None:
            return
        scores = (batch, self.query_shape[1], queries, keys)
        if self.mask_shape[3] != keys or any(
            extent not in (1, whole) for extent, whole in zip(self.mask_shape, scores, strict=True)
        ):
            raise UsageError(f"mask_shape {self.mask_shape} does not broadcast to scores of {scores}")

    @property
    def problem(self) -> AttentionProblem:
        """See `OpSignature.problem`."""
        batch, heads, queries, size = self.query_shape
        mask, axes = "", ""
        if self.mask_shape is not None:
            mask = "bool" if self.mask_dtype == "bool" else "add"
            axes = "".join(
                letter for letter, extent in zip(_MASK_AXES, self.mask_shape, strict=False) if extent > 1
            )
        attention = Attention(
            batch,
            heads,
            queries,
            self.key_shape[2],
            size,
            key_heads=self.key_shape[1],
            value_size=self.value_shape[3],
            type=self.dtype,
            scale=self.scale or 0.0,
            causal="upper_left" if self.is_causal else "",
            mask=mask,
            mask_axes=axes,
            layout=self.layout,
        )
        return AttentionProblem(attention)

    @classmethod
    def of_problem(cls, problem: AttentionProblem, mode: Mode) -> AttentionSignature:
        """See `OpSignature.of_problem`. Raises UsageError for what torch's function cannot compute."""
        attention = problem.attention
        if attention.causal == "lower_right" or attention.window or attention.logsumexp:
            raise UsageError(
                f"a launch of attention has no windows, lower_right or logsumexp: {attention.name}"
            )
        query, key, value, *masks = (each.shape for each in replace(attention, layout="bhsd").operands)
        return cls(
            query_shape=query,
            key_shape=key,
            value_shape=value,
            mask_shape=masks[0] if masks else None,
            mask_dtype="bool" if attention.mask != "add" else attention.type,
            is_causal=attention.causal == "upper_left",
            scale=attention.scale,
            dtype=attention.type,
            mode=mode,
            layout=attention.layout,
        )

    @property
    def func_name(self) -> str:
        """`attention_float32_forward_1x12x128x64_1x12x128x64_1x12x128x64[_causal][_mask1x1x128x128][_0p1scale][_bshd]`."""
        shapes = "_".join(joined(each) for each in (self.query_shape, self.key_shape, self.value_shape))
        name = f"attention_{TORCH_NAMES[self.dtype]}_{self.mode.value}_{shapes}"
        name += "_causal" if self.is_causal else ""
        if self.mask_shape is not None:
            name += f"_{'bool' if self.mask_dtype == 'bool' else 'mask'}{joined(self.mask_shape)}"
        usual = 1.0 / math.sqrt(self.query_shape[3])
        name += "" if self.scale == usual else f"_{number_in_symbol(self.scale or 0.0)}scale"
        return name if self.layout == LAYOUTS[0] else f"{name}_{self.layout}"

    def _tensors(self) -> tuple[list[tuple[str, tuple[int, ...], int]], list[tuple[str, tuple[int, ...]]]]:
        shapes = [self.query_shape, self.key_shape, self.value_shape]
        named = [
            (name, self._stored(shape)) for name, shape in zip(("query", "key", "value"), shapes, strict=True)
        ]
        named += [] if self.mask_shape is None else [("mask", tuple(self.mask_shape))]
        result = (*self.query_shape[:3], self.value_shape[3])
        listed = [(name, shape, at) for at, (name, shape) in enumerate(named)]
        return listed, [("result", self._stored(result))]

    def _stored(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape with its axes in the order of the layout."""
        batch, heads, positions, elements = shape
        middle = (heads, positions) if self.layout == LAYOUTS[0] else (positions, heads)
        return batch, *middle, elements


def _mask_type(dtype: Any, own: str) -> str:
    """`bool`, or the type of the other operands. Raises UsageError."""
    name = str(dtype).removeprefix("torch.")
    if name in ("bool", "<class 'bool'>"):
        return "bool"
    if type_name(dtype) != own:
        raise UsageError(
            f"mask_dtype is bool or the type of the queries, {own}, but got {dtype}",
            hint="convert the mask",
        )
    return own

"""Softmax over the last axis of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dispatch_profiler.boo.op_exports._base import (
    TORCH_NAMES,
    Mode,
    OpSignature,
    joined,
    positive_number,
    sizes,
    type_name,
)
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations._base import number_in_symbol
from dispatch_profiler.workloads.miopen.softmax import SoftmaxProblem


@dataclass(frozen=True, kw_only=True)
class SoftmaxSignature(OpSignature):
    """`softmax(scale * x, -1)` of a tensor of `input_shape`. Launches take `(x,)` and return the result, in its shape.

    Raises UsageError for a mode other than the forward, and for a scale that is no number above 0.
    """

    problem_type: ClassVar = SoftmaxProblem

    input_shape: Sequence[int]
    scale: float = 1.0
    dtype: Any = "bf16"
    mode: Any = Mode.FORWARD

    def __post_init__(self) -> None:
        self._set(
            {
                "input_shape": sizes("input_shape", self.input_shape),
                "scale": positive_number("scale", self.scale),
                "dtype": type_name(self.dtype),
                "mode": Mode.parse(self.mode),
            }
        )
        if not self.input_shape:
            raise UsageError("input_shape of a softmax has one number or more, but got ()")
        if not self.is_forward:
            raise UsageError("no operation computes the gradient of a softmax", hint="available modes: fwd")

    @property
    def problem(self) -> SoftmaxProblem:
        """See `OpSignature.problem`."""
        return SoftmaxProblem(tuple(self.input_shape), self.dtype, self.scale)

    @classmethod
    def of_problem(cls, problem: SoftmaxProblem, mode: Mode) -> SoftmaxSignature:
        """See `OpSignature.of_problem`."""
        return cls(input_shape=problem.shape, scale=problem.scale, dtype=problem.type, mode=mode)

    @property
    def func_name(self) -> str:
        """`softmax_float32_forward_4x8x16[_0p125scale]`."""
        name = f"softmax_{TORCH_NAMES[self.dtype]}_{self.mode.value}_{joined(self.input_shape)}"
        return name if self.scale == 1.0 else f"{name}_{number_in_symbol(self.scale)}scale"

    def _tensors(self) -> tuple[list[tuple[str, tuple[int, ...], int]], list[tuple[str, tuple[int, ...]]]]:
        x = tuple(self.input_shape)
        return [("x", x, 0)], [("y", x)]

"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dispatch_profiler.boo.op_exports._base import (
    FACTOR_NAMES,
    Mode,
    OpSignature,
    joined,
    sizes,
    switch,
    type_name,
)
from dispatch_profiler.errors import UsageError
from dispatch_profiler.workloads.miopen import GemmProblem


@dataclass(frozen=True, kw_only=True)
class GEMMSignature(OpSignature):
    """`a @ b` of matrices with `a_shape` (M, K) and `b_shape` (K, N).

    With `transpose_a`, launches take the transpose of `a`, a tensor of (K, M); likewise for `b`. They take `(a, b)`;
    `(dLdc, b)` with mode `a_backward`; and `(dLdc, a)` with `b_backward`. Gradients are stored like their operands.

    `b_dtype` is the type of `b` if that is not `dtype`. The result then has the wider of both types, as it does in torch's
    rules of promotion, or float32. Gradients are for one type of at least 16 bits.
    """

    problem_type: ClassVar = GemmProblem

    a_shape: Sequence[int]
    b_shape: Sequence[int]
    transpose_a: bool = False
    transpose_b: bool = False
    dtype: Any = "f32"
    mode: Any = Mode.FORWARD
    b_dtype: Any = None

    def __post_init__(self) -> None:
        a, b = sizes("a_shape", self.a_shape), sizes("b_shape", self.b_shape)
        if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
            raise UsageError(
                f"a_shape is (M, K) and b_shape (K, N), but got {self.a_shape} and {self.b_shape}"
            )
        dtype = type_name(self.dtype, FACTOR_NAMES)
        b_dtype = type_name(self.b_dtype, FACTOR_NAMES) if self.b_dtype else ""
        self._set(
            {
                "a_shape": a,
                "b_shape": b,
                "transpose_a": switch("transpose_a", self.transpose_a),
                "transpose_b": switch("transpose_b", self.transpose_b),
                "dtype": dtype,
                "mode": Mode.parse(self.mode),
                "b_dtype": None if b_dtype in ("", dtype) else b_dtype,
            }
        )
        if self.mode is Mode.BIAS_BACKWARD:
            raise UsageError(
                "a matrix product has no bias", hint="available modes: fwd, a_backward, b_backward"
            )

    @property
    def problem(self) -> GemmProblem:
        """See `OpSignature.problem`."""
        (m, k), n = self.a_shape, self.b_shape[1]
        return GemmProblem(m, n, k, self.dtype, self.transpose_a, self.transpose_b, self.b_dtype or "")

    @classmethod
    def of_problem(cls, problem: GemmProblem, mode: Mode) -> GEMMSignature:
        """See `OpSignature.of_problem`."""
        return cls(
            a_shape=(problem.m, problem.k),
            b_shape=(problem.k, problem.n),
            transpose_a=problem.transposes_a,
            transpose_b=problem.transposes_b,
            dtype=problem.type,
            mode=mode,
            b_dtype=problem.b_type or None,
        )

    @property
    def func_name(self) -> str:
        """`gemm_float32_forward_32x64_t_64x128`."""
        a = joined(self.a_shape) + ("_t" if self.transpose_a else "")
        b = joined(self.b_shape) + ("_t" if self.transpose_b else "")
        types = "_".join(FACTOR_NAMES[each] for each in (self.dtype, self.b_dtype) if each)
        return f"gemm_{types}_{self.mode.value}_{a}_{b}"

    def _tensors(self) -> tuple[list[tuple[str, tuple[int, ...], int]], list[tuple[str, tuple[int, ...]]]]:
        a = tuple(self.a_shape)[:: -1 if self.transpose_a else 1]
        b = tuple(self.b_shape)[:: -1 if self.transpose_b else 1]
        c = (self.a_shape[0], self.b_shape[1])
        if self.mode is Mode.FORWARD:
            return [("a", a, 0), ("b", b, 1)], [("c", c)]
        if self.mode is Mode.INPUT_BACKWARD:
            # See `GemmProblem.operation`: the gradient of a transposed operand is the transposed product.
            first = 1 if self.transpose_a else 0
            return [("dLdc", c, first), ("b", b, 1 - first)], [("dLda", a)]
        first = 0 if self.transpose_b else 1
        return [("dLdc", c, first), ("a", a, 1 - first)], [("dLdb", b)]

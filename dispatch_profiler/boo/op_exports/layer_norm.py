"""Layer norms over the last axes of a tensor."""

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
    switch,
    type_name,
)
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations._base import number_in_symbol
from dispatch_profiler.operations.norm.normalization import affine_of, has_bias, has_weight
from dispatch_profiler.workloads.miopen import LayerNormProblem


@dataclass(frozen=True, kw_only=True)
class LayerNormSignature(OpSignature):
    """A layer norm of `input_shape` over its last axes, of `normalized_shape`.

    `elementwise_affine` is whether there is a weight, and `bias` whether there is a bias; without it, as there is a weight.

    Launches take `(x[, w][, b])` and return `(y, mean, rstd)`, as `torch.native_layer_norm` does. With mode `bwd` they
    take `(dLdy, x[, w], mean, rstd)` and return the gradient of x; with `wrw` `(dLdy, x, mean, rstd)`, and return the
    gradients of the weight and, if there is one, of the bias; with `bias_backward` `(dLdy,)`.
    """

    problem_type: ClassVar = LayerNormProblem

    input_shape: Sequence[int]
    normalized_shape: Sequence[int]
    eps: float = 1e-5
    elementwise_affine: bool = True
    bias: bool | None = None
    dtype: Any = "bf16"
    mode: Any = Mode.FORWARD

    def __post_init__(self) -> None:
        shape, normalized = (
            sizes("input_shape", self.input_shape),
            sizes("normalized_shape", self.normalized_shape),
        )
        if not normalized or shape[-len(normalized) :] != normalized:
            raise UsageError(
                f"normalized_shape {tuple(self.normalized_shape)} is not the end of input_shape {tuple(self.input_shape)}"
            )
        is_affine = switch("elementwise_affine", self.elementwise_affine)
        self._set(
            {
                "input_shape": shape,
                "normalized_shape": normalized,
                "eps": positive_number("eps", self.eps),
                "elementwise_affine": is_affine,
                "bias": is_affine if self.bias is None else switch("bias", self.bias),
                "dtype": type_name(self.dtype),
                "mode": Mode.parse(self.mode),
            }
        )

    @property
    def problem(self) -> LayerNormProblem:
        """See `OpSignature.problem`."""
        return LayerNormProblem(
            tuple(self.input_shape),
            len(self.normalized_shape),
            self.dtype,
            self.eps,
            affine_of(self.elementwise_affine, bool(self.bias)),
        )

    @classmethod
    def of_problem(cls, problem: LayerNormProblem, mode: Mode) -> LayerNormSignature:
        """See `OpSignature.of_problem`."""
        return cls(
            input_shape=problem.shape,
            normalized_shape=problem.shape[-problem.normalized :],
            eps=problem.eps,
            elementwise_affine=has_weight(problem.affine),
            bias=has_bias(problem.affine),
            dtype=problem.type,
            mode=mode,
        )

    @property
    def func_name(self) -> str:
        """`layernorm_bfloat16_forward_4x8x16_n8x16_1em05eps_w_b`."""
        affine = ("_w" if self.elementwise_affine else "") + ("_b" if self.bias else "")
        return (
            f"layernorm_{TORCH_NAMES[self.dtype]}_{self.mode.value}_{joined(self.input_shape)}"
            f"_n{joined(self.normalized_shape)}_{number_in_symbol(self.eps)}eps{affine}"
        )

    def _tensors(self) -> tuple[list[tuple[str, tuple[int, ...], int]], list[tuple[str, tuple[int, ...]]]]:
        x, w = tuple(self.input_shape), tuple(self.normalized_shape)
        rows = (*x[: -len(w)], *(1 for _ in w))
        if self.mode is Mode.FORWARD:
            names = [*(["w"] if self.elementwise_affine else []), *(["b"] if self.bias else [])]
            affine = [(name, w, at) for at, name in enumerate(names, 1)]
            return [("x", x, 0), *affine], [("y", x), ("mean", rows), ("rstd", rows)]
        if self.mode is Mode.INPUT_BACKWARD:
            weight = [("w", w, 4)] if self.elementwise_affine else []
            return [("dLdy", x, 0), ("x", x, 1), *weight, ("mean", rows, 2), ("rstd", rows, 3)], [("dLdx", x)]
        if self.mode is Mode.WEIGHT_BACKWARD:
            arguments = [("dLdy", x, 0), ("x", x, 1), ("mean", rows, 2), ("rstd", rows, 3)]
            return arguments, [("dLdw", w), *([("dLdb", w)] if self.bias else [])]
        return [("dLdy", x, 0)], [("dLdb", w)]

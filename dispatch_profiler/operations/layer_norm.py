"""Layer normalization of rows: `y = (x - mean) * rstd * weight + bias`, which also returns mean and rstd.

`mean = sum(x) / N`, `rstd = 1 / sqrt(sum((x - mean)**2) / N + eps)` over the N elements of a row, as torch's
`native_layer_norm` defines them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError, RangeError
from dispatch_profiler.operations._base import (
    ContractFunction,
    Distribution,
    Loop,
    Operation,
    Reference,
    Tensor,
    check_positive,
)
from dispatch_profiler.operations.element_types import ElementType, element_type
from dispatch_profiler.operations.options import ShapeOption, SweepOptions
from dispatch_profiler.operations.rounding import accumulation_factor

TYPES = ("f32", "f16", "bf16", "f64")
#: Rows and row lengths of BERT-base, GPT-2 and a vision transformer.
LAYER_NORM_PROBLEMS = ((128, 768), (512, 1024), (1576, 384))
#: Relative error of the compiler's approximation of a reciprocal square root, in unit roundoffs.
_RSQRT_ROUNDOFFS = 8.0


def _types(text: str) -> tuple[str, ...]:
    return tuple(element_type(part.strip()).name for part in text.split(","))


def _epsilons(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise RangeError(f"malformed number in {text!r}", hint="write 1e-5, or a comma list") from error


def _booleans(text: str) -> tuple[bool, ...]:
    known = {"true": True, "false": False}
    parts = [part.strip().lower() for part in text.split(",")]
    if not all(part in known for part in parts):
        raise RangeError(f"expected true or false, but got {text!r}")
    return tuple(known[part] for part in parts)


_SHAPE_OPTIONS = (
    ShapeOption("norm_rows", ("--norm-rows",), "number of rows; each is normalized separately"),
    ShapeOption("norm_size", ("--norm-size",), "elements per row"),
    ShapeOption("norm_type", ("--norm-type",), f"element type: {', '.join(TYPES)}", _types, "TYPE,..."),
    ShapeOption("norm_eps", ("--norm-eps",), "value added to the variance", _epsilons, "EPS,..."),
    ShapeOption("norm_affine", ("--norm-affine",), "apply weight and bias", _booleans, "true|false"),
)


@dataclass(frozen=True)
class LayerNorm(Operation):
    """`rows` rows of `size` elements, with sums in f32 (f64 for f64).

    x, y: (rows, size) of `type`; weight, bias: (size,) of `type` if `affine`; mean, rstd: (rows,) in the
    accumulator type.
    """

    kind: ClassVar[str] = "layer_norm"
    label: ClassVar[str] = "OperationKind.LayerNorm"
    parallel_axes: ClassVar[tuple[str, ...]] = ("row",)
    reduction_axes: ClassVar[tuple[str, ...]] = ("column",)
    # The division by N and the square root are inexact on integers.
    distributions: ClassVar[tuple[Distribution, ...]] = (Distribution.REALS,)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = _SHAPE_OPTIONS
    type_options: ClassVar[tuple[str, ...]] = ()

    rows: int
    size: int
    type: str = "f32"
    eps: float = 1e-5
    affine: bool = True

    def __post_init__(self) -> None:
        check_positive(self.kind, rows=self.rows, size=self.size)
        if element_type(self.type).name not in TYPES:
            raise OperationError(
                f"layer_norm: no element type {self.type}", hint=f"available: {', '.join(TYPES)}"
            )
        object.__setattr__(self, "type", element_type(self.type).name)
        if type(self.eps) is not float or not 0.0 < self.eps < math.inf:
            raise OperationError(f"layer_norm: eps must be a number above 0, but got {self.eps!r}")
        if type(self.affine) is not bool:
            raise OperationError(f"layer_norm: affine must be true or false, but got {self.affine!r}")

    @property
    def name(self) -> str:
        """`layer_norm_128x768_f32t_eps1em05[_plain]`; m stands for a minus sign, which MLIR symbols cannot contain."""
        eps = repr(self.eps).replace("-", "m").replace("+", "").replace(".", "p")
        return f"layer_norm_{self.rows}x{self.size}_{self.type}t_eps{eps}" + ("" if self.affine else "_plain")

    @property
    def operands(self) -> tuple[Tensor, ...]:
        x = Tensor("x", (self.rows, self.size), self.element_type)
        affine = (Tensor(name, (self.size,), self.element_type) for name in ("weight", "bias"))
        return (x, *affine) if self.affine else (x,)

    @property
    def results(self) -> tuple[Tensor, ...]:
        y = Tensor("y", (self.rows, self.size), self.element_type)
        return (y, *(Tensor(name, (self.rows,), self.accumulator) for name in ("mean", "rstd")))

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("row", self.rows, "parallel"), Loop("column", self.size, "reduction"))

    @property
    def element_type(self) -> ElementType:
        return element_type(self.type)

    @property
    def accumulator(self) -> ElementType:
        return self.element_type.accumulator

    @property
    def flops(self) -> int:
        """Per element: 1 for the mean, 3 for the variance, 2 to normalize, 2 for weight and bias; per row: 5."""
        return self.rows * (self.size * (8 if self.affine else 6) + 5)

    def arguments(self) -> dict[str, str]:
        return {
            "norm-rows": str(self.rows),
            "norm-size": str(self.size),
            "norm-type": self.type,
            "norm-eps": repr(self.eps),
            "norm-affine": "true" if self.affine else "false",
        }

    @classmethod
    def smallest(cls) -> LayerNorm:
        return cls(1, 1)

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], LayerNorm]]:
        given = options.shapes
        has_shape = "norm_rows" in given or "norm_size" in given
        shapes = itertools.product(given.get("norm_rows", (128,)), given.get("norm_size", (768,)))
        for (rows, size), type_, eps, affine in itertools.product(
            list(shapes) if has_shape else LAYER_NORM_PROBLEMS,
            given.get("norm_type", ("f16", "f32")),
            given.get("norm_eps", (1e-5,)),
            given.get("norm_affine", (True,)),
        ):
            yield partial(cls, rows, size, type_, eps, affine)

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        values = rng.uniform(-1.0, 1.0, operand.shape)
        if operand.name == "x":
            # Each row has its own mean and deviation, so that a kernel cannot mix up rows unnoticed.
            values = values * rng.uniform(0.5, 2.0, (self.rows, 1)) + rng.uniform(-1.0, 1.0, (self.rows, 1))
        return values.astype(operand.type.dtype)

    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
    ) -> tuple[Reference, ...]:
        """In float64, with first-order error bounds for the two-pass algorithm.

        With u the unit roundoff and g the bound for a sum of N terms: |dmean| <= (g + u) sum|x| / N + u |mean|;
        a centred element has error c = |dmean| + u |x - mean|; |dvar| <= sum(2 |x - mean| c + c**2) / N + (g + 2u)
        var; the error of rstd comes from its argument and its approximation, that of y from the product rule.
        """
        x, *affine = (array.astype(np.float64) for array in operands)
        weight, bias = affine if self.affine else (np.ones(self.size), np.zeros(self.size))
        u, sums = self.accumulator.unit_roundoff, accumulation_factor(self.size, self.accumulator)
        if self.accumulator.name == "f64":
            u, sums = 2.0 * u, 2.0 * sums  # the float64 reference has the same error as the kernel
        mean = x.mean(axis=1, keepdims=True)
        mean_error = (sums + u) * np.abs(x).mean(axis=1, keepdims=True) + u * np.abs(mean)
        centred = x - mean
        centred_error = mean_error + u * np.abs(centred)
        variance = (centred**2).mean(axis=1, keepdims=True)
        moved = (2.0 * np.abs(centred) * centred_error + centred_error**2).mean(axis=1, keepdims=True)
        variance_error = moved + (sums + 2.0 * u) * variance + u * (variance + self.eps)
        rstd, rstd_error = self._rstd(variance, variance_error, u)
        normalized = centred * rstd
        y = normalized * weight + bias
        scaled = np.abs(weight) * (centred_error * (rstd + rstd_error) + np.abs(centred) * rstd_error)
        y_error = scaled + u * (3.0 * np.abs(normalized * weight) + np.abs(y))
        return (
            Reference(y, self._stored(y, y_error, self.element_type)),
            Reference(mean[:, 0], self._stored(mean[:, 0], mean_error[:, 0], self.accumulator)),
            Reference(rstd[:, 0], self._stored(rstd[:, 0], rstd_error[:, 0], self.accumulator)),
        )

    def _rstd(
        self, variance: np.ndarray, variance_error: np.ndarray, u: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """The reciprocal square root and its error bound, which is not first-order in `variance_error`."""
        shifted = variance + self.eps
        rstd = 1.0 / np.sqrt(shifted)
        # A kernel's variance is a sum of squares, so its argument never falls below eps.
        largest = 1.0 / np.sqrt(np.maximum(shifted - variance_error, self.eps * (1.0 - u)))
        smallest = 1.0 / np.sqrt(shifted + variance_error)
        return rstd, np.maximum(largest - rstd, rstd - smallest) + _RSQRT_ROUNDOFFS * u * largest

    def _stored(self, value: np.ndarray, error: np.ndarray, type_: ElementType) -> np.ndarray:
        """`error` plus the errors of rounding to `type_` and of flushing subnormal values to zero."""
        if type_ != self.accumulator:
            error = error + type_.unit_roundoff * (np.abs(value) + error)
            error = error + float(type_.finfo().smallest_subnormal)
        return error + float(self.accumulator.finfo().tiny)

"""A matrix product with a weight of 4-bit numbers, which has a scale and a zero for each group of terms.

    C[m, n] = sum_k A[m, k] * ((number[n, k] - 8) * scale[k / group, n] + zero[k / group, n]),  0 <= number <= 15

This is how torch stores such a weight for CPUs with AVX-512 (`torch.ops.aten._convert_weight_to_int4pack_for_cpu`): in panels
of 64 columns, with 32 bytes for each term. The lower halves of the bytes are the first 32 columns, the upper halves the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import (
    ContractFunction,
    Distribution,
    ErrorBound,
    Loop,
    Reference,
    Tensor,
)
from dispatch_profiler.operations.element_types import element_type
from dispatch_profiler.operations.geometry import Int4Geometry
from dispatch_profiler.operations.options import ShapeOption
from dispatch_profiler.operations.reductions import TypedOperation, type_option
from dispatch_profiler.operations.rounding import accumulation_factor, are_alike, rounded_to

#: Columns of a panel, and what is added to numbers from -8 to 7.
PANEL, MIDDLE = 64, 8
TYPES = ("f32", "bf16", "f16")
#: Rounded operations on a product besides the additions: of a weight, its scale and its zero.
_ROUNDINGS = 3
#: The largest magnitude of drawn integers.
_LARGEST_INTEGER = 7
#: Rows, columns, terms and terms of a group: layers of Llama with one token, and with a few.
_PROBLEMS = ((1, 2048, 2048, 32), (1, 8192, 2048, 128), (1, 2048, 8192, 128), (16, 2048, 2048, 32))


@dataclass(frozen=True)
class GroupedIntegers(ErrorBound):
    """A kernel that multiplies whole numbers, in units that the terms of a group share, and adds the products exactly.

    `longest` sums of groups are added one after another; an element has an error of at most `relative` times the largest
    magnitude of its group.
    """

    longest: int
    relative: float

    def longest_chain(self, operation: object) -> int:
        return self.longest


@dataclass(frozen=True)
class Int4Matmul(TypedOperation):
    """`m` rows and `n` columns, sums of `k` terms, of which `group` have the same scale and zero.

    lhs (m, k) of `type`, rhs (n / 64, k, 32) of bytes, scales (k / group, n, 2) of `type`: scale and zero -> result (m, n) of
    `type`. Raises OperationError unless `n` is a multiple of 64, and `k` of `group`.
    """

    kind: ClassVar[str] = "int4_matmul"
    prefix: ClassVar[str] = "int4"
    problems: ClassVar[tuple[tuple[int, ...], ...]] = _PROBLEMS
    default_extents: ClassVar[Mapping[str, int]] = {"m": 1, "n": 2048, "k": 2048, "group": 32}
    parallel_axes: ClassVar[tuple[str, ...]] = ("m", "n")
    reduction_axes: ClassVar[tuple[str, ...]] = ("k",)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (
        ShapeOption("int4_m", ("--int4-m",), "rows of the result"),
        ShapeOption("int4_n", ("--int4-n",), f"columns of the result, multiples of {PANEL}"),
        ShapeOption("int4_k", ("--int4-k",), "terms of a sum"),
        ShapeOption("int4_group", ("--int4-group",), "terms that share a scale and a zero"),
        type_option("int4", TYPES),
    )

    m: int
    n: int
    k: int
    group: int
    type: str = "f32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.type not in TYPES:
            raise OperationError(
                f"{self.kind}: no element type {self.type}", hint=f"available: {', '.join(TYPES)}"
            )
        for what, extent, divisor in (("columns", self.n, PANEL), ("terms", self.k, self.group)):
            if extent % divisor:
                raise OperationError(f"{self.kind}: {extent} {what} are not a multiple of {divisor}")

    @classmethod
    def smallest(cls) -> Int4Matmul:
        return cls(1, PANEL, 32, 32)

    @property
    def name(self) -> str:
        """`int4_matmul_1x2048x8192_g32_f32t`"""
        return f"int4_matmul_{self.m}x{self.n}x{self.k}_g{self.group}_{self.type}t"

    @property
    def int4_product(self) -> Int4Geometry:
        return Int4Geometry(self.m, self.n, self.k, self.group, PANEL, MIDDLE)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        product = self.int4_product
        return (
            Tensor("lhs", (self.m, self.k), self.element_type),
            Tensor("rhs", (product.panels, self.k, PANEL // 2), element_type("i8")),
            Tensor("scales", (product.groups, self.n, 2), self.element_type),
        )

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (Tensor("result", (self.m, self.n), self.element_type),)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("m", self.m, "parallel"), Loop("n", self.n, "parallel"), Loop("k", self.k, "reduction"))

    @property
    def rounds_between_steps(self) -> bool:
        return True  # libraries may round weights to the type

    @property
    def flops(self) -> int:
        """2 for each product. Scales are counted once for each group."""
        product = self.int4_product
        return 2 * self.m * self.n * (self.k + 2 * product.groups)

    # -- values -------------------------------------------------------------------------------

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """All bytes occur. Sums are near 1, integers small, and OFFSET: products of each column are almost equal."""
        if operand.name == "rhs":
            if distribution is Distribution.OFFSET:
                return np.zeros(operand.shape, np.int8)  # each number is -8
            return rng.integers(-128, 127, operand.shape, np.int8, endpoint=True)
        if distribution is Distribution.INTEGERS:
            largest = _LARGEST_INTEGER if operand.name == "lhs" else 1
            return rng.integers(-largest, largest, operand.shape, endpoint=True).astype(operand.type.dtype)
        if distribution is Distribution.OFFSET:
            values = 1.0 + rng.uniform(-1.0, 1.0, operand.shape) / 4096.0
            return (values if operand.name == "lhs" else values / self.k).astype(operand.type.dtype)
        values = rng.uniform(-1.0, 1.0, operand.shape)
        if operand.name == "scales":
            values *= math.sqrt(3.0 / self.k) / MIDDLE
            values[..., 1] *= MIDDLE
        return values.astype(operand.type.dtype)

    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """In float64; exact for integers whose partial sums are.

        A kernel adds products of weights, or it adds products of numbers from 0 to 15, multiplies the sum by the scale, and adds
        the sum of the elements multiplied by zero - 8 scale. With `GroupedIntegers`, elements have errors, too. Otherwise, each product has the error of at most 3 roundings
        besides those of the additions, relative to |x| (number |scale| + 8 |scale| + |zero|). `stepwise`: a library rounds
        weights to the type.
        """
        lhs, rhs, scales = operands
        x, numbers = lhs.astype(np.float64), unpacked(rhs)
        scale, zero = (np.repeat(scales[..., at].astype(np.float64), self.group, axis=0) for at in (0, 1))
        value = x @ (numbers * scale + zero)
        magnitudes = np.abs(x) @ ((numbers + 2 * MIDDLE) * np.abs(scale) + np.abs(zero))
        largest = float(np.abs(x).max()) * (
            3.0 * MIDDLE * float(np.abs(scale).max()) + float(np.abs(zero).max())
        )
        if not stepwise and self.sums_exactly([x, scale, zero], self.k, largest):
            return (Reference(rounded_to(value, self.element_type), None),)
        terms = self.k if error_bound is None else error_bound.longest_chain(self)
        factor = accumulation_factor(
            terms + _ROUNDINGS, self.accumulator, are_alike=are_alike(lhs, scales[..., 0])
        )
        if stepwise:
            factor += 2.0 * self.element_type.unit_roundoff
        error = 1.01 * factor * magnitudes
        if isinstance(error_bound, GroupedIntegers):
            groups = np.abs(x).reshape(self.m, -1, self.group).max(-1, keepdims=True)
            largest_of_groups = np.broadcast_to(groups, (self.m, groups.shape[1], self.group)).reshape(
                x.shape
            )
            error += error_bound.relative * (largest_of_groups @ ((numbers + MIDDLE) * np.abs(scale)))
        return (Reference(value, self.stored(value, error, self.element_type)),)


def unpacked(rhs: np.ndarray) -> np.ndarray:
    """The numbers of a weight in panels, minus 8: (terms, columns) of float64."""
    stored = rhs.astype(np.int8).view(np.uint8)
    panels = np.concatenate([stored & 15, stored >> 4], axis=-1).astype(np.float64) - MIDDLE
    return panels.transpose(1, 0, 2).reshape(rhs.shape[1], -1)


def packed(numbers: np.ndarray) -> np.ndarray:
    """The inverse of `unpacked`: numbers from -8 to 7 (terms, columns) -> panels of bytes."""
    terms, columns = numbers.shape
    panels = (numbers + MIDDLE).astype(np.uint8).reshape(terms, columns // PANEL, PANEL).transpose(1, 0, 2)
    return np.ascontiguousarray(panels[..., : PANEL // 2] | panels[..., PANEL // 2 :] << 4).view(np.int8)

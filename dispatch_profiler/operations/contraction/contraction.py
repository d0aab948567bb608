"""Contractions: a product of two operands, summed over some axes, then an epilogue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import (
    ContractFunction,
    Contraction,
    Distribution,
    ErrorBound,
    Operation,
    Reference,
    Tensor,
)
from dispatch_profiler.operations.contraction import reference as contraction_reference
from dispatch_profiler.operations.element_types import ElementType, ElementTypes, element_type
from dispatch_profiler.operations.epilogue_steps import OperandSpan
from dispatch_profiler.operations.epilogues import LARGEST_FACTOR, Epilogue
from dispatch_profiler.operations.rounding import rounded_term

#: Larger integers would not make the test stronger.
_LARGEST_INTEGER = 7


class SumOfProducts(Contraction):
    """How contractions are named, drawn, verified and written as plain data."""

    type_options: ClassVar[tuple[str, ...]] = ("lhs", "rhs", "result", "layout", "epilogue")

    # -- the contract of operations -----------------------------------------------------------

    @property
    def element_type(self) -> ElementType:
        return self.types.input

    @property
    def accumulator(self) -> ElementType:
        return self.types.accumulator

    @property
    def name(self) -> str:
        types = (self.types.lhs, self.types.rhs, self.types.result)
        tags = "_".join(f"{type_}{layout}" for type_, layout in zip(types, self.layouts, strict=True))
        tail = "" if self.epilogue.is_empty else "_" + self.epilogue.suffix
        return f"{self.kind}_{self.problem}_{tags}{self.name_suffix}{tail}"

    @property
    def name_suffix(self) -> str:
        """Suffix of the name after the types, such as a convolution's stride."""
        return ""

    def arguments(self) -> dict[str, str]:
        types = (self.types.lhs, self.types.rhs, self.types.result)
        tagged = zip(("lhs", "rhs", "result"), types, self.layouts, strict=True)
        epilogue = {} if self.epilogue.is_empty else {"epilogue": str(self.epilogue)}
        return {
            **self.shape_arguments(),
            **{name: type_ + layout for name, type_, layout in tagged},
            **epilogue,
        }

    @property
    def rounds_between_steps(self) -> bool:
        """Whether storing values in the result's type between the steps of the epilogue changes the result."""
        return not self.epilogue.selects and self.types.output != self.types.accumulator

    @property
    def avoids_subnormals(self) -> bool:
        """See `Operation.avoids_subnormals`: f8 results of steps that are exact on integers."""
        return self.types.output.is_f8 and self.epilogue.is_exact

    @property
    def reference_requirements(self) -> tuple[str, ...]:
        return self.epilogue.requirements

    @property
    def flops(self) -> int:
        """2 per multiply-add; the steps of the epilogue count as in `epilogue_steps`."""
        contraction = 2 * math.prod(loop.extent for loop in self.loops)
        return contraction + self.epilogue.flops * self.result.elements

    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """See `Operation.reference`; `error_bound` applies to sums that are not plain sums of products."""
        only = contraction_reference.reference(
            self, operands, stepwise=stepwise, contract=contract, error_bound=error_bound
        )
        return (only,)

    # -- operands -----------------------------------------------------------------------------

    @property
    def distributions(self) -> tuple[Distribution, ...]:  # type: ignore[override]
        """Without OFFSET for integers, whose sums are exact, and for 8-bit types, which hold no numbers near 1."""
        every = tuple(Distribution)
        return every if min(self._bits) > 8 else every[:-1]

    @property
    def _bits(self) -> tuple[int, int]:
        return element_type(self.types.lhs).bits, element_type(self.types.rhs).bits

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        if distribution is Distribution.INTEGERS:
            return self._draw_integers(operand, rng)
        if distribution is Distribution.OFFSET and operand.name in ("lhs", "rhs"):
            # Products that are almost equal, whose sums are about 1.
            noise = rng.uniform(-1.0, 1.0, operand.shape)
            size = math.sqrt(rounded_term(2.0 / self.accumulations))
            return (size * (1.0 + noise / 4096.0)).astype(operand.type.dtype)
        if self.avoids_subnormals:
            return self._draw_odd_eighths(operand, rng)
        if operand.type.is_integer:
            # Any value of the type: integer arithmetic is exact.
            info = np.iinfo(np.int8)
            return rng.integers(info.min, info.max, operand.shape, operand.type.dtype, endpoint=True)
        values = rng.uniform(-1.0, 1.0, operand.shape)
        if operand.name == self._scaled_operand:
            values *= self._scale_of_reals
        return values.astype(operand.type.dtype)

    @property
    def _scaled_operand(self) -> str:
        """The operand that is drawn smaller, the more terms a sum has: rhs, or the only one that can represent small factors."""
        lhs, rhs = self._bits
        if self._multiplies_integers:
            return next(iter(self.epilogue.factors), "")
        is_of_integers = element_type(self.types.rhs).is_integer
        return "lhs" if is_of_integers or (lhs > rhs == 8) else "rhs"

    @property
    def _multiplies_integers(self) -> bool:
        return all(element_type(each).is_integer for each in (self.types.lhs, self.types.rhs))

    @property
    def _scale_of_reals(self) -> float:
        terms, largest_factor = self.accumulations, 1.0
        for each in (self.types.lhs, self.types.rhs):
            largest_factor *= 128.0 if element_type(each).is_integer else 1.0
        if max(self._bits) > 8 or self._multiplies_integers:
            # Keep sums near 1, where activations are nonlinear; f8 cannot represent small factors.
            return math.sqrt(3.0 / terms) / largest_factor
        # A sum of K products has a standard deviation of sqrt(K) / 3: keep eight of them in range.
        largest = float(self.types.output.finfo().max) / 8.0 / largest_factor
        return min(1.0, 3.0 * largest / math.sqrt(terms))

    def _draw_odd_eighths(self, operand: Tensor, rng: np.random.Generator) -> np.ndarray:
        """Reals whose sums of products, and their epilogue, are multiples of 1/64 in any order."""
        if operand.name in self.epilogue.factors:
            return _draw_factors(operand, rng)
        if operand.type.is_integer:
            values = rng.integers(-1, 1, operand.shape, np.int32, endpoint=True)
        else:
            values = (2 * rng.integers(-4, 4, operand.shape, np.int32) + 1) / 8.0
        # A sum of K products has a standard deviation of sqrt(K) / 3: keep eight of them in range.
        room = float(self.types.output.finfo().max) / 8.0 / LARGEST_FACTOR ** len(self.epilogue.factors)
        density = (3.0 * room) ** 2 / self.accumulations
        if operand.name == "rhs" and density < 1.0:
            values *= rng.random(operand.shape, np.float32) < density
        return values.astype(operand.type.dtype)

    def _draw_integers(self, operand: Tensor, rng: np.random.Generator) -> np.ndarray:
        if operand.name in self.epilogue.factors:
            return _draw_factors(operand, rng)
        amplitude, density = self.integer_range()
        values = rng.integers(-amplitude, amplitude, operand.shape, np.int32, endpoint=True)
        if density < 1.0 and operand.name in ("lhs", "rhs"):
            values *= rng.random(operand.shape, np.float32) < density
        return values.astype(operand.type.dtype)

    def integer_range(self) -> tuple[int, float]:
        """(amplitude, density): the largest magnitude, and the fraction of nonzero entries.

        `accumulations * amplitude**2`, with the epilogue, stays below the largest value that the accumulator
        holds exactly and that the result can hold. If amplitude 1 exceeds it, `density` keeps sums far below it.
        """
        types = self.types
        room = float(types.accumulator.exact_integers)
        if not types.output.is_integer:
            room = min(room, float(types.output.finfo().max))
        room = self.epilogue.room_for_sums(room, _LARGEST_INTEGER)
        largest = min(_LARGEST_INTEGER, types.input.exact_integers)
        amplitude = min(largest, math.isqrt(max(0, int(room / self.accumulations))))
        if amplitude >= 1:
            return amplitude, 1.0
        # A sum has about K * density**2 terms of magnitude 1: an eighth of the room on average.
        return 1, math.sqrt(room / 8.0 / self.accumulations)

    def _epilogue_operands(self, channels: int) -> tuple[Tensor, ...]:
        """Operands of the epilogue's steps, in order and of the result's type."""
        shape = self.result.shape
        shapes = {
            OperandSpan.CHANNELS: (channels,),
            OperandSpan.ROWS: (*shape[:-1], 1),
            OperandSpan.ELEMENTS: shape,
        }
        return tuple(
            Tensor(each.name, shapes[each.spans], self.types.output) for each in self.epilogue.operands
        )

    def _check_epilogue(self) -> None:
        _check_epilogue(self.types, self.epilogue)

    # -- plain data ---------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Operation:
        types, epilogue = ElementTypes(*values["types"]), Epilogue.parse(values["epilogue"])
        return super().from_dict({**values, "types": types, "epilogue": epilogue})


@lru_cache(maxsize=1000)
def _check_epilogue(types: ElementTypes, epilogue: Epilogue) -> None:
    """Raise OperationError if the types cannot represent the epilogue's values."""
    if types.output.is_integer:
        if not all(step.is_on_integers for step in epilogue.steps):
            raise OperationError(
                f"epilogue {epilogue} needs a floating-point result, but got {types.result}",
                hint="integer results support bias, channel_scale, row_scale, scale_shift, residual, scale, relu, relu6 and clamp with whole "
                "numbers, such as bias+relu",
            )
        return
    # 16-bit inputs may be summed in their own type.
    held = element_type(types.narrow_sums) if types.narrow_sums else types.accumulator
    limit = float(held.finfo().max)
    for step in epilogue.steps:
        if any(abs(value) > limit for value in step.parameters):
            raise OperationError(
                f"{step} has a number beyond {limit:g}, the largest value of {held.name}",
                hint="use a smaller number",
            )


def _draw_factors(operand: Tensor, rng: np.random.Generator) -> np.ndarray:
    """Integers of magnitudes 1 and LARGEST_FACTOR, never 0, which would hide the other factor."""
    magnitudes = rng.integers(1, LARGEST_FACTOR, operand.shape, np.int32, endpoint=True)
    signs = 1 - 2 * rng.integers(0, 2, operand.shape, np.int32)
    return (magnitudes * signs).astype(operand.type.dtype)

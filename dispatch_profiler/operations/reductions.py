"""The base classes of operations with one element type, and of those that sum: types, roundings, and when sums are exact."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import (
    IN_ACCUMULATOR,
    ContractFunction,
    ErrorBound,
    Loop,
    Operation,
    Reference,
    Tensor,
    check_positive,
)
from dispatch_profiler.operations.element_types import ElementType, element_type
from dispatch_profiler.operations.geometry import RowSums
from dispatch_profiler.operations.options import ShapeOption, SweepOptions
from dispatch_profiler.operations.rounding import accumulation_factor, are_alike, rounded_term

TYPES = ("f32", "f16", "bf16", "f64")
#: Default types of a sweep.
DEFAULT_SUM_TYPES = ("f16", "f32")
#: The largest sum of numbers that are almost equal.
_LARGEST_SUM = 1000.0


def _types(text: str) -> tuple[str, ...]:
    return tuple(element_type(part.strip()).name for part in text.split(","))


def type_option(prefix: str, types: Sequence[str] = TYPES) -> ShapeOption:
    """The option `--<prefix>-type` of a kind, which has these element types."""
    return ShapeOption(
        f"{prefix.replace('-', '_')}_type",
        (f"--{prefix}-type",),
        f"element type: {', '.join(types)}",
        _types,
        "TYPE,...",
    )


def same_terms(noise: np.ndarray, terms: int) -> np.ndarray:
    """Numbers that are almost equal, whose sums of `terms` every type holds; `noise` lies in (-1, 1)."""
    return rounded_term(min(1.0, _LARGEST_SUM / terms)) * (1.0 + noise / 4096.0)


class TypedOperation(Operation):
    """Operands and results of `type`, one of `TYPES`.

    The first fields of a subclass are its extents, then `type`, then what `swept` names.
    """

    type_options: ClassVar[tuple[str, ...]] = ()
    #: The first word of its options: `norm` for `--norm-rows`.
    prefix: ClassVar[str]
    #: Extents of the problems of a sweep without shapes.
    problems: ClassVar[tuple[tuple[int, ...], ...]]
    #: Extent -> its value if only other extents are given.
    default_extents: ClassVar[Mapping[str, int]]
    #: Options of the fields after `type` -> their values if they are not given.
    swept: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    type: str

    def __post_init__(self) -> None:
        """Raise OperationError for invalid extents and types; replace an alias of a type by its name."""
        check_positive(self.kind, **{name: getattr(self, name) for name in self.default_extents})
        name = element_type(self.type).name
        if name not in TYPES:
            raise OperationError(
                f"{self.kind}: no element type {self.type}", hint=f"available: {', '.join(TYPES)}"
            )
        object.__setattr__(self, "type", name)

    @classmethod
    def smallest(cls) -> TypedOperation:
        return cls(1, 1)  # type: ignore[call-arg]

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], TypedOperation]]:
        given = options.shapes
        extents = {f"{cls.prefix}_{name}": (extent,) for name, extent in cls.default_extents.items()}
        axes = [given.get(name, values) for name, values in extents.items()]
        shapes = list(itertools.product(*axes)) if extents.keys() & given.keys() else cls.problems
        more = (given.get(name, values) for name, values in cls.swept.items())
        types = given.get(f"{cls.prefix}_type", DEFAULT_SUM_TYPES)
        for shape, *others in itertools.product(shapes, types, *more):
            yield partial(cls, *shape, *others)

    def arguments(self) -> dict[str, str]:
        extents = {f"{self.prefix}-{name}": str(getattr(self, name)) for name in self.default_extents}
        return {**extents, f"{self.prefix}-type": self.type}

    @property
    def element_type(self) -> ElementType:
        return element_type(self.type)

    @property
    def accumulator(self) -> ElementType:
        return self.element_type.accumulator

    def stored(self, value: np.ndarray, error: np.ndarray, type_: ElementType) -> np.ndarray:
        """`error` plus the errors of rounding to `type_` and of flushing subnormal values to zero."""
        if type_ != self.accumulator:
            error = error + type_.unit_roundoff * (np.abs(value) + error)
            error = error + float(type_.finfo().smallest_subnormal)
        return error + float(self.accumulator.finfo().tiny)

    def sums_exactly(self, operands: Sequence[np.ndarray], terms: int, largest: float) -> bool:
        """Are all operands integers, and all partial sums of `terms` numbers up to `largest` exact?"""
        if not all((np.rint(each) == each).all() for each in operands):
            return False
        return terms * largest <= self.accumulator.exact_integers


class SumOperation(TypedOperation):
    """Sums in `sums_type`."""

    @property
    def rounds_between_steps(self) -> bool:
        return True  # libraries add in the accumulator's type

    @property
    def sums_type(self) -> ElementType:
        """The type in which kernels add terms: f64, so that the order does not matter, even of millions of terms.

        Where a target lacks it, the compiler adds in the accumulator's type (`Target.has_long_sums`).
        """
        return element_type("f64")

    def roundoffs(self, terms: int, type_: ElementType, *factors: np.ndarray) -> tuple[float, float]:
        """Relative error bounds of one operation in the accumulator, and of a sum of `terms` terms in `type_`.

        The terms are products of `factors`. The bound covers the error of a reference, which is summed in float64.
        """
        u, alike = self.accumulator.unit_roundoff, are_alike(*factors)
        own = accumulation_factor(terms, self.sums_type, are_alike=alike)
        sums = accumulation_factor(terms, type_, are_alike=alike) + own
        # A reference in float64 has the same error as a kernel in f64.
        return (2.0 * u, sums) if self.accumulator.name == "f64" else (u, sums)

    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """See `Operation.reference`. Without products, `contract` does not matter."""
        added_in = self.accumulator if stepwise or error_bound == IN_ACCUMULATOR else self.sums_type
        return self.in_float64([array.astype(np.float64) for array in operands], added_in, stepwise=stepwise)

    @abc.abstractmethod
    def in_float64(
        self, operands: Sequence[np.ndarray], added_in: ElementType, *, stepwise: bool
    ) -> tuple[Reference, ...]:
        """The references from operands in float64.

        A library (`stepwise`) or a kernel adds terms in the type `added_in`: see `Operation.reference`.
        """


class RowOperation(SumOperation):
    """Reduces each of `rows` rows of `size` elements, then computes its elements."""

    parallel_axes: ClassVar[tuple[str, ...]] = ("row",)
    reduction_axes: ClassVar[tuple[str, ...]] = ("column",)

    rows: int
    size: int

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("row", self.rows, "parallel"), Loop("column", self.size, "reduction"))

    @property
    def row_sums(self) -> RowSums | None:
        return RowSums(self.rows, self.size)

    def elements(self, name: str) -> Tensor:
        """A tensor with every element: (rows, size) of `type`."""
        return Tensor(name, (self.rows, self.size), self.element_type)

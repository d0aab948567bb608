"""Element types and their properties, one row each."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from dispatch_profiler.errors import OperationError, did_you_mean


@dataclass(frozen=True)
class ElementType:
    """A scalar type, named as in MLIR."""

    name: str
    #: The numpy dtype; `ml_dtypes` provides types that numpy lacks.
    dtype: np.dtype
    bits: int
    is_integer: bool
    #: Significand bits including the implicit one; for integers, bits without the sign.
    precision: int
    #: Accumulator type of products of this type.
    accumulator_name: str

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def accumulator(self) -> ElementType:
        return ELEMENT_TYPES[self.accumulator_name]

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest; 0 for integers."""
        return 0.0 if self.is_integer else 2.0**-self.precision

    @property
    def exact_integers(self) -> int:
        """The largest n such that every integer of magnitude up to n is represented exactly."""
        return 2**self.precision - (1 if self.is_integer else 0)

    def finfo(self) -> ml_dtypes.finfo:
        """Limits of a floating-point type: `max`, `smallest_subnormal`, ..."""
        return ml_dtypes.finfo(self.dtype)  # type: ignore[no-untyped-call]


def _row(name: str, scalar: object, precision: int, accumulator: str, integer: bool = False) -> ElementType:
    dtype = np.dtype(scalar)  # type: ignore[call-overload]
    return ElementType(name, dtype, dtype.itemsize * 8, integer, precision, accumulator)


ELEMENT_TYPES: dict[str, ElementType] = {
    row.name: row
    for row in (
        _row("f64", np.float64, 53, "f64"),
        _row("f32", np.float32, 24, "f32"),
        _row("f16", np.float16, 11, "f32"),
        _row("bf16", ml_dtypes.bfloat16, 8, "f32"),
        _row("f8E4M3FN", ml_dtypes.float8_e4m3fn, 4, "f32"),
        _row("i8", np.int8, 7, "i32", integer=True),
        _row("i32", np.int32, 31, "i32", integer=True),
    )
}

_ALIASES = {"f8": "f8E4M3FN"}


def is_element_type(name: str) -> bool:
    """Whether `name` is an element type or an alias of one."""
    return _ALIASES.get(name, name) in ELEMENT_TYPES


def element_type(name: str) -> ElementType:
    """The element type `name` (`f8` is an alias of `f8E4M3FN`).

    Raises OperationError, which lists the available types.
    """
    known = ELEMENT_TYPES.get(_ALIASES.get(name, name))
    if known is None:
        raise OperationError(f"unknown element type {name!r}", hint=did_you_mean(name, ELEMENT_TYPES))
    return known


@dataclass(frozen=True)
class ElementTypes:
    """Types of the two inputs and the result of a contraction.

    Products are summed in the accumulator of the inputs (f32 for f16, bf16 and f8; i32 for i8) and
    rounded once to `result`, as in BLAS libraries. `sums` selects a narrower accumulator: the type of
    the inputs, if it has 16 bits.
    """

    lhs: str = "f32"
    rhs: str = "f32"
    result: str = "f32"
    sums: str = ""

    def __post_init__(self) -> None:
        for name in ("lhs", "rhs", "result"):
            object.__setattr__(self, name, element_type(getattr(self, name)).name)
        lhs, rhs, result = (element_type(name) for name in (self.lhs, self.rhs, self.result))
        if lhs != rhs:
            raise OperationError(
                f"lhs and rhs must have the same element type, but got lhs={lhs.name}, rhs={rhs.name}",
                hint=f"use --rhs={lhs.name}",
            )
        if lhs.name == "i32":
            raise OperationError("i32 is the result type of i8 inputs, not an input type", hint="use i8")
        if result.is_integer != lhs.is_integer or (lhs.is_integer and result.name != "i32"):
            allowed = "an i32" if lhs.is_integer else "a floating-point"
            raise OperationError(
                f"{lhs.name} inputs need {allowed} result, but got result={result.name}",
                hint=f"use --result={'i32' if lhs.is_integer else lhs.accumulator_name}",
            )
        if self.sums == lhs.accumulator_name:
            object.__setattr__(self, "sums", "")
        if self.sums not in ("", lhs.name) or (self.sums and lhs.bits != 16):
            raise OperationError(
                f"{lhs.name} inputs are summed in {lhs.accumulator_name}, but got sums={self.sums}",
                hint="f16 and bf16 inputs may be summed in their own type",
            )
        if not lhs.is_integer and result.precision > self.accumulator.precision:
            raise OperationError(
                f"{lhs.name} inputs are summed in {self.accumulator.name}, which is narrower than result={result.name}",
                hint=f"use --result={self.accumulator.name}",
            )

    @property
    def input(self) -> ElementType:
        return element_type(self.lhs)

    @property
    def output(self) -> ElementType:
        return element_type(self.result)

    @property
    def accumulator(self) -> ElementType:
        return element_type(self.sums) if self.sums else self.input.accumulator

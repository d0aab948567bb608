"""Element types and their properties, one row each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

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
    #: Another type whose peak throughput limits products of this type; empty for the type's own.
    rate_of: str = ""

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

    @property
    def is_f8(self) -> bool:
        """Whether this is a floating-point type of 8 bits."""
        return self.bits == 8 and not self.is_integer

    def holds(self, other: ElementType) -> bool:
        """Whether every number of `other` is one of this type, so that a conversion changes nothing."""
        return self == other or (self.bits > other.bits and self.precision >= other.precision)

    @property
    def multiplied_as(self) -> str:
        """The name of the type whose peak throughput limits products of this type."""
        return self.rate_of or self.name

    def finfo(self) -> ml_dtypes.finfo:
        """Limits of a floating-point type: `max`, `smallest_subnormal`, ..."""
        return ml_dtypes.finfo(self.dtype)  # type: ignore[no-untyped-call]


def _row(
    name: str, scalar: object, precision: int, accumulator: str, integer: bool = False, rate_of: str = ""
) -> ElementType:
    dtype = np.dtype(scalar)  # type: ignore[call-overload]
    return ElementType(name, dtype, dtype.itemsize * 8, integer, precision, accumulator, rate_of)


ELEMENT_TYPES: dict[str, ElementType] = {
    row.name: row
    for row in (
        _row("f64", np.float64, 53, "f64"),
        _row("f32", np.float32, 24, "f32"),
        _row("f16", np.float16, 11, "f32"),
        _row("bf16", ml_dtypes.bfloat16, 8, "f32"),
        _row("f8E4M3FN", ml_dtypes.float8_e4m3fn, 4, "f32"),
        _row("f8E5M2", ml_dtypes.float8_e5m2, 3, "f32", rate_of="f8E4M3FN"),
        _row("i8", np.int8, 7, "i32", integer=True),
        _row("i32", np.int32, 31, "i32", integer=True),
    )
}

_ALIASES = {"f8": "f8E4M3FN", "bf8": "f8E5M2"}
#: `i4`, `u4`, `f4E2M1FN`, `f6E3M2FN`.
_BELOW_A_BYTE = re.compile(r"[iu][1-7]|f[46]\w*")


def is_element_type(name: str) -> bool:
    """Whether `name` is an element type or an alias of one."""
    return _ALIASES.get(name, name) in ELEMENT_TYPES


def is_below_a_byte(name: str) -> bool:
    """Whether `name` is a type of less than 8 bits, which no operation has: the compiler stores several in a byte."""
    return _BELOW_A_BYTE.fullmatch(name) is not None


def element_type(name: str) -> ElementType:
    """The element type `name` (`f8` is an alias of `f8E4M3FN`, `bf8` of `f8E5M2`).

    Raises OperationError, which lists the available types.
    """
    known = ELEMENT_TYPES.get(_ALIASES.get(name, name))
    if known is None and is_below_a_byte(name):
        raise OperationError(f"{name}: types of less than 8 bits are not supported", hint="use i8 or f8")
    if known is None:
        raise OperationError(f"unknown element type {name!r}", hint=did_you_mean(name, ELEMENT_TYPES))
    return known


@lru_cache(maxsize=100)
def joint_type(lhs: ElementType, rhs: ElementType) -> ElementType:
    """The type of operands of the types `lhs` and `rhs`: if these differ, one that no other operands have.

    Its name, such as `f16xbf16`, is in no table of kernels and rules for certain types, so that these leave it alone.
    It is as wide as the wider type, and holds only the integers that both hold.
    """
    if lhs == rhs:
        return lhs
    widest = max(lhs, rhs, key=lambda each: each.bits)
    return ElementType(
        name=f"{lhs.name}x{rhs.name}",
        dtype=widest.dtype,
        bits=widest.bits,
        is_integer=False,
        precision=min(lhs.precision, rhs.precision),
        accumulator_name="f64" if "f64" in (lhs.name, rhs.name) else "f32",
        rate_of=_rate_of(lhs, rhs),
    )


@lru_cache(maxsize=10)
def _scaled_integers(type_: ElementType) -> ElementType:
    """The type of operands of the integer type `type_` whose products have a floating-point result.

    Like a `joint_type`, it has a name that is in no table. Kernels may sum in i32, which is exact.
    """
    return replace(
        type_, name=f"{type_.name}x{type_.name}", is_integer=False, accumulator_name="f32", rate_of=type_.name
    )


def _rate_of(lhs: ElementType, rhs: ElementType) -> str:
    """The type whose instructions multiply operands of two types: the wider one, or one that has the numbers of both."""
    if lhs.bits != rhs.bits:
        return max(lhs, rhs, key=lambda each: each.bits).name
    if lhs.bits == 16:
        return "f32"
    return "f16" if lhs.is_integer or rhs.is_integer else lhs.multiplied_as


def natural_result(lhs: str, rhs: str) -> str:
    """The type of a product's result unless another one is asked for: the operands' type, or the wider of both.

    It is the accumulator's type if that has 8 bits, or if two different types are equally wide.
    """
    left, right = element_type(lhs), element_type(rhs)
    widest = max(left, right, key=lambda each: each.bits)
    if widest.bits == 8 or (left != right and left.bits == right.bits):
        return joint_type(left, right).accumulator_name
    return widest.name


@dataclass(frozen=True)
class ElementTypes:
    """Types of the two inputs and the result of a contraction.

    Products are summed in the accumulator of the inputs (f32 for f16, bf16 and f8; i32 for i8) and
    rounded once to `result`, as in BLAS libraries. `sums` selects a narrower accumulator: the type of
    the inputs, if it has 16 bits. Inputs of different types are converted to the accumulator, which is f64 if one of them
    is f64, and f32 otherwise. So are inputs of i8 with a floating-point result.
    """

    lhs: str = "f32"
    rhs: str = "f32"
    result: str = "f32"
    sums: str = ""

    def __post_init__(self) -> None:
        for name in ("lhs", "rhs", "result"):
            object.__setattr__(self, name, element_type(getattr(self, name)).name)
        lhs, rhs, result = (element_type(name) for name in (self.lhs, self.rhs, self.result))
        if "i32" in (lhs.name, rhs.name):
            raise OperationError("i32 is the result type of i8 inputs, not an input type", hint="use i8")
        given, what = self.input, self.inputs
        if result.is_integer != given.is_integer or (given.is_integer and result.name != "i32"):
            allowed = "an i32 or floating-point" if given.is_integer else "a floating-point"
            raise OperationError(
                f"{what} inputs need {allowed} result, but got result={result.name}",
                hint=f"use --result={'i32' if given.is_integer else given.accumulator_name}",
            )
        if self.sums == given.accumulator_name:
            object.__setattr__(self, "sums", "")
        if self.sums not in ("", self.narrow_sums):
            raise OperationError(
                f"{what} inputs are summed in {given.accumulator_name}, but got sums={self.sums}",
                hint="f16 and bf16 inputs may be summed in their own type",
            )
        if not given.is_integer and result.precision > self.accumulator.precision:
            raise OperationError(
                f"{what} inputs are summed in {self.accumulator.name}, which is narrower than result={result.name}",
                hint=f"use --result={self.accumulator.name}",
            )

    @property
    def is_mixed(self) -> bool:
        """Whether inputs are converted before they are multiplied: their types differ, or those of the sums are no integers."""
        return self.input.name not in (self.lhs, self.rhs)

    @property
    def input(self) -> ElementType:
        """The type of the inputs; of different types, their `joint_type`."""
        lhs, rhs = element_type(self.lhs), element_type(self.rhs)
        if lhs == rhs and lhs.is_integer and not self.output.is_integer:
            return _scaled_integers(lhs)
        return joint_type(lhs, rhs)

    @property
    def inputs(self) -> str:
        """The types of the inputs in words: `f16`, or `f16 and f32`."""
        return f"{self.lhs} and {self.rhs}" if self.lhs != self.rhs else self.lhs

    @property
    def narrow_sums(self) -> str:
        """The type other than the accumulator in which the inputs may be summed: their own 16-bit type; empty without one."""
        return "" if self.is_mixed or self.input.bits != 16 else self.lhs

    @property
    def exchanged(self) -> ElementTypes:
        """The types of the transposed product, whose lhs is rhs."""
        return replace(self, lhs=self.rhs, rhs=self.lhs)

    @property
    def output(self) -> ElementType:
        return element_type(self.result)

    @property
    def accumulator(self) -> ElementType:
        return element_type(self.sums) if self.sums else self.input.accumulator

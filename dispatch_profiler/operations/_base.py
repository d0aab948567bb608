"""What every kind of operation is: operands, loops, counts, name, arguments, reference."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations.element_types import ElementType, element_type
from dispatch_profiler.operations.epilogues import Epilogue


@dataclass(frozen=True)
class Tensor:
    """One operand or the result: how it lies in memory, row major in `shape`."""

    role: str
    shape: tuple[int, ...]
    type: ElementType

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.type.bytes

    @property
    def mlir(self) -> str:
        """`tensor<256x128xf16>`"""
        return f"tensor<{'x'.join(map(str, self.shape))}x{self.type.name}>"


@dataclass(frozen=True)
class Loop:
    """One loop of the operation's iteration space, in the order of its linalg form."""

    name: str
    extent: int
    iterator: Literal["parallel", "reduction"]


@dataclass(frozen=True)
class ElementTypes:
    """Types of the two inputs and the result of a contraction.

    Sums are held in the accumulator of the inputs (f32 for f16, bf16 and f8; i32 for i8) and
    rounded once to `result`, as BLAS libraries do it. `sums` names a narrower type for them: that of
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
                f"lhs and rhs must have one element type, but got lhs={lhs.name}, rhs={rhs.name}",
                hint=f"use --rhs={lhs.name}",
            )
        if lhs.name == "i32":
            raise OperationError("i32 is the result type of i8 inputs, not an input type", hint="use i8")
        if result.is_integer != lhs.is_integer or (lhs.is_integer and result.name != "i32"):
            allowed = "i32" if lhs.is_integer else "a floating-point type"
            raise OperationError(
                f"{lhs.name} inputs give {allowed}, but got result={result.name}",
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
                f"{lhs.name} inputs are summed in {self.accumulator.name}, which result={result.name} exceeds",
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


class Operation(abc.ABC):
    """What is computed: kind, problem shape, element types, layouts, epilogue. Nothing about speed.

    Subclasses are frozen dataclasses with the fields `types` and `epilogue` besides their shape.
    Two equal operations are the same kernel.
    """

    kind: ClassVar[str]
    #: As the document's console block prints the kind, e.g. `OperationKind.Matmul`.
    label: ClassVar[str]
    #: Loops that a tile is named for, in the order in which people write tiles.
    parallel_axes: ClassVar[tuple[str, ...]]
    reduction_axes: ClassVar[tuple[str, ...]]

    types: ElementTypes
    epilogue: Epilogue

    # -- what a kind defines ------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def problem(self) -> str:
        """Shapes, as they stand in the name: `256x512x128`."""

    @property
    @abc.abstractmethod
    def layouts(self) -> tuple[str, str, str]:
        """Layout tags of lhs, rhs and result: `("t", "n", "t")`."""

    @property
    @abc.abstractmethod
    def inputs(self) -> tuple[Tensor, ...]:
        """Operands of the contraction, then the bias if there is one."""

    @property
    @abc.abstractmethod
    def result(self) -> Tensor:
        """What is stored."""

    @property
    @abc.abstractmethod
    def loops(self) -> tuple[Loop, ...]:
        """The iteration space, in the order of the linalg form that the template emits."""

    @property
    @abc.abstractmethod
    def bias_axis(self) -> int:
        """The axis of the result along which the bias lies."""

    @abc.abstractmethod
    def shape_arguments(self) -> dict[str, str]:
        """Command-line arguments of the shape; with the types they rebuild the operation."""

    @classmethod
    @abc.abstractmethod
    def smallest(cls, epilogue: Epilogue) -> Operation:
        """A problem of extent 1 with `epilogue`: it has every argument that the kind has."""

    @abc.abstractmethod
    def contract(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """The contraction without its epilogue, in the arithmetic of the given arrays.

        shapes: as `inputs` and `result`; both arrays in float32 or float64, so that BLAS does it.
        """

    # -- what follows from it -----------------------------------------------------------------

    @property
    def name(self) -> str:
        """A label for people: `matmul_256x512x128_f16t_f16t_f16t[_bias_relu]`."""
        tags = "_".join(
            f"{type_}{layout}"
            for type_, layout in zip(
                (self.types.lhs, self.types.rhs, self.types.result), self.layouts, strict=True
            )
        )
        tail = "" if self.epilogue.is_empty else "_" + str(self.epilogue).replace("+", "_")
        return f"{self.kind}_{self.problem}_{tags}{self.name_suffix}{tail}"

    @property
    def name_suffix(self) -> str:
        """What a kind adds to the name after the types (a convolution's stride and so on)."""
        return ""

    def arguments(self) -> dict[str, str]:
        """Command-line arguments that rebuild this operation, without the leading dashes."""
        tagged = zip(
            ("lhs", "rhs", "result"),
            (self.types.lhs, self.types.rhs, self.types.result),
            self.layouts,
            strict=True,
        )
        epilogue = {} if self.epilogue.is_empty else {"epilogue": str(self.epilogue)}
        return {
            **self.shape_arguments(),
            **{role: type_ + layout for role, type_, layout in tagged},
            **epilogue,
        }

    @property
    def rounds_between_steps(self) -> bool:
        """Would it differ if sums were stored in the result's type before the epilogue reads them?"""
        changes = self.epilogue.bias or not self.epilogue.function.is_exact
        return changes and self.types.output != self.types.accumulator

    @property
    def accumulations(self) -> int:
        """Products summed into one element of the result."""
        return math.prod(loop.extent for loop in self.loops if loop.iterator == "reduction")

    @property
    def flops(self) -> int:
        """2 per multiply-add, as the document counts; bias and activation as in `epilogues`."""
        contraction = 2 * math.prod(loop.extent for loop in self.loops)
        per_element = self.epilogue.function.flops + (1 if self.epilogue.bias else 0)
        return contraction + per_element * self.result.elements

    @property
    def bytes(self) -> int:
        """Every operand read once and the result written once."""
        return sum(tensor.bytes for tensor in self.inputs) + self.result.bytes

    def _bias_inputs(self, length: int) -> tuple[Tensor, ...]:
        return (Tensor("bias", (length,), self.types.output),) if self.epilogue.bias else ()

    def broadcast_bias(self, bias: np.ndarray) -> np.ndarray:
        """A view of `bias` (length of `bias_axis`) that broadcasts against the result."""
        shape = [1] * len(self.result.shape)
        shape[self.bias_axis] = -1
        return bias.reshape(shape)

    def _check_epilogue(self) -> None:
        if self.types.output.is_integer and not self.epilogue.function.on_integers:
            raise OperationError(
                f"epilogue {self.epilogue} needs a floating-point result, but got {self.types.result}",
                hint="integer results take none, bias, relu or bias+relu",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the manifest; `operation_from_dict` reads it back."""
        data: dict[str, Any] = {"kind": self.kind}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Epilogue):
                value = str(value)
            elif isinstance(value, ElementTypes):
                value = [value.lhs, value.rhs, value.result, *filter(None, [value.sums])]
            elif isinstance(value, tuple):
                value = list(value)
            data[field.name] = value
        return data


def check_positive(kind: str, **extents: int) -> None:
    """Every extent must be a whole number of at least 1; OperationError names those that are not."""
    check_whole(kind, 1, "every extent", **extents)


def check_whole(kind: str, least: int, what: str, **values: int) -> None:
    """OperationError unless each of `values` is an int (no bool, no 2.0) of at least `least`."""
    # 2.0 and True equal whole numbers, but would be named otherwise.
    bad = {name: value for name, value in values.items() if type(value) is not int or value < least}
    if bad:
        got = ", ".join(f"{name}={value!r}" for name, value in bad.items())
        raise OperationError(f"{kind}: {what} must be at least {least}, but got {got}")

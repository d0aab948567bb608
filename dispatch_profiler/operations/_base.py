"""The base class of operations: named operands -> named results, and how to verify them."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations.element_types import ElementType, ElementTypes
from dispatch_profiler.operations.epilogues import Epilogue

if TYPE_CHECKING:
    from dispatch_profiler.operations.geometry import (
        AttentionGeometry,
        ChannelSum,
        ConvolutionGeometry,
        Int4Geometry,
        NormGeometry,
        ProductGeometry,
        RowSums,
    )
    from dispatch_profiler.operations.options import ShapeOption, SweepOptions


@dataclass(frozen=True)
class Tensor:
    """An operand or result: its name in the MLIR function, row-major shape, and element type."""

    name: str
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
        return f"tensor<{'x'.join(map(str, (*self.shape, self.type.name)))}>"


@dataclass(frozen=True)
class Loop:
    """One loop of an operation's iteration space."""

    name: str
    extent: int
    iterator: Literal["parallel", "reduction"]


#: Default seed for drawing operands.
DEFAULT_SEED = 2026


class Distribution(str, Enum):
    """The distribution that operand values are drawn from."""

    #: Integers small enough that every sum is exact in any order: results must match exactly.
    INTEGERS = "integers"
    #: Real values over the type's useful range: results must lie within a rounding error bound.
    REALS = "reals"
    #: Real values whose mean is far from zero, as many deviations as the type resolves: sums grow with every
    #: term, so that a sum in order loses digits.
    OFFSET = "offset"


@dataclass(frozen=True)
class Reference:
    """The expected values of one result, with an absolute error bound for each element.

    If `tolerance` is None, the result must match exactly, and `expected` has the result's type.
    """

    expected: np.ndarray
    tolerance: np.ndarray | None


class ContractFunction(Protocol):
    """Computes the sums of products of a contraction from its operands, as they are stored."""

    def __call__(
        self,
        operation: Contraction,
        lhs: np.ndarray,
        rhs: np.ndarray,
        dtype: np.dtype,
        *,
        of_magnitudes: bool = False,
    ) -> np.ndarray:
        """The sums, in `dtype` (float32 or float64), at least as accurate as `Contraction.contract` with arrays of `dtype`.

        With `of_magnitudes`, of the products of the operands' magnitudes.
        """


class ErrorBound:
    """A bound on the error of a kernel that computes sums in another way than the operation defines.

    Subclasses are frozen dataclasses of plain values: their `repr` is part of the key of a stored reference.
    """

    def longest_chain(self, operation: Operation) -> int:
        """The most terms that are added one after another."""
        return operation.accumulations


@dataclass(frozen=True)
class InAccumulator(ErrorBound):
    """A kernel that adds the terms of a norm or a channel sum in the accumulator's type, in any order."""


#: The only instance.
IN_ACCUMULATOR = InAccumulator()


class ContractionBound(ErrorBound, abc.ABC):
    """A bound for a kernel that computes sums of products by another algorithm than adding the products."""

    @abc.abstractmethod
    def largest_integer(self, operation: Contraction, lhs: float, rhs: float) -> float:
        """A bound on every intermediate value for integers of magnitudes up to `lhs` and `rhs`.

        In units of the smallest fraction that occurs; infinite if the algorithm rounds even small integers.
        """

    @abc.abstractmethod
    def of_sums(self, operation: Contraction, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """A bound on the error of each sum, in the shape of the operation's result."""


class Operation(abc.ABC):
    """A computation: named operands -> named results. It says nothing about speed.

    Subclasses are frozen dataclasses; two equal operations are the same kernel.
    """

    kind: ClassVar[str]
    #: The family of kinds that other packages treat alike, in modules of this name (see `families`); by default the kind.
    family: ClassVar[str]
    #: The kind in the console block: the name of its class, such as `OperationKind.Matmul`.
    label: ClassVar[str]
    #: Names of the loops that tiles apply to, in the order of the tiles.
    parallel_axes: ClassVar[tuple[str, ...]]
    reduction_axes: ClassVar[tuple[str, ...]]
    #: Distributions for verification; without `INTEGERS` if the arithmetic is inexact on integers.
    distributions: ClassVar[tuple[Distribution, ...]] = tuple(Distribution)
    #: Command-line options for the shape. Kinds that share an option share its object.
    shape_options: ClassVar[tuple[ShapeOption, ...]]
    #: Names of the type, layout and epilogue options that the kind accepts (see `options`).
    type_options: ClassVar[tuple[str, ...]]
    #: The dimension that `with_batch` changes, as shapes call it: `m` of products, `n` of convolutions; empty if none.
    batch_name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.label = f"OperationKind.{cls.__name__}"
        if "kind" in vars(cls) and not hasattr(cls, "family"):
            cls.family = cls.kind

    # -- what a kind defines ------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """A human-readable label: `matmul_256x512x128_f16t_f16t_f16t[_bias_relu]`."""

    @property
    @abc.abstractmethod
    def operands(self) -> tuple[Tensor, ...]:
        """Input tensors, in the order of the MLIR function's arguments."""

    @property
    @abc.abstractmethod
    def results(self) -> tuple[Tensor, ...]:
        """Output tensors, in the order of the MLIR function's results; names differ from the operands'."""

    @property
    @abc.abstractmethod
    def loops(self) -> tuple[Loop, ...]:
        """The iteration space, in the order of the linalg form that the template emits."""

    @property
    @abc.abstractmethod
    def element_type(self) -> ElementType:
        """Element type of the inputs; its peak throughput bounds the operation's speed."""

    @property
    @abc.abstractmethod
    def accumulator(self) -> ElementType:
        """Type of the accumulator."""

    @property
    @abc.abstractmethod
    def flops(self) -> int:
        """Floating-point (or integer) operations per execution."""

    @abc.abstractmethod
    def arguments(self) -> dict[str, str]:
        """Command-line arguments that reproduce this operation, without the leading dashes."""

    @abc.abstractmethod
    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """Random values for one of `operands`, with its shape and type, from one of `distributions`."""

    @abc.abstractmethod
    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """A reference for each of `results`, computed from `operands` (shapes and types as `self.operands`).

        `stepwise` allows for a library that rounds to the result's type after each step and adds in the accumulator's
        type, while a fused kernel rounds once. `contract` replaces numpy for the sums of products of a contraction.
        `error_bound` applies to a kernel with other sums.
        """

    @classmethod
    @abc.abstractmethod
    def sweep(cls, options: SweepOptions) -> Iterable[Callable[[], Operation]]:
        """Factories of the operations in the sweep `options`, or of the predefined problems without shapes.

        A factory raises OperationError for an invalid point.
        """

    @classmethod
    @abc.abstractmethod
    def smallest(cls) -> Operation:
        """A problem whose extents are all 1, for tests and templates."""

    @classmethod
    def is_implied_by(cls, options: SweepOptions) -> bool:
        """Whether the shapes in `options` imply this kind if the user names no kind."""
        return options.has_shape_of(cls.shape_options)

    @classmethod
    def rejection_reason(cls, options: SweepOptions) -> str | None:
        """Why this kind has no operation with the shapes in `options`; None if it may have one."""
        return None

    # -- defaults and derived properties ------------------------------------------------------

    @property
    def contraction(self) -> Contraction | None:
        """The operation as a contraction; None if it is not one."""
        return None

    @property
    def product(self) -> ProductGeometry | None:
        """Extents and layouts of a matrix product; None for other operations."""
        return None

    @property
    def int4_product(self) -> Int4Geometry | None:
        """Extents of a product with a weight of 4-bit numbers; None for other operations."""
        return None

    @property
    def convolution(self) -> ConvolutionGeometry | None:
        """Geometry of a convolution; None for other operations."""
        return None

    @property
    def normalization(self) -> NormGeometry | None:
        """Geometry of a layer norm; None for other operations."""
        return None

    @property
    def attention(self) -> AttentionGeometry | None:
        """Extents and layout of an attention; None for other operations."""
        return None

    @property
    def row_sums(self) -> RowSums | None:
        """The rows of an operation that reduces each of them and then computes its elements; None for others."""
        return None

    @property
    def channel_sum(self) -> ChannelSum | None:
        """Geometry of a sum over all axes but one; None for other operations."""
        return None

    def as_contraction(self) -> Contraction:
        """`contraction`; OperationError if the operation is not one."""
        contraction = self.contraction
        if contraction is None:
            raise OperationError(f"{self.kind} is not a contraction")
        return contraction

    @property
    def without_epilogue(self) -> Operation:
        """The operation whose results are the sums, as they are; itself if it has no epilogue."""
        return self

    @property
    def tuned_as(self) -> Operation:
        """The operation whose entry in a library this one uses; itself, unless it is an operation within a model's program."""
        return self

    @property
    def reads_weight(self) -> bool:
        """Whether the second operand is a matrix or a filter that a kernel may read packed."""
        return False

    def with_batch(self, batch: int) -> Operation | None:
        """The operation with so many rows of a product's left operand and result, or so many images of a convolution.

        They are stored one after another. None for other kinds.
        """
        return None

    @property
    def predefined_splits(self) -> tuple[int, ...]:
        """Default slice counts for split-k."""
        return ()

    @property
    def sums_type(self) -> ElementType | None:
        """The type in which kernels add the terms of long sums; None for the accumulator's type."""
        return None

    @property
    def rounds_between_steps(self) -> bool:
        """Whether `stepwise` changes the references or their bounds."""
        return False

    @property
    def avoids_subnormals(self) -> bool:
        """Are operands drawn so that no result lies between zero and the smallest normal number of its type?"""
        return False

    @property
    def reference_requirements(self) -> tuple[str, ...]:
        """Requirements of the reference besides numpy and ml_dtypes, in pip's syntax."""
        return ()

    @property
    def accumulations(self) -> int:
        """Terms summed into one element of a result."""
        return math.prod(loop.extent for loop in self.loops if loop.iterator == "reduction")

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        """Names of the command-line arguments that operations of this kind may have."""
        return tuple(cls.smallest().arguments())

    @property
    def bytes(self) -> int:
        """Bytes moved if every operand is read once and every result written once."""
        return sum(tensor.bytes for tensor in (*self.operands, *self.results))

    @property
    def kernel_identity(self) -> dict[str, Any]:
        """The operation's part of the keys of its kernels: itself, as plain data."""
        return self.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the manifest; `operation_from_dict` reads it back."""
        data: dict[str, Any] = {"kind": self.kind}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Epilogue):
                value = str(value)
            elif isinstance(value, ElementTypes):
                value = (value.lhs, value.rhs, value.result, *filter(None, [value.sums]))
            data[field.name] = list(value) if isinstance(value, tuple) else value
        return data

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Operation:
        """Inverse of `to_dict`, without its `kind`."""
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


class Contraction(Operation):
    """`result = epilogue(sum lhs * rhs)`: the family of matrix products and convolutions.

    Subclasses have the fields `types` and `epilogue` in addition to their shape.
    """

    types: ElementTypes
    epilogue: Epilogue

    # -- what a kind defines ------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def problem(self) -> str:
        """The shape as written in the name: `256x512x128`."""

    @property
    @abc.abstractmethod
    def layouts(self) -> tuple[str, str, str]:
        """Layout tags of lhs, rhs and result: `("t", "n", "t")`."""

    @property
    @abc.abstractmethod
    def bias_axis(self) -> int:
        """The axis of the result that indexes channels, which have a value each in a bias, a scale and a shift."""

    @abc.abstractmethod
    def shape_arguments(self) -> dict[str, str]:
        """Command-line arguments for the shape; together with arguments for the types, they reproduce the operation."""

    @abc.abstractmethod
    def contract(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """The contraction without its epilogue, in the precision of the arrays.

        The arrays have the shapes of `operands`, the return value has the shape of `result`. Both arrays are
        float32 or float64, so that numpy uses BLAS.
        """

    @property
    def contraction(self) -> Contraction:
        return self

    @property
    def result(self) -> Tensor:
        """The only entry of `results`."""
        (only,) = self.results
        return only

    def broadcast_operand(self, operand: np.ndarray) -> np.ndarray:
        """A view of an operand of the epilogue that broadcasts against the result."""
        if operand.ndim != 1:
            return operand
        shape = [1] * len(self.result.shape)
        shape[self.bias_axis] = -1
        return operand.reshape(shape)

    @property
    def without_epilogue(self) -> Contraction:
        """See `Operation.without_epilogue`."""
        return replace(self, epilogue=Epilogue())  # type: ignore[type-var]

    @property
    def smallest_alike(self) -> Contraction:
        """A problem of extent 1 of the same kind, types and epilogue."""
        smallest = type(self).smallest().as_contraction()
        return replace(smallest, types=self.types, epilogue=self.epilogue)  # type: ignore[type-var]


def number_in_symbol(value: float) -> str:
    """`1em05` for 1e-05: a number as MLIR symbols may contain it, where m is a minus sign and p a point."""
    return repr(value).replace("-", "m").replace("+", "").replace(".", "p")


def check_positive(kind: str, **extents: int) -> None:
    """Raise OperationError, which names the invalid extents, unless each is an int of at least 1."""
    check_whole(kind, 1, "every extent", **extents)


def check_whole(kind: str, minimum: int, what: str, **values: int) -> None:
    """Raise OperationError unless each of `values` is an int (not a bool or a float) of at least `minimum`."""
    # 2.0 and True compare equal to ints, but would give another name.
    bad = {name: value for name, value in values.items() if type(value) is not int or value < minimum}
    if bad:
        got = ", ".join(f"{name}={value!r}" for name, value in bad.items())
        raise OperationError(f"{kind}: {what} must be at least {minimum}, but got {got}")

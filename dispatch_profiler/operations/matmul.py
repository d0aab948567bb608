"""Matrix multiplication, plain and batched: `C[m, n] = sum_k A[m, k] * B[k, n]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import ElementTypes, Loop, Operation, Tensor, check_positive
from dispatch_profiler.operations.epilogues import Epilogue

#: `t` row major (the last index runs fastest), `n` column major (stored transposed).
LAYOUTS = ("t", "n")


def check_layouts(lhs: str, rhs: str, result: str = "t") -> None:
    """OperationError unless each operand's layout is `t` or `n` and the result's is `t`."""
    for role, layout in (("lhs", lhs), ("rhs", rhs)):
        if layout not in LAYOUTS:
            raise OperationError(
                f"unknown layout {layout!r} of {role}", hint="available: t (row major), n (column major)"
            )
    if result != "t":
        raise OperationError(
            f"the result is stored row major ('t'), but got {result!r}",
            hint="a column-major result is the row-major result of the problem with lhs and rhs exchanged",
        )


class _Product(Operation):
    """What both kinds share: layouts of two operands, a bias along n, one reduction."""

    parallel_axes: ClassVar[tuple[str, ...]] = ("m", "n")
    reduction_axes: ClassVar[tuple[str, ...]] = ("k",)

    lhs_layout: str
    rhs_layout: str

    def _check(self, **extents: int) -> None:
        check_positive(self.kind, **extents)
        check_layouts(self.lhs_layout, self.rhs_layout)
        self._check_epilogue()

    @property
    def layouts(self) -> tuple[str, str, str]:
        return self.lhs_layout, self.rhs_layout, "t"

    @property
    def bias_axis(self) -> int:
        return len(self.result.shape) - 1

    def contract(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return _transposed(lhs, self.lhs_layout) @ _transposed(rhs, self.rhs_layout)


@dataclass(frozen=True)
class Matmul(_Product):
    """An M x N x K product; `lhs_layout='n'` means that A is stored as K x M, and so on."""

    kind: ClassVar[str] = "matmul"
    label: ClassVar[str] = "OperationKind.Matmul"

    m: int
    n: int
    k: int
    types: ElementTypes = ElementTypes()
    lhs_layout: str = "t"
    rhs_layout: str = "t"
    epilogue: Epilogue = Epilogue()

    def __post_init__(self) -> None:
        self._check(m=self.m, n=self.n, k=self.k)

    @property
    def problem(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        lhs = (self.m, self.k) if self.lhs_layout == "t" else (self.k, self.m)
        rhs = (self.k, self.n) if self.rhs_layout == "t" else (self.n, self.k)
        return (
            Tensor("lhs", lhs, self.types.input),
            Tensor("rhs", rhs, self.types.input),
            *self._bias_inputs(self.n),
        )

    @property
    def result(self) -> Tensor:
        return Tensor("result", (self.m, self.n), self.types.output)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("m", self.m, "parallel"), Loop("n", self.n, "parallel"), Loop("k", self.k, "reduction"))

    def shape_arguments(self) -> dict[str, str]:
        return {"batch_count": "1", "m": str(self.m), "n": str(self.n), "k": str(self.k)}

    @classmethod
    def smallest(cls, epilogue: Epilogue) -> Matmul:
        return cls(1, 1, 1, epilogue=epilogue)


@dataclass(frozen=True)
class BatchMatmul(_Product):
    """`batch` independent M x N x K products; named B x M x N x K."""

    kind: ClassVar[str] = "batch_matmul"
    label: ClassVar[str] = "OperationKind.BatchMatmul"

    batch: int
    m: int
    n: int
    k: int
    types: ElementTypes = ElementTypes()
    lhs_layout: str = "t"
    rhs_layout: str = "t"
    epilogue: Epilogue = Epilogue()

    def __post_init__(self) -> None:
        self._check(batch=self.batch, m=self.m, n=self.n, k=self.k)

    @property
    def each(self) -> Matmul:
        """The product that is done `batch` times."""
        return Matmul(self.m, self.n, self.k, self.types, self.lhs_layout, self.rhs_layout, self.epilogue)

    @property
    def problem(self) -> str:
        return f"{self.batch}x{self.each.problem}"

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        lhs, rhs, *bias = self.each.inputs
        return (
            Tensor("lhs", (self.batch, *lhs.shape), lhs.type),
            Tensor("rhs", (self.batch, *rhs.shape), rhs.type),
            *bias,
        )

    @property
    def result(self) -> Tensor:
        return Tensor("result", (self.batch, self.m, self.n), self.types.output)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("batch", self.batch, "parallel"), *self.each.loops)

    def shape_arguments(self) -> dict[str, str]:
        return {**self.each.shape_arguments(), "batch_count": str(self.batch)}

    @classmethod
    def smallest(cls, epilogue: Epilogue) -> BatchMatmul:
        return cls(1, 1, 1, 1, epilogue=epilogue)


def _transposed(array: np.ndarray, layout: str) -> np.ndarray:
    return array if layout == "t" else array.swapaxes(-1, -2)

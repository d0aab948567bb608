"""The kernel of blocked products: a matrix product whose rhs is stored in panels of a few columns each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import Loop, Tensor, check_positive
from dispatch_profiler.operations.contraction.contraction import SumOfProducts
from dispatch_profiler.operations.element_types import ElementTypes, element_type
from dispatch_profiler.operations.epilogues import Epilogue
from dispatch_profiler.operations.options import ShapeOption, SweepOptions


@dataclass(frozen=True)
class PanelMatmul(SumOfProducts):
    """`C[m, p, n] = sum_k A[m, k] * B[p, k, n]`, where p counts `panels` of n columns each.

    In memory, C is an m x (panels * n) matrix. Only forms have this operation: it has no command-line options.
    """

    kind: ClassVar[str] = "panel_matmul"
    parallel_axes: ClassVar[tuple[str, ...]] = ("m", "n")
    reduction_axes: ClassVar[tuple[str, ...]] = ("k",)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = ()

    m: int
    panels: int
    n: int
    k: int
    types: ElementTypes = ElementTypes()
    epilogue: Epilogue = Epilogue()

    def __post_init__(self) -> None:
        check_positive(self.kind, m=self.m, panels=self.panels, n=self.n, k=self.k)
        if not self.epilogue.is_empty:
            raise OperationError(f"{self.kind} has no epilogue, but got {self.epilogue}")

    @property
    def problem(self) -> str:
        return f"{self.m}x{self.panels}x{self.n}x{self.k}"

    @property
    def layouts(self) -> tuple[str, str, str]:
        return ("t", "t", "t")

    @property
    def bias_axis(self) -> int:
        return 2

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (
            Tensor("lhs", (self.m, self.k), element_type(self.types.lhs)),
            Tensor("rhs", (self.panels, self.k, self.n), element_type(self.types.rhs)),
        )

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (Tensor("result", (self.m, self.panels, self.n), self.types.output),)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (
            Loop("m", self.m, "parallel"),
            Loop("panel", self.panels, "parallel"),
            Loop("n", self.n, "parallel"),
            Loop("k", self.k, "reduction"),
        )

    def shape_arguments(self) -> dict[str, str]:
        return {}

    def contract(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return (lhs @ rhs).transpose(1, 0, 2)

    @classmethod
    def smallest(cls) -> PanelMatmul:
        return cls(1, 1, 1, 1)

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterable[Callable[[], PanelMatmul]]:
        return ()

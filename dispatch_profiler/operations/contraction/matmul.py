"""Matrix multiplication, plain and batched: `C[m, n] = sum_k A[m, k] * B[k, n]`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import Loop, Tensor, check_positive
from dispatch_profiler.operations.contraction.contraction import SumOfProducts
from dispatch_profiler.operations.element_types import ElementTypes, element_type
from dispatch_profiler.operations.epilogues import Epilogue
from dispatch_profiler.operations.geometry import ProductGeometry
from dispatch_profiler.operations.options import FUSED_EPILOGUE, ShapeOption, SweepOptions

#: `t` row major (the last index runs fastest), `n` column major (stored transposed).
LAYOUTS = ("t", "n")


#: m, n, k
MATMUL_PROBLEMS = ((128, 128, 256), (256, 512, 128), (2560, 2560, 2560), (3456, 1024, 2048))
#: m, n, k of a matmul with a fused epilogue.
FUSED_PROBLEMS = ((256, 512, 128),)
#: batch, m, n, k
BATCH_MATMUL_PROBLEMS = ((16, 512, 64, 512),)
#: m, n, k -> slice counts, for a matmul that benefits from split-k.
SPLIT_K_PROBLEMS = {(128, 128, 12288): (2, 4, 16)}
#: Extents that are not given, if at least one is.
_DEFAULT_EXTENT = 256
#: The Arguments line of the profiler's report uses the short spellings.
_SHAPE_OPTIONS = (
    *(
        ShapeOption(f"problem_{axis}", (f"--problem-{axis}", f"--{axis}"), f"{extents} (default: several)")
        for axis, extents in (
            ("m", "rows of the result"),
            ("n", "columns of the result"),
            ("k", "terms of a sum"),
        )
    ),
    ShapeOption("batch_count", ("--batch-count", "--batch_count"), "above 1: batch_matmul"),
)


def check_layouts(lhs: str, rhs: str, result: str = "t") -> None:
    """Raise OperationError unless each operand's layout is `t` or `n` and the result's is `t`."""
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


class _Product(SumOfProducts):
    """The base class of both kinds: layouts of two operands, channels along n, one reduction."""

    parallel_axes: ClassVar[tuple[str, ...]] = ("m", "n")
    reduction_axes: ClassVar[tuple[str, ...]] = ("k",)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = _SHAPE_OPTIONS

    m: int
    n: int
    k: int
    lhs_layout: str
    rhs_layout: str

    def _check(self, **extents: int) -> None:
        check_positive(self.kind, **extents)
        check_layouts(self.lhs_layout, self.rhs_layout)
        self._check_epilogue()

    family: ClassVar[str] = "product"

    @property
    def layouts(self) -> tuple[str, str, str]:
        return self.lhs_layout, self.rhs_layout, "t"

    @property
    def bias_axis(self) -> int:
        return len(self.result.shape) - 1

    @property
    def product(self) -> ProductGeometry:
        return ProductGeometry(1, self.m, self.n, self.k, self.lhs_layout, self.rhs_layout)

    @property
    def reads_weight(self) -> bool:
        return not self.product.is_batched

    def contract(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return _transposed(lhs, self.lhs_layout) @ _transposed(rhs, self.rhs_layout)


@dataclass(frozen=True)
class Matmul(_Product):
    """An M x N x K product. With `lhs_layout="n"`, A is stored as K x M; likewise for `rhs_layout`."""

    kind: ClassVar[str] = "matmul"
    batch_name: ClassVar[str] = "m"

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
    def operands(self) -> tuple[Tensor, ...]:
        lhs = (self.m, self.k) if self.lhs_layout == "t" else (self.k, self.m)
        rhs = (self.k, self.n) if self.rhs_layout == "t" else (self.n, self.k)
        return (
            Tensor("lhs", lhs, element_type(self.types.lhs)),
            Tensor("rhs", rhs, element_type(self.types.rhs)),
            *self._epilogue_operands(self.n),
        )

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (Tensor("result", (self.m, self.n), self.types.output),)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("m", self.m, "parallel"), Loop("n", self.n, "parallel"), Loop("k", self.k, "reduction"))

    def shape_arguments(self) -> dict[str, str]:
        return {"batch_count": "1", "m": str(self.m), "n": str(self.n), "k": str(self.k)}

    def with_batch(self, batch: int) -> Matmul | None:
        """See `Operation.with_batch`."""
        return replace(self, m=batch) if self.lhs_layout == "t" else None

    @property
    def predefined_splits(self) -> tuple[int, ...]:
        return SPLIT_K_PROBLEMS.get((self.m, self.n, self.k), ())

    @classmethod
    def smallest(cls) -> Matmul:
        return cls(1, 1, 1, epilogue=Epilogue.parse("bias"))

    @classmethod
    def is_implied_by(cls, options: SweepOptions) -> bool:
        # The arguments of every plain matmul contain --batch-count=1.
        return super().is_implied_by(options) and _most_batches(options) == 1

    @classmethod
    def rejection_reason(cls, options: SweepOptions) -> str | None:
        return "a batch count above 1 needs batch_matmul" if _most_batches(options) > 1 else None

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], Matmul]]:
        given = options.has_shape_of(cls.shape_options)
        predefined = (*MATMUL_PROBLEMS, *SPLIT_K_PROBLEMS)
        shapes = dict.fromkeys(shape[1:] for shape in _shapes(options)) if given else predefined
        for shape, arguments in itertools.product(shapes, _arguments(options)):
            yield partial(cls, *shape, *arguments)
        if options.has_fused_problems:
            fused = replace(options, epilogues=(FUSED_EPILOGUE,))
            for (m, n, k), arguments in itertools.product(FUSED_PROBLEMS, _arguments(fused)):
                yield partial(cls, m, n, k, *arguments)


@dataclass(frozen=True)
class BatchMatmul(_Product):
    """`batch` independent M x N x K products; named B x M x N x K."""

    kind: ClassVar[str] = "batch_matmul"

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
        """One of the `batch` products."""
        return Matmul(self.m, self.n, self.k, self.types, self.lhs_layout, self.rhs_layout, self.epilogue)

    @property
    def problem(self) -> str:
        return f"{self.batch}x{self.each.problem}"

    @property
    def operands(self) -> tuple[Tensor, ...]:
        lhs, rhs, *_ = self.each.operands
        return (
            Tensor("lhs", (self.batch, *lhs.shape), lhs.type),
            Tensor("rhs", (self.batch, *rhs.shape), rhs.type),
            *self._epilogue_operands(self.n),
        )

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (Tensor("result", (self.batch, self.m, self.n), self.types.output),)

    @property
    def product(self) -> ProductGeometry:
        return replace(super().product, batch=self.batch, is_batched=True)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("batch", self.batch, "parallel"), *self.each.loops)

    def shape_arguments(self) -> dict[str, str]:
        return {**self.each.shape_arguments(), "batch_count": str(self.batch)}

    @classmethod
    def smallest(cls) -> BatchMatmul:
        return cls(1, 1, 1, 1, epilogue=Epilogue.parse("bias"))

    @classmethod
    def is_implied_by(cls, options: SweepOptions) -> bool:
        return _most_batches(options) > 1

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], BatchMatmul]]:
        given = options.has_shape_of(cls.shape_options)
        shapes = _shapes(options) if given else BATCH_MATMUL_PROBLEMS
        for shape, arguments in itertools.product(shapes, _arguments(options)):
            yield partial(cls, *shape, *arguments)  # type: ignore[arg-type, call-arg]


def _most_batches(options: SweepOptions) -> int:
    return max(options.shapes.get("batch_count", (1,)))


def _shapes(options: SweepOptions) -> Iterable[tuple[int, ...]]:
    """(batch, m, n, k) of every problem, with defaults for extents not given."""
    extents = (options.shapes.get(f"problem_{axis}", (_DEFAULT_EXTENT,)) for axis in "mnk")
    return itertools.product(options.shapes.get("batch_count", (1,)), *extents)


def _arguments(options: SweepOptions) -> list[tuple[ElementTypes, str, str, Epilogue]]:
    """Arguments after the shape: types, layouts of lhs and rhs, epilogue."""
    combinations = itertools.product(options.types, options.swept_epilogues, options.layouts)
    return [(types, lhs, rhs, epilogue) for types, epilogue, (lhs, rhs) in combinations]


def _transposed(array: np.ndarray, layout: str) -> np.ndarray:
    return array if layout == "t" else array.swapaxes(-1, -2)

"""Fields, options and operands that the forward and backward layer norms share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError, RangeError
from dispatch_profiler.operations._base import Distribution, Loop, Tensor, check_positive
from dispatch_profiler.operations.element_types import ElementType
from dispatch_profiler.operations.geometry import RowSums
from dispatch_profiler.operations.options import ShapeOption, SweepOptions, numbers
from dispatch_profiler.operations.reductions import DEFAULT_SUM_TYPES, SumOperation, same_terms, type_option

#: Rows and row lengths of BERT-base, GPT-2 and a vision transformer.
LAYER_NORM_PROBLEMS = ((128, 768), (512, 1024), (1576, 384))


#: The parameters of each column: weight and bias, neither, or one of them by its name.
Affine = bool | str
#: Text of an `Affine` -> its value.
_AFFINE: dict[str, Affine] = {"true": True, "false": False, "weight": "weight", "bias": "bias"}


def affine_of(has_weight: bool, has_bias: bool) -> Affine:
    """`weight` for a weight without a bias."""
    if has_weight == has_bias:
        return has_weight
    return "weight" if has_weight else "bias"


def has_weight(affine: Affine) -> bool:
    """Whether a weight is applied."""
    return affine in (True, "weight")


def has_bias(affine: Affine) -> bool:
    """Whether a bias is applied."""
    return affine in (True, "bias")


def affine_text(affine: Affine) -> str:
    """The value of `--norm-affine`."""
    return affine if isinstance(affine, str) else str(affine).lower()


def affine_suffix(affine: Affine) -> str:
    """The end of an operation's name: nothing for weight and bias, otherwise `_plain`, `_weight` or `_bias`."""
    if isinstance(affine, str):
        return f"_{affine}"
    return "" if affine else "_plain"


def _affine_values(text: str) -> tuple[Affine, ...]:
    parts = [part.strip().lower() for part in text.split(",")]
    if not all(part in _AFFINE for part in parts):
        raise RangeError(f"expected {', '.join(_AFFINE)}, but got {text!r}")
    return tuple(_AFFINE[part] for part in parts)


#: Options of every kind of layer norm.
ROW_OPTIONS = (
    ShapeOption("norm_rows", ("--norm-rows",), "number of rows; each is normalized separately"),
    ShapeOption("norm_size", ("--norm-size",), "elements per row"),
    type_option("norm"),
)
EPS_OPTION = ShapeOption(
    "norm_eps", ("--norm-eps",), "value added to the variance", numbers("1e-5"), "EPS,..."
)
AFFINE_OPTION = ShapeOption(
    "norm_affine",
    ("--norm-affine",),
    "weight and bias (true), neither (false), or one of them",
    _affine_values,
    "true|false|weight|bias",
)


def offset_of(type_: ElementType) -> float:
    """A mean that is far from zero, for elements whose deviation is about 1: at most 1000, with steps of at most 1/8."""
    return min(1000.0, 2.0 ** (type_.precision - 4))


def swept_points(options: SweepOptions, *rest: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """(rows, size, type, ...) of every point of a sweep, with one of each of `rest`."""
    given = options.shapes
    has_shape = "norm_rows" in given or "norm_size" in given
    shapes = itertools.product(given.get("norm_rows", (128,)), given.get("norm_size", (768,)))
    for shape, *others in itertools.product(
        list(shapes) if has_shape else LAYER_NORM_PROBLEMS, given.get("norm_type", DEFAULT_SUM_TYPES), *rest
    ):
        yield (*shape, *others)


class RowNorm(SumOperation):
    """The base class of layer norms of `rows` rows of `size` elements; sums are in `sums_type`."""

    family: ClassVar[str] = "layer_norm"
    parallel_axes: ClassVar[tuple[str, ...]] = ("row",)
    reduction_axes: ClassVar[tuple[str, ...]] = ("column",)

    rows: int
    size: int

    def _check(self) -> None:
        """Raise OperationError for invalid extents and types; replace an alias of a type by its name."""
        check_positive(self.kind, rows=self.rows, size=self.size)
        self._check_type()

    def _check_affine(self, affine: object, *allowed: str) -> None:
        """Raise OperationError unless `affine` is a bool or one of the other `allowed` values."""
        if type(affine) is not bool and not (type(affine) is str and affine in allowed):
            names = ["true", "false", *allowed]
            rule = f"{', '.join(names[:-1])} or {names[-1]}"
            raise OperationError(f"{self.kind}: affine must be {rule}, but got {affine!r}")

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("row", self.rows, "parallel"), Loop("column", self.size, "reduction"))

    @property
    def row_sums(self) -> RowSums | None:
        return RowSums(self.rows, self.size)

    def row_arguments(self) -> dict[str, str]:
        """`arguments` for the fields that every kind of layer norm has."""
        return {"norm-rows": str(self.rows), "norm-size": str(self.size), "norm-type": self.type}

    # -- tensors ------------------------------------------------------------------------------

    def elements(self, name: str) -> Tensor:
        """A tensor with every element: (rows, size) of `type`."""
        return Tensor(name, (self.rows, self.size), self.element_type)

    def row_statistics(self, *names: str) -> tuple[Tensor, ...]:
        """Tensors with one number per row: (rows,) in the accumulator type."""
        return tuple(Tensor(name, (self.rows,), self.accumulator) for name in names)

    def parameters(self, *names: str) -> tuple[Tensor, ...]:
        """Tensors with one number per column: (size,) of `type`."""
        return tuple(Tensor(name, (self.size,), self.element_type) for name in names)


class RowNormBackward(RowNorm):
    """The base class of backward layer norms, whose operands include the forward's mean and rstd.

    eps is not a field: it enters through rstd only. Shapes alone imply the forward, so a backward kind is
    generated by name (`--op-kind`), or with every other kind.
    """

    @classmethod
    def is_implied_by(cls, options: SweepOptions) -> bool:
        return False

    def row_arguments(self) -> dict[str, str]:
        return {"op-kind": self.kind, **super().row_arguments()}

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """Reals; mean and rstd describe rows with the distribution of x's rows, up to the error of a sample.

        Operands are drawn independently, so they share each row's location and deviation, which depend on
        the number of rows only. A kernel that computes mean or rstd from x differs from the reference.
        OFFSET: the means of x, dy and weight are far from zero.
        """
        noise = rng.uniform(-1.0, 1.0, operand.shape)
        rows = np.random.default_rng(self.rows)
        location, deviation = rows.uniform(-1.0, 1.0, self.rows), rows.uniform(0.5, 2.0, self.rows)
        if distribution is Distribution.OFFSET:
            location = offset_of(self.element_type) * (1.0 + location / 4.0)
            if operand.name == "weight":
                noise = 1.0 + noise / 2.0
            elif operand.name == "dy":
                noise = same_terms(noise, self.rows)
        if operand.name == "x":
            noise = location[:, None] + deviation[:, None] * noise
        elif operand.name == "mean":
            noise = location + deviation * noise / math.sqrt(3.0 * self.size)
        elif operand.name == "rstd":
            noise = math.sqrt(3.0) / deviation * (1.0 + 0.1 * noise)  # uniform in (-d, d): variance d**2 / 3
        return noise.astype(operand.type.dtype)

    def spread(self, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray, stepwise: bool) -> np.ndarray:
        """The magnitude to which the roundings of `xhat = (x - mean) * rstd` are relative.

        `stepwise` allows for torch's `x * rstd - mean * rstd`, whose terms may cancel.
        """
        return (np.abs(x) + np.abs(mean) if stepwise else np.abs(x - mean)) * np.abs(rstd)

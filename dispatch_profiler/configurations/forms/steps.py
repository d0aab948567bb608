"""Steps of a form: how it prepares the operands of its kernels, runs them, and arranges their results.

Each step makes one named tensor from earlier ones. The template `formed.mlir.j2` has a macro for each kind of
step, and the tests compute each with numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import ClassVar

from dispatch_profiler.operations import Operation, Tensor


@dataclass(frozen=True)
class Index:
    """An affine index: the sum of factor x loop over `terms`. Factors are positive: IREE rejects other maps."""

    terms: tuple[tuple[str, int], ...]

    @property
    def mlir(self) -> str:
        """`oh * 2 + kh`"""
        return " + ".join(loop if factor == 1 else f"{loop} * {factor}" for loop, factor in self.terms)

    @property
    def loop(self) -> str | None:
        """The loop, if the index is one loop and nothing else."""
        return self.terms[0][0] if len(self.terms) == 1 and self.terms[0][1] == 1 else None


@dataclass(frozen=True)
class Step:
    """The base class: `result` is the tensor that the step makes."""

    kind: ClassVar[str]

    result: Tensor

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """The tensors that the step reads."""
        values = [getattr(self, each.name) for each in fields(self) if each.name != "result"]
        listed = [value if isinstance(value, tuple) else (value,) for value in values]
        return tuple(each for value in listed for each in value if isinstance(each, Tensor))


@dataclass(frozen=True)
class Pad(Step):
    """`source` with `low` and `high` zeros before and after it along each axis."""

    kind: ClassVar[str] = "pad"

    source: Tensor
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True)
class Crop(Step):
    """The part of `source` that begins at `offsets` and has the shape of `result`."""

    kind: ClassVar[str] = "crop"

    source: Tensor
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Gather(Step):
    """`result[loops] = source[indices]`: a permutation, or the windows of a convolution."""

    kind: ClassVar[str] = "gather"

    source: Tensor
    loops: tuple[str, ...]
    indices: tuple[Index, ...]


@dataclass(frozen=True)
class Slice:
    """Elements of a tensor, `strides` apart. `loops` are the axes that a single loop indexes."""

    tensor: Tensor
    loops: tuple[str, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Transform(Step):
    """Windows along an axis, each multiplied by `matrix`.

        result[loops] = sum over k of matrix[row][k] * source[indices]

    where k is added to the index of `axis`. `row` is one of `loops`; the others index the source.
    """

    kind: ClassVar[str] = "transform"

    source: Tensor
    loops: tuple[str, ...]
    indices: tuple[Index, ...]
    row: str
    axis: int
    matrix: tuple[tuple[Fraction, ...], ...]

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The elements that each column of the matrix multiplies."""
        return tuple(self._slice(column) for column in range(len(self.matrix[0])))

    @property
    def columns(self) -> tuple[tuple[float, ...], ...]:
        """The columns of the matrix."""
        return tuple(tuple(map(float, column)) for column in zip(*self.matrix, strict=True))

    def _slice(self, column: int) -> Slice:
        extents = dict(zip(self.loops, self.result.shape, strict=True))
        terms = [index.terms[0] if index.terms else ("", 1) for index in self.indices]
        offsets = tuple(column if axis == self.axis else 0 for axis in range(len(terms)))
        loops = tuple(loop for loop, _ in terms if loop)
        name = f"{self.result.name}_{column}"
        return Slice(
            Tensor(name, tuple(extents[loop] for loop in loops), self.source.type),
            loops,
            offsets,
            tuple(extents.get(loop, 1) for loop, _ in terms),
            tuple(factor for _, factor in terms),
        )


@dataclass(frozen=True)
class Sum(Step):
    """The sum of tensors of one shape, element by element, in their order."""

    kind: ClassVar[str] = "sum"

    terms: tuple[Tensor, ...]

    @property
    def loops(self) -> tuple[str, ...]:
        return tuple(f"d{axis}" for axis in range(len(self.result.shape)))


@dataclass(frozen=True)
class Reshape(Step):
    """Neighbouring axes combined into one, or one split into several.

    `groups` has the axes of the longer shape for each axis of the shorter one.
    """

    kind: ClassVar[str] = "reshape"

    source: Tensor
    groups: tuple[tuple[int, ...], ...]

    @property
    def is_split(self) -> bool:
        """Whether the result has more axes than the source."""
        return len(self.result.shape) > len(self.source.shape)


@dataclass(frozen=True)
class Barrier(Step):
    """`source`, stored before anything else reads it: the compiler fuses nothing across it.

    `packs`: it is a packed weight (see `packing`), which a profile vmfb stores in the first call for all later ones.
    """

    kind: ClassVar[str] = "barrier"

    source: Tensor
    packs: bool = False


@dataclass(frozen=True)
class Kernel(Step):
    """`operation` with two operands and without an epilogue; its result is in the accumulator's type."""

    kind: ClassVar[str] = "kernel"

    operation: Operation
    lhs: Tensor
    rhs: Tensor


@dataclass(frozen=True)
class Interleave(Step):
    """Zeros, except that `parts[i]` is stored from `offsets[i]` on, with `strides` between its elements."""

    kind: ClassVar[str] = "interleave"

    parts: tuple[Tensor, ...]
    offsets: tuple[tuple[int, ...], ...]
    strides: tuple[int, ...]
    #: Whether the parts leave no element out.
    is_complete: bool


@dataclass(frozen=True)
class Labeled:
    """A tensor with a name for each axis, such as `n`, `oh`, `ow`, `c`."""

    tensor: Tensor
    axes: tuple[str, ...]

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.axes, self.tensor.shape, strict=True))

    def renamed(self, names: Mapping[str, str]) -> Labeled:
        """The same tensor with other names for some axes."""
        return Labeled(self.tensor, tuple(names.get(axis, axis) for axis in self.axes))

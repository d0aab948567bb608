"""Records the steps of a form. Values have named axes, so that a form is written once for all layouts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import ClassVar

from dispatch_profiler.operations import ElementType, Epilogue, ErrorBound, Operation, Tensor

# -- steps -----------------------------------------------------------------------------------------

# Steps of a form: how it prepares the operands of its kernels, runs them, and arranges their results.
#
# Each step makes one named tensor from earlier ones. The template `formed.mlir.j2` has a macro for each kind of
# step, and the tests compute each with numpy.


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

    #: The name of its macro: the name of the class in lower case.
    kind: ClassVar[str]

    result: Tensor

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kind = cls.__name__.lower()

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """The tensors that the step reads."""
        values = [getattr(self, each.name) for each in fields(self) if each.name != "result"]
        listed = [value if isinstance(value, tuple) else (value,) for value in values]
        return tuple(each for value in listed for each in value if isinstance(each, Tensor))


@dataclass(frozen=True)
class Pad(Step):
    """`source` with `low` and `high` zeros before and after it along each axis."""

    source: Tensor
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True)
class Crop(Step):
    """The part of `source` that begins at `offsets` and has the shape of `result`."""

    source: Tensor
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Gather(Step):
    """`result[loops] = source[indices]`: a permutation, or the windows of a convolution."""

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

    terms: tuple[Tensor, ...]

    @property
    def loops(self) -> tuple[str, ...]:
        return tuple(f"d{axis}" for axis in range(len(self.result.shape)))


@dataclass(frozen=True)
class Unsigned(Step):
    """`source`, of i8, plus 128: numbers from 0 to 255, in the same 8 bits."""

    source: Tensor

    @property
    def loops(self) -> tuple[str, ...]:
        return tuple(f"d{axis}" for axis in range(len(self.result.shape)))


@dataclass(frozen=True)
class Reshape(Step):
    """Neighbouring axes combined into one, or one split into several.

    `groups` has the axes of the longer shape for each axis of the shorter one.
    """

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

    source: Tensor
    packs: bool = False


@dataclass(frozen=True)
class Kernel(Step):
    """`operation` with two operands and without an epilogue; its result is in the accumulator's type."""

    operation: Operation
    lhs: Tensor
    rhs: Tensor


@dataclass(frozen=True)
class Interleave(Step):
    """Zeros, except that `parts[i]` is stored from `offsets[i]` on, with `strides` between its elements."""

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


@dataclass(frozen=True)
class Reduction:
    """An operation reduced to kernels: the steps, and the tensor with the sums of products.

    `sums` has the shape of the operation's result and its accumulator's type; the epilogue follows.
    """

    steps: tuple[Step, ...]
    sums: Tensor
    #: None if the sums are plain sums of products.
    error_bound: ErrorBound | None = None

    @property
    def executed(self) -> tuple[Step, ...]:
        """The steps of every execution: all steps except the steps that pack the weight."""
        return self.steps[len(self.packing) :]

    @property
    def packing(self) -> tuple[Step, ...]:
        """The steps that pack the weight, which come first; the last of them are barriers, one for each packed tensor."""
        ends = [at for at, step in enumerate(self.steps, 1) if _packs(step)]
        return self.steps[: ends[-1]] if ends else ()

    @property
    def kernels(self) -> tuple[Operation, ...]:
        """The operations that compute the sums; an inner configuration configures each."""
        return tuple(step.operation for step in self.steps if isinstance(step, Kernel))

    def longest_chain(self, slices: Callable[[Operation], int]) -> int:
        """The most terms that are added one after another, given the slices of each kernel's sums."""
        chains: dict[Tensor, int] = {}
        for step in self.steps:
            chain = max((chains.get(source, 0) for source in step.sources), default=0)
            if isinstance(step, Kernel):
                count = slices(step.operation)
                chain = -(-step.operation.accumulations // count) + (count if count > 1 else 0)
            elif isinstance(step, Sum):
                chain += len(step.terms)
            chains[step.result] = chain
        return chains[self.sums]


def packed_by(packing: Iterable[Step]) -> tuple[Tensor, ...]:
    """The packed tensors, which executions read in place of the weight."""
    return tuple(step.result for step in packing if _packs(step))


def _packs(step: Step) -> bool:
    return isinstance(step, Barrier) and step.packs


class Builder:
    """Collects steps; each method adds steps and returns their result."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._names: Counter[str] = Counter()

    def _tensor(self, name: str, shape: Sequence[int], type_: ElementType) -> Tensor:
        self._names[name] += 1
        count = self._names[name]
        return Tensor(f"{name}_{count}" if count > 1 else name, tuple(shape), type_)

    def _add(self, step: Step, axes: Iterable[str]) -> Labeled:
        self.steps.append(step)
        return Labeled(step.result, tuple(axes))

    # -- one step ---------------------------------------------------------------------------------

    def pad(self, value: Labeled, amounts: Mapping[str, tuple[int, int]]) -> Labeled:
        """`value` with (low, high) zeros along the named axes; a negative amount removes elements."""
        pairs = [amounts.get(axis, (0, 0)) for axis in value.axes]
        tensor = value.tensor
        if any(min(pair) < 0 for pair in pairs):
            offsets = tuple(max(0, -low) for low, _ in pairs)
            cut = zip(tensor.shape, offsets, pairs, strict=True)
            shape = tuple(extent - offset - max(0, -high) for extent, offset, (_, high) in cut)
            cropped = self._tensor("cropped", shape, tensor.type)
            self.steps.append(Crop(cropped, tensor, offsets))
            tensor = cropped
        low, high = (tuple(max(0, pair[side]) for pair in pairs) for side in (0, 1))
        if any(low) or any(high):
            shape = tuple(map(sum, zip(low, tensor.shape, high, strict=True)))
            padded = self._tensor("padded", shape, tensor.type)
            self.steps.append(Pad(padded, tensor, low, high))
            tensor = padded
        return Labeled(tensor, value.axes)

    def part(self, value: Labeled, axis: str, start: int, extent: int = 1) -> Labeled:
        """The part of `value` from `start` on, `extent` long, along `axis`."""
        tensor, position = value.tensor, value.axes.index(axis)
        if extent == tensor.shape[position]:
            return value
        shape = (*tensor.shape[:position], extent, *tensor.shape[position + 1 :])
        offsets = tuple(start if each == axis else 0 for each in value.axes)
        return self._add(Crop(self._tensor("part", shape, tensor.type), tensor, offsets), value.axes)

    def without(self, value: Labeled, axis: str) -> Labeled:
        """`value` without `axis`, whose extent is 1."""
        position = value.axes.index(axis)
        neighbour = value.axes[position + 1] if position + 1 < len(value.axes) else value.axes[position - 1]
        names = {
            each: tuple(x for x in value.axes if x in (axis, neighbour)) if each == neighbour else (each,)
            for each in value.axes
            if each != axis
        }
        return self.merge(value, names)

    def barrier(self, value: Labeled) -> Labeled:
        """`value`, stored before anything reads it."""
        stored = self._tensor("stored_" + value.tensor.name, value.tensor.shape, value.tensor.type)
        return self._add(Barrier(stored, value.tensor), value.axes)

    def gather(
        self,
        name: str,
        value: Labeled,
        extents: Mapping[str, int],
        indices: Mapping[str, Index] | None = None,
    ) -> Labeled:
        """A tensor with the axes and extents `extents`, of elements of `value`.

        `indices` has the indices of axes of `value`; an axis without an index is indexed by the axis of the same name.
        """
        given = indices or {}
        complete = tuple(given.get(axis, Index(((axis, 1),))) for axis in value.axes)
        result = self._tensor(name, tuple(extents.values()), value.tensor.type)
        return self._add(Gather(result, value.tensor, tuple(extents), complete), extents)

    def transform(
        self,
        name: str,
        value: Labeled,
        axis: str,
        matrix: tuple[tuple[Fraction, ...], ...],
        extents: Mapping[str, int],
        begin: Index,
    ) -> Labeled:
        """Windows of `value` along `axis`, from `begin` on, multiplied by `matrix`.

        `extents` are the axes of the result: the loops of `begin`, a new loop for the rows, and the other axes.
        """
        others = [each for each in value.axes if each != axis]
        loops = dict(begin.terms)
        (row,) = (each for each in extents if each not in others and each not in loops)
        result = self._tensor(name, tuple(extents.values()), value.tensor.type)
        indices = tuple(begin if each == axis else Index(((each, 1),)) for each in value.axes)
        at = value.axes.index(axis)
        step = Transform(result, value.tensor, tuple(extents), indices, row, at, matrix)
        return self._add(step, extents)

    def sum(self, terms: Sequence[Labeled]) -> Labeled:
        """The sum of `terms`, which have the same axes, element by element."""
        first = terms[0]
        result = self._tensor("sum", first.tensor.shape, first.tensor.type)
        return self._add(Sum(result, tuple(each.tensor for each in terms)), first.axes)

    def unsigned(self, value: Labeled) -> Labeled:
        """`value`, of i8, plus 128, as unsigned numbers."""
        result = self._tensor("unsigned", value.tensor.shape, value.tensor.type)
        return self._add(Unsigned(result, value.tensor), value.axes)

    def kernel(self, operation: Operation, lhs: Labeled, rhs: Labeled, axes: Sequence[str]) -> Labeled:
        """The result of `operation`; `axes` are its axes."""
        (made,) = operation.results
        result = self._tensor("product", made.shape, made.type)
        return self._add(Kernel(result, operation, lhs.tensor, rhs.tensor), axes)

    def interleave(
        self,
        parts: Sequence[Labeled],
        starts: Sequence[Mapping[str, int]],
        extents: Mapping[str, int],
        strides: Mapping[str, int],
        type_: ElementType,
    ) -> Labeled:
        """A tensor with the axes `extents`: zeros, and each of `parts` from its start on, `strides` apart.

        Axes that a start and `strides` do not name start at 0 with stride 1. The parts do not overlap.
        """
        shape = tuple(extents.values())
        result = self._tensor("joined", shape, type_)
        step = Interleave(
            result,
            tuple(part.tensor for part in parts),
            tuple(tuple(start.get(axis, 0) for axis in extents) for start in starts),
            tuple(strides.get(axis, 1) for axis in extents),
            sum(part.tensor.elements for part in parts) == math.prod(shape),
        )
        return self._add(step, extents)

    # -- shapes -----------------------------------------------------------------------------------

    def merge(self, value: Labeled, groups: Mapping[str, Sequence[str]]) -> Labeled:
        """`value` with each group of neighbouring axes combined into one, named by its key.

        The groups name every axis of `value`, in order.
        """
        if all(len(group) == 1 for group in groups.values()):
            return Labeled(value.tensor, tuple(groups))
        extents = value.extents
        shape = tuple(math.prod(extents[axis] for axis in group) for group in groups.values())
        return Labeled(self._reshaped(value.tensor, shape, _numbered(groups.values())), tuple(groups))

    def split(self, value: Labeled, axis: str, extents: Mapping[str, int]) -> Labeled:
        """`value` with `axis` split into the axes `extents`."""
        axes = [list(extents) if each == axis else [each] for each in value.axes]
        names = tuple(name for group in axes for name in group)
        if len(extents) == 1:
            return Labeled(value.tensor, names)
        sizes = {**value.extents, **extents}
        shape = tuple(sizes[name] for name in names)
        return Labeled(self._reshaped(value.tensor, shape, _numbered(axes)), names)

    def _reshaped(
        self, tensor: Tensor, shape: tuple[int, ...], groups: tuple[tuple[int, ...], ...]
    ) -> Tensor:
        result = self._tensor("shaped", shape, tensor.type)
        self.steps.append(Reshape(result, tensor, groups))
        return result

    def moves(self, value: Labeled, axes: Sequence[str]) -> bool:
        """Whether elements move if the axes of `value` are put into the order `axes`."""
        extents = value.extents
        return [x for x in value.axes if extents[x] > 1] != [x for x in axes if extents[x] > 1]

    def arrange(self, name: str, value: Labeled, axes: Sequence[str], *, store: bool = False) -> Labeled:
        """`value` with its axes in another order. With `store`, a permutation is stored before it is read."""
        if value.axes == tuple(axes):
            return value
        if not self.moves(value, axes):
            return self._with_units_moved(value, tuple(axes))
        moved = self.gather(name, value, {axis: value.extents[axis] for axis in axes})
        return self.barrier(moved) if store else moved

    def permuted(self, value: Labeled, axes: Sequence[str], epilogue: Epilogue) -> Labeled:
        """The result `value` with its axes in the order `axes`, permuted in a step of its own.

        A permutation that moves the last axis is stored if the epilogue reads operands. The compiler has a fast
        transposition of one operand, but not fused with a bias or a residual, which makes it ten times slower.
        """
        if not self.moves(value, axes):
            return self.arrange("arranged", value, axes)
        extents = value.extents
        last = [[axis for axis in order if extents[axis] > 1][-1] for order in (value.axes, axes)]
        is_stored = bool(epilogue.operands) and last[0] != last[1]
        return self.arrange("arranged", self.barrier(value), axes, store=is_stored)

    def _with_units_moved(self, value: Labeled, axes: tuple[str, ...]) -> Labeled:
        extents = value.extents
        plain = [_around_units(order, extents) for order in (value.axes, axes)]
        shape = tuple(max(extents[axis] for axis in group) for group in plain[0])
        tensor = value.tensor
        if len(shape) < len(axes):
            tensor = self._reshaped(tensor, shape, _numbered(plain[0]))
            tensor = self._reshaped(tensor, tuple(extents[axis] for axis in axes), _numbered(plain[1]))
        return Labeled(tensor, axes)


def _around_units(axes: Sequence[str], extents: Mapping[str, int]) -> list[list[str]]:
    """`axes` in groups, each with at most one axis whose extent is not 1."""
    groups: list[list[str]] = []
    for axis in axes:
        if groups and (extents[axis] == 1 or all(extents[each] == 1 for each in groups[-1])):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _numbered(groups: Iterable[Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Groups of names -> groups of positions: (("a", "b"), ("c",)) -> ((0, 1), (2,))."""
    numbered, position = [], 0
    for group in groups:
        numbered.append(tuple(range(position, position + len(group))))
        position += len(group)
    return tuple(numbered)

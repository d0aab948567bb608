"""Programs that only move elements, in rows, as one copy. IREE makes a kernel of each permutation, roll and slice of them.

tokens of 144 channels, reordered by windows of 2 x 2 pixels: one copy of rows of 144 elements, not three permutations
an image of 96 channels, rolled by 3 x 3 pixels: one copy of rows whose places are in a table
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.operators import COPIES, MOVES, OPERATORS, stored
from dispatch_profiler.boo.fusion.programs.strided import places
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, VECTOR, KernelWriter

#: Elements of a result at most: their places are computed one by one.
_MOST_ELEMENTS = 2**24
#: Consecutive elements at least, axes at most, elements of a workgroup, and workgroups at most.
_SHORTEST, _MOST_AXES, _ELEMENTS, _MOST_WORKGROUPS = LANES, 8, 8192, 128
#: Rows whose places are in a table at most.
_MOST_TABLED = 2**15
#: Vectors of a row from which on the kernel has a loop over them.
_UNROLLED = 8


def copy_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernel. Raises NotFusible."""
    plan = copy_plan(program)
    tensors = program.operands, program.results
    if isinstance(plan, CopyPlan):
        return _CopyKernel(function, *tensors).kernel(plan)
    return _TableKernel(function, *tensors).kernel(plan)


@dataclass(frozen=True)
class CopyPlan:
    """Rows of `row` elements, which are in a row in the result, and in the input along axes, outermost first."""

    row: int
    offset: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Their number."""
        return math.prod(self.extents)

    @property
    def part(self) -> int:
        """Rows of a workgroup."""
        return max(1, _ELEMENTS // self.row, -(-self.rows // _MOST_WORKGROUPS))


@dataclass(frozen=True)
class RowsFrom:
    """Rows of an input, or of zeros: the places where they begin in the input, and numbers of rows of the result."""

    source: int | None
    starts: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class TablePlan:
    """Rows of `row` elements, in places without a rule."""

    row: int
    parts: tuple[RowsFrom, ...]

    @property
    def workgroups(self) -> int:
        """Each has a share of the rows of every part."""
        rows = sum(len(each.targets) for each in self.parts)
        return min(-(-rows * self.row // _ELEMENTS), _MOST_WORKGROUPS)


@lru_cache(maxsize=64)
def copy_plan(program: Calls) -> CopyPlan | TablePlan:
    """The plan of a program. Raises NotFusible if it computes something, or moves shorter rows."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    if math.prod(program.outputs[0].shape) > _MOST_ELEMENTS:
        raise NotFusible("it has many elements")
    unset: Any = unset_fake_temporarily
    with unset(), torch.no_grad():
        found, starts = places(program, _COPIED)
        flat = stored(found, program.outputs[0]).reshape(-1)
        if len(program.inputs) == 1 and int(flat.min()) >= 0:
            with suppress(NotFusible):
                return _plan_of_axes(flat)
        return _plan_of_table(flat, starts)


def _plan_of_axes(flat: Tensor) -> CopyPlan:
    axes, offset = axes_of(flat), int(flat[0])
    (row, stride), outer = axes[0], axes[1:]
    if stride != 1 or row < _SHORTEST or len(outer) > _MOST_AXES:
        raise NotFusible("its rows are short")
    extents, strides = ([each[at] for each in reversed(outer)] for at in range(2))
    return CopyPlan(row, offset, tuple(extents), tuple(strides))


def _plan_of_table(flat: Tensor, starts: Sequence[int]) -> TablePlan:
    """The plan of places, which are negative for zeros; inputs begin at `starts`."""
    numbers = flat.numpy()
    is_zero = numbers < 0
    follows = np.diff(numbers) == 1
    follows &= ~np.isin(numbers[1:], starts)
    breaks = (~(follows | (is_zero[1:] & is_zero[:-1]))).nonzero()[0] + 1
    row = int(np.gcd.reduce(breaks, initial=len(numbers)))
    if row < _SHORTEST or len(numbers) // row > _MOST_TABLED:
        raise NotFusible("its rows are short, or too many for a table")
    firsts = numbers[::row]
    sources = np.where(firsts < 0, -1, np.searchsorted(starts, firsts, side="right") - 1)
    parts = []
    for source in np.unique(sources):
        (targets,) = (sources == source).nonzero()
        begin = starts[source] if source >= 0 else 0
        begins = tuple((firsts[targets] - begin).tolist()) if source >= 0 else ()
        parts.append(RowsFrom(int(source) if source >= 0 else None, begins, tuple(targets.tolist())))
    return TablePlan(row, tuple(parts))


def _padded(x: Tensor, pad: Sequence[int], value: float = 0) -> Any:
    if value:
        raise NotFusible("it is padded by another number than zero")
    return torch.constant_pad_nd(x, pad, -1)


def axes_of(flat: Tensor) -> list[tuple[int, int]]:
    """Extents and strides of an array of places, innermost first. Raises NotFusible if it has no few axes."""
    axes: list[tuple[int, int]] = []
    while flat.numel() > 1:
        steps = flat[1:] - flat[:-1]
        stride = int(steps[0])
        breaks = (steps != stride).nonzero().reshape(-1) + 1
        extent = int(np.gcd.reduce(breaks.numpy(), initial=flat.numel()))
        if extent == 1 or len(axes) > _MOST_AXES:
            raise NotFusible("its elements have no axes")
        axes.append((extent, stride))
        flat = flat[::extent]
    return axes or [(1, 1)]


#: Operators that move what they read -> what computes the places of their elements, -1 for zeros.
_COPIED: Mapping[str, Callable[..., Any]] = {name: OPERATORS[name] for name in COPIES - MOVES} | {
    "constant_pad_nd": _padded
}


class _CopyKernel(KernelWriter):
    """Writes the kernel."""

    def kernel(self, plan: CopyPlan) -> str:
        """The kernel and the function that launches it."""
        self.plan = plan
        self.write("%part = hal.interface.workgroup.id[0] : index")
        first = self.affine(f"part * {plan.part}", part="%part")
        last = self.affine(f"part * {plan.part} + {plan.part}, {plan.rows}", kind="min", part="%part")
        self.loop(first, last, 1, self._row)
        return self.text(-(-plan.rows // plan.part))

    def _row(self, row: str, _: Sequence[str]) -> tuple[str, ...]:
        plan = self.plan
        source, inner = self.constant(plan.offset), 1
        for extent, stride in zip(reversed(plan.extents), reversed(plan.strides), strict=True):
            expression = f"source + ((row floordiv {inner}) mod {extent}) * {stride}"
            source = self.affine(expression, source=source, row=row)
            inner *= extent
        target = self.affine(f"row * {plan.row}", row=row)

        def write(start: str, lanes: int) -> None:
            mask = self.first_lanes(lanes)
            value = self.load(0, self.affine("at + start", at=source, start=start), LANES, mask)
            self.store(value, 1, self.affine("at + start", at=target, start=start), LANES, mask)

        self.parts(plan.row, write, _UNROLLED)
        return ()


class _TableKernel(KernelWriter):
    """Writes a kernel that looks up where rows are."""

    def kernel(self, plan: TablePlan) -> str:
        """The kernel and the function that launches it."""
        self.plan = plan
        self.write("%group = hal.interface.workgroup.id[0] : index")
        for each in plan.parts:
            self._rows(each)
        return self.text(plan.workgroups)

    def _rows(self, part: RowsFrom) -> None:
        count = len(part.targets)
        share = -(-count // self.plan.workgroups)
        first = self.affine(f"group * {share}, {count}", kind="min", group="%group")
        last = self.affine(f"group * {share} + {share}, {count}", kind="min", group="%group")
        targets = self.table(part.targets, "i32")
        starts = self.table(part.starts, "i32") if part.source is not None else ""

        def copy(row: str, _: Sequence[str]) -> tuple[str, ...]:
            number = self._looked_up(targets, row, count)
            target = self.affine(f"number * {self.plan.row}", number=number)
            start = self._looked_up(starts, row, count) if starts else ""

            def write(at: str, lanes: int) -> None:
                mask = self.first_lanes(lanes)
                value = self.constant("0.0", VECTOR)
                if part.source is not None:
                    value = self.load(part.source, self.affine("start + at", start=start, at=at), LANES, mask)
                self.store(value, len(self.inputs), self.affine("to + at", to=target, at=at), LANES, mask)

            self.parts(self.plan.row, write, _UNROLLED)
            return ()

        self.loop(first, last, 1, copy)

    def _looked_up(self, table: str, at: str, count: int) -> str:
        number = self.let(f"memref.load {table}[{at}] : memref<{count}xi32>")
        return self.let(f"arith.index_cast {number} : i32 to index")

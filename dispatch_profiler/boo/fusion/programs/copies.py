"""Programs of views that move rows of elements as one copy. IREE makes a kernel of each permutation of them.

tokens of 144 channels, reordered by windows of 2 x 2 pixels: one copy of rows of 144 elements, not three permutations
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.kernel_text import LANES, KernelWriter
from dispatch_profiler.boo.fusion.programs.operators import stored
from dispatch_profiler.boo.fusion.programs.strided import places
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.boo.launching.torch_types import Tensor

#: Elements of a result at most: their places are computed one by one.
_MOST_ELEMENTS = 2**24
#: Consecutive elements at least, axes at most, elements of a workgroup, and workgroups at most.
_SHORTEST, _MOST_AXES, _ELEMENTS, _MOST_WORKGROUPS = LANES, 8, 8192, 128
#: Vectors of a row from which on the kernel has a loop over them.
_UNROLLED = 8


def copy_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernel. Raises NotFusible."""
    plan = copy_plan(program)
    return _CopyKernel(function, program.operands, program.results).kernel(plan)


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


@lru_cache(maxsize=64)
def copy_plan(program: Calls) -> CopyPlan:
    """The plan of a program. Raises NotFusible if it has more than one input and views, or moves shorter rows."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    if len(program.inputs) != 1 or math.prod(program.outputs[0].shape) > _MOST_ELEMENTS:
        raise NotFusible("it has several inputs, or many elements")
    unset: Any = unset_fake_temporarily
    with unset(), torch.no_grad():
        found, _ = places(program, {})
        flat = stored(found, program.outputs[0]).reshape(-1)
        axes, offset = _axes(flat), int(flat[0])
    (row, stride), outer = axes[0], axes[1:]
    if stride != 1 or row < _SHORTEST or len(outer) > _MOST_AXES:
        raise NotFusible("its rows are short")
    extents, strides = ([each[at] for each in reversed(outer)] for at in range(2))
    return CopyPlan(row, offset, tuple(extents), tuple(strides))


def _axes(flat: Tensor) -> list[tuple[int, int]]:
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

"""Programs that write rows to a tensor at given positions, such as the keys of a token to a cache.

The result has the memory of the tensor if the kernel gets the same memory for both. Then only the rows are written.
Otherwise the kernel first copies the tensor, so that it computes the same as torch's operator anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.copies import axes_of
from dispatch_profiler.boo.fusion.programs.operators import MOVES, UPDATES
from dispatch_profiler.boo.fusion.programs.strided import places
from dispatch_profiler.boo.fusion.programs.values import POSITIONS, CacheUpdate, Calls
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, KernelWriter

#: Axes of rows at most, vectors of a row from which on the kernel has a loop over them, and elements of a workgroup.
_MOST_AXES, _UNROLLED, _ELEMENTS = 8, 8, 8192


def checked_positions(update: CacheUpdate, positions: Tensor) -> Tensor:
    """`positions` as the kernel reads them. Raises IndexError, as torch does, if one is not in the cache."""
    least, most = (int(each) for each in _limits(positions))
    lowest = -update.extent if update.wraps else 0
    if least < lowest or most >= update.extent:
        bad = least if least < lowest else most
        raise IndexError(
            f"index {bad} is out of bounds for dimension {update.axis} with size {update.extent}"
        )
    if least < 0:
        positions = torch.where(positions < 0, positions + update.extent, positions)
    return positions.reshape(-1).to(torch.int32)


def _limits(positions: Tensor) -> tuple[Any, Any]:
    if positions.numel() == 1:
        only = positions.item()
        return only, only
    return cast(tuple[Any, Any], torch.aminmax(positions))


def update_of(program: Calls) -> CacheUpdate:
    """The update that ends a program, after views of its rows. Raises NotFusible for other programs."""
    *views, (name, arguments, named) = program.parsed_calls
    last = len(program.inputs) + len(views)
    if name not in UPDATES or named or program.returned != (last,):
        raise NotFusible("it does not end with an update")
    cache = arguments[0]["value"]
    if name == "index_copy":
        axis, positions = arguments[1], arguments[2]["value"]
    else:
        ((axis, given),) = [(at, each) for at, each in enumerate(arguments[1]) if each is not None]
        positions = given["value"]
    if any(each >= len(program.inputs) for each in (cache, positions)):
        raise NotFusible("it computes the tensor that it updates, or positions")
    shape = program.inputs[cache].shape
    (count,) = program.inputs[positions].shape
    if program.inputs[positions].type != POSITIONS or not -len(shape) <= axis < len(shape):
        raise NotFusible(f"it has no positions along the axis {axis}")
    return CacheUpdate(cache, positions, axis % len(shape), shape, count, wraps=name == "index_put")


@dataclass(frozen=True)
class _RowsPlan:
    """Where rows are in an input: the first one at `offset`, the others along axes, outermost first."""

    source: int
    offset: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]


@lru_cache(maxsize=64)
def rows_plan(program: Calls) -> _RowsPlan:
    """The plan of a program that is an update. Raises NotFusible if it computes something, or if rows have gaps."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    update = update_of(program)
    unset: Any = unset_fake_temporarily
    taken: dict[str, Callable[..., Any]] = {
        "index_copy": lambda _, axis, positions, rows: rows,
        "index_put": lambda _, positions, rows, *options: rows,
    }
    if any(name not in MOVES for name, _, _ in program.parsed_calls[:-1]):
        raise NotFusible("it computes rows")
    with unset(), torch.no_grad():
        found, starts = places(program, taken, unread=(update.cache, update.positions))
        rows = found.reshape(update.outer * update.count, update.row)
        firsts = rows[:, 0]
        if not torch.equal(rows, firsts[:, None] + torch.arange(update.row, device="cpu")):
            raise NotFusible("its rows have gaps")
        axes, first = axes_of(firsts), int(firsts[0])
    if len(axes) > _MOST_AXES:
        raise NotFusible("its rows have many axes")
    (source,) = {at for at in range(len(program.inputs)) if at not in (update.cache, update.positions)}
    extents, strides = (tuple(each[at] for each in reversed(axes)) for at in range(2))
    return _RowsPlan(source, first - starts[source], extents, strides)


def update_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernel. Raises NotFusible."""
    plan = rows_plan(program)
    return _UpdateKernel(function, program.operands, program.results).kernel(update_of(program), plan)


class _UpdateKernel(KernelWriter):
    """Writes the kernel. A workgroup has the rows of some places in the outer axes."""

    def kernel(self, update: CacheUpdate, plan: _RowsPlan) -> str:
        """The kernel and the function that launches it."""
        self.update, self.plan = update, plan
        part = min(update.outer, max(1, _ELEMENTS // (update.count * update.row)))
        self.write("%group = hal.interface.workgroup.id[0] : index")
        first = self.affine(f"group * {part}", group="%group")
        last = self.affine(f"group * {part} + {part}, {update.outer}", kind="min", group="%group")
        cache, result = (
            self.let(f"memref.extract_aligned_pointer_as_index %buffer{at} : {self.buffers[at]} -> index")
            for at in (update.cache, len(self.inputs))
        )
        self.write(f"scf.if {self.let(f'arith.cmpi ne, {cache}, {result} : index')} {{")
        self.loop(first, last, 1, self._copy_cache)
        self.write("}")
        self.loop(first, last, 1, self._write_rows)
        return self.text(-(-update.outer // part))

    def _copy_cache(self, place: str, _: Sequence[str]) -> tuple[str, ...]:
        elements = self.update.extent * self.update.row
        start = self.affine(f"place * {elements}", place=place)
        self._copy(self.update.cache, start, start, elements)
        return ()

    def _write_rows(self, place: str, _: Sequence[str]) -> tuple[str, ...]:
        def write(number: str, _: Sequence[str]) -> tuple[str, ...]:
            self._write_row(place, number)
            return ()

        self.loop(self.constant(0), self.constant(self.update.count), 1, write)
        return ()

    def _write_row(self, place: str, number: str) -> None:
        update, plan = self.update, self.plan
        source, inner = self.constant(plan.offset), 1
        row = self.affine(f"place * {update.count} + number", place=place, number=number)
        for extent, stride in zip(reversed(plan.extents), reversed(plan.strides), strict=True):
            expression = f"source + ((row floordiv {inner}) mod {extent}) * {stride}"
            source = self.affine(expression, source=source, row=row)
            inner *= extent
        stored = self.let(
            f"memref.load %buffer{update.positions}[{number}] : {self.buffers[update.positions]}"
        )
        position = self.let(f"arith.index_cast {stored} : {POSITIONS} to index")
        expression = f"(place * {update.extent} + position) * {update.row}"
        self._copy(plan.source, source, self.affine(expression, place=place, position=position), update.row)

    def _copy(self, buffer: int, source: str, target: str, count: int) -> None:
        """Copy elements from a buffer to the result."""

        def write(start: str, lanes: int) -> None:
            mask = self.first_lanes(lanes)
            value = self.load(buffer, self.affine("at + start", at=source, start=start), LANES, mask)
            to = self.affine("at + start", at=target, start=start)
            self.store(value, len(self.inputs), to, LANES, mask)

        self.parts(count, write, _UNROLLED)

"""The microkernels that multiply along terms if none was tuned, by a rule that follows measurements.

The rule estimates the cycles of the busiest core for each register tile and each way to divide the work. Its constants were
fitted to 19 products of 1 to 128 rows on 1 and 2 threads of a Zen 4, and 21 of 1 to 197 rows on 16 threads of a Xeon, in up
to 17 register tiles each. Its choices take 1.02 times as long as the fastest of these and of the microkernel that copies
filters (geometric mean).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import DotMicrokernel
from dispatch_profiler.configurations.cpu.dot_microkernel import ROWS, registers_needed
from dispatch_profiler.configurations.cpu.microkernel import registers_available, vector_lanes
from dispatch_profiler.configurations.cpu.plans.dot import FILTERS, DotPlan, shape_reason
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.packed_microkernels import has_known_vectors

#: Parts of all rows, and workgroups of a core at most.
_PARTS, _OF_CORE = (1, 2, 3, 4, 6, 8), 8
#: Cycles of a multiply-add, of a load, and of a chain of multiply-adds that are too few to hide their latency.
_MULTIPLY, _LOAD, _LATENCY = 0.5, 1.4, 2.5
#: Rows at most of bf16 and f16.
_FEW_ROWS = 16
#: Cycles of converting a vector of narrower elements to f32: two instructions.
_WIDEN = 1.0
_FEWEST_SUMS = 8
#: Bytes that stay in the first and in the second cache, and cycles of loading a vector from the second and the third one.
_FIRST_CACHE, _SECOND_CACHE, _LARGE_CACHE, _THIRD_CACHE = 2**15, 0.4, 2**20, 1.6
#: Cycles of reading a byte of filters for the first time, which is prefetched, and more for each filter that is read at the
#: same time; and of reading a byte of rows.
_FILTERS, _STREAM, _ROW_BYTES = 0.047, 0.0055, 0.085
#: Cycles of a register tile, of adding up the lanes of a sum, and of the epilogue of a row.
_TILE, _FOLD, _STORE = 25, 1, 10
#: Cycles of starting a workgroup, and the part of a round that cores wait for the slowest of them.
_WORKGROUP, _WAITING = 4000, 0.5


def ranked_dot_microkernels(
    operation: Operation, target: Target, threads: int | None = None
) -> tuple[DotMicrokernel, ...]:
    """Microkernels that multiply along terms, the likely fastest on `threads` first (default: those at hand).

    One for each register tile. Empty if none is valid, if the vectors of `target` have another or an unknown
    width, and for many rows in bf16 and f16: converting them to f32 takes too long.
    """
    if not has_known_vectors(target) or shape_reason(operation):
        return ()
    threads, lanes = threads or usable_threads(), vector_lanes(target.limits)
    whole = DotMicrokernel((1, 4), (1, 4), lanes).plan(operation)
    if whole.types[1] not in ("f32", "i8") and whole.rows > _FEW_ROWS:
        return ()
    best: dict[tuple[int, int], tuple[float, DotMicrokernel]] = {}
    for each in _divided(whole, threads):
        if each.invalid_reason(operation, target.limits) is None:
            cycles = dot_cycles(each, operation, threads)
            if each.registers not in best or cycles < best[each.registers][0]:
                best[each.registers] = cycles, each
    return tuple(each for _, each in sorted(best.values(), key=lambda pair: pair[0]))


def dot_cycles(kernel: DotMicrokernel, operation: Operation, threads: int | None = None) -> float:
    """Cycles until the last core is done that the rule expects on `threads` (default: those at hand)."""
    plan, threads = kernel.plan(operation), threads or usable_threads()
    rows, filters = min(plan.distribution[0], plan.rows), min(plan.distribution[1], plan.filters)
    tiles = plan.row_tiles * -(-filters // plan.registers[1])
    computing = tiles * (-(-plan.terms // plan.lanes) * _step_cycles(plan, rows) + _tile_cycles(plan))
    reading = plan.filter_bytes * filters * (_FILTERS + _STREAM * plan.registers[1])
    rounds = math.ceil(math.prod(plan.workgroups) / threads)
    each = _WORKGROUP + computing + reading + plan.row_bytes * rows * _ROW_BYTES
    return rounds * each / (1 - _WAITING / rounds)


def _step_cycles(plan: DotPlan, rows: int) -> float:
    """Cycles of multiplying a vector of terms in a register tile of a workgroup with so many rows."""
    height, width = plan.registers
    if plan.is_i8:
        other = _MULTIPLY * (width + height)
    else:
        other = _WIDEN * (width * (plan.types[1] != "f32") + height * (plan.types[0] != "f32"))
    step = max(_MULTIPLY * height * width + other, _LOAD * (height + width))
    if height * width < _FEWEST_SUMS:
        step = max(step, _LATENCY)
    if plan.row_bytes * rows > _FIRST_CACHE:
        step += (_SECOND_CACHE if plan.row_bytes * rows < _LARGE_CACHE else _THIRD_CACHE) * height
    if plan.row_tiles > 1 and plan.filter_bytes * width > _FIRST_CACHE:
        step += _SECOND_CACHE * width
    return step


def _tile_cycles(plan: DotPlan) -> float:
    """Cycles of a register tile besides multiplying."""
    height, width = plan.registers
    return _TILE + height * (_FOLD * width + _STORE)


def _divided(whole: DotPlan, threads: int) -> Iterator[DotMicrokernel]:
    """Each register tile with the workgroups that keep `threads` busy; some may be invalid. `whole` gives the extents."""
    for width in FILTERS:
        blocks = -(-whole.filters // width)
        for height in range(1, min(ROWS, whole.rows) + 1):
            tiles = -(-whole.rows // height)
            needed = registers_needed(replace(whole, registers=(height, width)))
            if needed > registers_available(whole.lanes):
                continue
            for parts in {min(parts, tiles) for parts in _PARTS}:
                for shares in {min(max(threads * n // parts, 1), blocks) for n in range(1, _OF_CORE + 1)}:
                    distribution = -(-tiles // parts) * height, -(-blocks // shares) * width
                    yield DotMicrokernel(distribution, (height, width), whole.lanes)

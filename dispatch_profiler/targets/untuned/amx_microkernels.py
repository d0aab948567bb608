"""The AMX microkernel that computes an operation of bf16 or i8 if none was tuned, by a rule that follows measurements.

The rule estimates the cycles of each way to divide the work, and takes the fewest: the instructions of the busiest core,
reading pixels and filters for the first time, finishing sums, and waiting for the slowest core. Of 24 products and
convolutions on 16 cores of a Xeon with AMX, its choices take 1.07 times as long as the fastest of some 14 ways, and at
most 1.22 times; without the cycles of reading and waiting, 1.23 times. These launches take 0.7 of eager torch's time, and
1.1 times as long as operators of oneDNN with packed weights; on 2 cores, 0.6 and 0.75.

Later, five products and convolutions of BERT, ViT and ResNet in 19 ways each, on 8 and 16 threads of such a CPU, two of
which share a core: register blocks of 48 x 16, which the rule chose for most of them, took 1.06 to 1.5 times as long as
the fastest way. So they are not chosen any more, and the cycles of a step are those measured on one thread, where tiles of
pixels come from the second cache. Of the ways that were measured, the rule's first choices now take 1.11 times as long as
the fastest one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dispatch_profiler.configurations import AmxMicrokernel
from dispatch_profiler.configurations.cpu.amx import REGISTERS
from dispatch_profiler.configurations.cpu.plans.amx import AmxPlan, shape_reason
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: Register blocks that are chosen.
_REGISTERS = tuple(each for each in REGISTERS if each != (48, 16))
#: Tiles of pixels and of filters of a register block -> cycles of a step, which reads them and multiplies each by each.
_STEP = {(2, 2): 160, (1, 3): 138, (1, 2): 84, (2, 1): 94, (1, 1): 50}
#: Cycles of finishing a tile of sums, and of starting a workgroup.
_FINISH, _WORKGROUP = 200, 2000
#: Cycles of reading a byte for the first time.
_FIRST_READ = 0.15
#: The part of a round that cores wait for the slowest of them.
_WAITING = 0.4
#: Pixels and register blocks of a workgroup that are tried, relative to an equal share of each core.
_SHARES = (1, 2, 3, 4, 6, 8)
#: With fewer rows, packing a weight in each call takes longer than the product.
_FEW_ROWS = 64


def amx_microkernel(operation: Operation, target: Target, *, packs_weight: bool) -> AmxMicrokernel | None:
    """The AMX microkernel that keeps all cores of this machine busy; None if no microkernel is likely to be fast.

    Without `packs_weight`, the weight is packed in each call.
    """
    fastest = next(iter(ranked_amx(operation, target, packs_weight=packs_weight)), None)
    if fastest is None or packs_weight:
        return fastest
    plan = fastest.plan(operation)
    return fastest if plan.lines.all_tiles * plan.lines.rows >= _FEW_ROWS else None


def ranked_amx(operation: Operation, target: Target, *, packs_weight: bool) -> tuple[AmxMicrokernel, ...]:
    """AMX microkernels, the likely fastest on the threads at hand first; empty if none is valid."""
    limits, threads = target.limits, usable_threads()
    if shape_reason(operation) or operation.as_contraction().types.inputs not in limits.amx_types:
        return ()
    candidates = dict.fromkeys(_candidates(operation, threads, packed=packs_weight))
    valid = (each for each in candidates if each.invalid_reason(operation, limits) is None)
    return tuple(sorted(valid, key=lambda each: amx_cycles(each, operation, threads)))


def amx_cycles(microkernel: AmxMicrokernel, operation: Operation, threads: int) -> float:
    """Cycles that the rule expects on `threads`."""
    return _cycles(microkernel.plan(operation), threads)


def _candidates(operation: Operation, cores: int, *, packed: bool) -> Iterator[AmxMicrokernel]:
    """Register blocks, each with the workgroups that give every core some."""
    for registers in _REGISTERS:
        plan = AmxMicrokernel(registers, registers).plan(operation)
        rows = -(-plan.lines.all_tiles // plan.tiles[0])
        for parts in {min(rows, cores * share) for share in _SHARES}:
            for shares in {min(plan.blocks, cores * share) for share in _SHARES} | {1}:
                down, right = -(-rows // parts) * registers[0], -(-plan.blocks // shares) * registers[1]
                yield AmxMicrokernel((down, right), registers, packed)


def _cycles(plan: AmxPlan, cores: int) -> float:
    """Cycles until the last core is done."""
    down, right = plan.tiles
    tiles, blocks = (
        min(plan.lines.all_tiles, plan.tiles_of_workgroup),
        min(plan.blocks, plan.blocks_of_workgroup),
    )
    rounds = math.ceil(math.prod(plan.workgroups) / cores)
    block = plan.instructions * _STEP[plan.tiles] + _FINISH * down * right
    sums = blocks * math.ceil(tiles / down) * block
    first = plan.bytes * (blocks * plan.panel + tiles * plan.lines.rows * plan.terms)
    return rounds * (_WORKGROUP + sums + _FIRST_READ * first) / (1 - _WAITING / rounds)

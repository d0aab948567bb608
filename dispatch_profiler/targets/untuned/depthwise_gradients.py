"""The kernels for the gradient of depthwise filters if none was tuned, by a rule that follows measurements.

The tiles of a strip follow from its width; the division of the work is the one that an estimate of the busiest core's cycles
prefers. Milliseconds on two threads of a Zen 4, f32, 8 images, channels last; "fastest" of 24 ways, and, measured at another
time, the rule's best choice:

                                torch    fastest    rule
    56x56x72 3x3                 0.67       0.41    0.48
    112x112x64 3x3, stride 2     1.52       1.02    0.84
    14x14x480 3x3                0.24       0.17    0.21
    56x56x72 5x5, stride 2       1.91       0.25    0.32
    28x28x120 5x5                2.80       0.25    0.31
    14x14x672 5x5, stride 2      1.93       0.15    0.17
    7x7x960 5x5                  2.02       0.15    0.15
    56x56x96 7x7                17.78       1.23    1.51
    7x7x768 7x7                  3.94       0.16    0.18
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dispatch_profiler.configurations import DepthwiseGradient
from dispatch_profiler.configurations.cpu.microkernel import vector_lanes
from dispatch_profiler.configurations.cpu.plans.depthwise_gradient import DepthwiseGradientPlan, shape_reason
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.packed_microkernels import has_known_vectors

#: Pixels of a tile at most; those of a strip, whose channels of a block stay in the first cache; vectors of a block at most.
_PIXELS, _STRIP, _VECTORS = 7, 112, 4
#: Workgroups of a core at most.
_OF_CORE = 4
#: Cycles of a multiply-add, and of adding a vector of sums of a strip to those in memory.
_MULTIPLY, _SUM = 1.0, 4.0
#: Sums that hide the latency of a multiply-add.
_ENOUGH_SUMS = 6
#: Cycles of reading a byte for the first time, and of finding the channels of a workgroup in a pixel.
_FIRST_READ, _PART_OF_PIXEL = 0.15, 5.0
#: Cycles of storing a sum of a workgroup, of adding a partial sum, and of the dispatch that adds.
_STORE, _ADD, _DISPATCH = 3.0, 0.5, 20_000
#: Cycles of starting a workgroup, and the part of a round that cores wait for the slowest of them.
_WORKGROUP, _WAITING = 4000, 0.4


def ranked_depthwise_gradients(
    operation: Operation, target: Target, threads: int | None = None
) -> tuple[DepthwiseGradient, ...]:
    """The kernels for the gradient of depthwise filters, the likely fastest on `threads` first (default: those at hand).

    There is one for each width of blocks of channels. Empty for other operations, and if the vectors of `target` have
    another or an unknown width.
    """
    if not has_known_vectors(target) or shape_reason(operation):
        return ()
    threads = threads or usable_threads()
    lanes = vector_lanes(target.limits)
    whole = DepthwiseGradient((1, lanes), (1, 1, lanes), lanes).plan(operation)
    best: dict[int, tuple[float, DepthwiseGradient]] = {}
    for each in _divided(whole, threads):
        if each.invalid_reason(operation, target.limits) is None:
            cycles, block = _cycles(each.plan(operation), threads), each.registers[2]
            if block not in best or cycles < best[block][0]:
                best[block] = cycles, each
    return tuple(each for _, each in sorted(best.values(), key=lambda pair: pair[0]))


def _divided(whole: DepthwiseGradientPlan, threads: int) -> Iterator[DepthwiseGradient]:
    """Each width of blocks, with as many workgroups as threads, or a few times as many. `whole` gives the extents."""
    columns, lanes = whole.columns, whole.lanes
    pixels = _equal(columns, _PIXELS)
    rows = _equal(whole.rows, max(_STRIP // columns, 1))
    strips = whole.images * -(-whole.rows // rows)
    for vectors in range(1, min(_VECTORS, -(-whole.channels // lanes)) + 1):
        block = vectors * lanes
        blocks = -(-whole.channels // block)
        for count in range(threads, _OF_CORE * threads + 1, threads):
            for shares in range(1, min(count, blocks) + 1):
                parts = min(count // shares, strips)
                distribution = -(-strips // parts), -(-blocks // shares) * block
                yield DepthwiseGradient(distribution, (rows, pixels, block), lanes)


def _equal(extent: int, most: int) -> int:
    """The size of as few parts of `extent` as possible, of at most `most` each and about equal."""
    return -(-extent // -(-extent // most))


def _cycles(plan: DepthwiseGradientPlan, threads: int) -> float:
    """Cycles until the last core is done."""
    strips, channels = plan.distribution
    rows = plan.registers[0]
    sums = plan.right.taps * plan.vectors
    latency = max(_ENOUGH_SUMS / sums, 1)
    row_of_taps = sums * (_MULTIPLY * latency * rows * plan.columns + _SUM)
    multiplying = strips * channels // plan.block * plan.down.taps * row_of_taps
    pixels = strips * rows * (plan.columns + plan.right.size * plan.down.size / plan.rows)
    reading = pixels * (4 * _FIRST_READ * min(channels, plan.channels) + _PART_OF_PIXEL)
    rounds = math.ceil(math.prod(plan.workgroups) / threads)
    work = rounds * (_WORKGROUP + multiplying + reading + _STORE * plan.sums) / (1 - _WAITING / rounds)
    adding = _DISPATCH + _ADD * plan.buffers[2] / threads if plan.parts > 1 else 0.0
    return work + adding

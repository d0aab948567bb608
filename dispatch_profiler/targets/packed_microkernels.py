"""The microkernel that computes an operation with a constant weight if none was tuned, by a rule that follows measurements.

GFLOP/s, two cores of a Xeon with AVX-512, f32. The microkernel is the first that its rule suggests. The form is that of
`fastest_form` with packed weights; two products have none. Torch does not pack:

                                   microkernel    form    torch
    14x14x384 3x3 384                      379     255      331
    14x14x256 3x3 256, 4 images            388     277      382
    28x28x96 3x3 192, stride 2             268     210      297
    56x56x48 1x1 96, 2 images              224      95      305
    14x14x512 1x1 1024                     341     232      315
    28x28x320 1x1 160, 4 images            333     241      355
    7x7x832 1x1 384                        172     139      187
    10x10x128 3x3 128, 2 images            254     164      255
    56x56x64 3x3 64                        326     291      360
    7x7x320 1x1 1280                       188     148      280
    112x112x32 1x1 16                      105      80      156
    14x14x112 1x1 672, 16 images           304     190      335
    64x1024x1024                           239     190      269
    512x4096x1024                          374     269      361
    197x2304x768                           356              293
    577x1024x4096                          375              381
    32x512x512                             129     167      206
    16x4096x4096                           150     234      116
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import Limits, Microkernel
from dispatch_profiler.configurations.space import divisors
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: Bytes of a vector. With narrower ones, sums do not stay in registers.
_VECTOR = 64
#: With at most so many pixels, or rows of a product, forms that read the weight once are faster.
_FEW_PIXELS = 32
#: Workgroups of a core at most, and of an image, even if there are more images than cores.
_OF_CORE, _OF_IMAGE = 4, 8
#: The part of all cores' time that is spent on results, at least.
_BUSY = 0.75
#: The part of a round that cores wait for the slowest one.
_WAITING = 0.25


def packed_microkernel(operation: Operation, target: Target) -> Microkernel | None:
    """The likeliest microkernel that packs the weight and keeps all cores of this machine busy.

    None if none does, if vectors of `target` do not have the width of its own, or if their width is not known.
    """
    if target.limits.vector_bytes != _VECTOR:
        return None
    likely = Microkernel.likely(operation, target.limits, packed_weights=True)
    for each in {each.registers: each for each in likely if each.packed}.values():
        plan = each.plan(operation)
        if plan.images * plan.rows * plan.columns <= _FEW_PIXELS:
            return None
        divided = list(_divided(each, operation, target.limits, len(usable_cores())))
        if divided:
            return max(divided, key=lambda found: found[0])[1]
    return None


def _divided(
    tile: Microkernel, operation: Operation, limits: Limits, cores: int
) -> Iterator[tuple[tuple[float, int], Microkernel]]:
    """`tile` with the workgroups that keep `cores` busy, and the rank of each: the highest is the best.

    Cores do nothing useful where workgroups are too few for the last round, and where the last register tile of a
    workgroup has fewer rows. With more rounds, cores of unequal speed wait less for each other. Of workgroups that are
    as good, those that divide the filters are better.
    """
    plan = tile.plan(operation)
    blocks = plan.filters // plan.block
    most = max(_OF_IMAGE, _OF_CORE * cores // plan.images)
    for parts in divisors(plan.rows, most):
        rows = plan.rows // parts
        for shares in divisors(blocks, most // parts):
            divided = replace(tile, distribution=(rows, blocks // shares * plan.block))
            workgroups = parts * shares * plan.images
            rounds, tiles = math.ceil(workgroups / cores), math.ceil(rows / plan.registers[0])
            busy = workgroups / (rounds * cores) * rows / (tiles * plan.registers[0])
            if workgroups >= cores and busy >= _BUSY and divided.invalid_reason(operation, limits) is None:
                yield (busy * (1 - _WAITING / rounds), -parts), divided

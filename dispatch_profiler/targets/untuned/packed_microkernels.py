"""The microkernel that computes an operation with a constant weight if none was tuned, by a rule that follows measurements.

`benchmarks/untuned.py` on two cores of a Xeon with AVX-512, f32, GFLOP/s. The form is `fastest_form`'s with packed
weights; `-` means that it has no form, so that the compiler's default would run. "packed" is torch with weights packed by
oneDNN or MKL:

                                   microkernel    form    packed    torch
    14x14x384 3x3 384                      392     271       380      321
    14x14x256 3x3 256, 4 images            402     283       389      349
    28x28x96 3x3 192, stride 2             372     279       328      272
    10x10x128 3x3 128, 2 images            407     188       340      252
    56x56x64 3x3 64                        372     345       365      355
    56x56x48 1x1 96, 2 images              345     139       222      244
    14x14x512 1x1 1024                     356     266       340      279
    28x28x320 1x1 160, 4 images            336     278       338      321
    7x7x832 1x1 384                        353     273       262      172
    14x14x112 1x1 672, 16 images           357     246       299      287
    14x14x256 1x1 256                      282     328       250      207
    14x14x576 1x1 96                       341     198       242      175
    28x28x192 1x1 32                       351     357       157      132
    7x7x512 1x1 2048, 8 images             346     269       320      244
    33x4096x4096                           254       -       212      165
    64x1024x1024                           332     271       350      259
    128x3072x768                           385     263       379      328
    197x768x2304                           368       -       371      325
    512x1024x4096                          373     263       384      356
    8192x512x512                           383     272       352      366

Geometric means of the microkernel's speed relative to the others, of 35 operations (34 on 6 and 16 cores), of
which 30 (29) have a form. 6 and 16 cores were measured on another such Xeon; five choices of the rule for 16
cores have changed since:

                                                   form    packed    torch
    2 cores                                        1.33      1.15     1.30
    6 cores                                        1.24      1.32     1.50
    16 cores                                       1.45      2.53     2.61

An earlier rule had 8 workgroups per image: on 6 cores, its kernels took 1.11 times as long.
With 32 and 16 rows it was slower than forms that read the weight once: 129 against 167 GFLOP/s for 32x512x512, 150
against 234 for 16x4096x4096.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import Limits, Microkernel
from dispatch_profiler.configurations.space import divisors
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: Bytes of a vector. With narrower vectors, sums do not stay in registers.
_VECTOR = 64
#: With at most so many pixels, or rows of a product, forms that read the weight once are faster.
_FEW_PIXELS = 32
#: Workgroups of a core at most, and of an image, even if there are more images than cores.
_OF_CORE, _OF_IMAGE = 4, 8
#: The part of all cores' time that is spent on results, at least.
_BUSY = 0.75
#: The part of a round that cores wait for the slowest of them.
_WAITING = 0.4


def packed_microkernel(operation: Operation, target: Target) -> Microkernel | None:
    """The likeliest microkernel that packs the weight and keeps all cores of this machine busy.

    None if no microkernel does, or if the vectors of `target` have another or an unknown width.
    """
    if target.limits.vector_bytes != _VECTOR:
        return None
    likely = Microkernel.likely(operation, target.limits, packed_weights=True)
    for each in {each.registers: each for each in likely if each.packed}.values():
        plan = each.plan(operation)
        if plan.images * plan.rows * plan.columns <= _FEW_PIXELS:
            return None
        divided = list(_divided(each, operation, target.limits, usable_threads()))
        if divided:
            return max(divided, key=lambda choice: choice[0])[1]
    return None


def _divided(
    tile: Microkernel, operation: Operation, limits: Limits, cores: int
) -> Iterator[tuple[tuple[float, int], Microkernel]]:
    """`tile` with the workgroups that keep `cores` busy, and the rank of each: the highest is the best.

    Cores do nothing useful where workgroups are too few for the last round, and where the last register tile
    of a workgroup has fewer rows. With more rounds, cores of unequal speed wait less for each other. Of
    equally good workgroups, workgroups that divide the filters are better.
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

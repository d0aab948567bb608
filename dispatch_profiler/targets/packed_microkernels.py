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

from dispatch_profiler.configurations import Microkernel
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: Bytes of a vector. With narrower ones, sums do not stay in registers.
_VECTOR = 64
#: With at most so many pixels, or rows of a product, forms that read the weight once are faster.
_FEW_PIXELS = 32


def suits_microkernels(target: Target) -> bool:
    """Whether vectors of `target` have the width of a microkernel's; False if their width is not known."""
    return target.limits.vector_bytes == _VECTOR


def packed_microkernel(operation: Operation, target: Target) -> Microkernel | None:
    """The likeliest microkernel that packs the weight and has workgroups for all cores of this machine; None if none has."""
    if not suits_microkernels(target):
        return None
    for each in Microkernel.likely(operation, target.limits, packed_weights=True):
        plan = each.plan(operation)
        has_pixels = plan.images * plan.rows * plan.columns > _FEW_PIXELS
        if each.packed and has_pixels and math.prod(plan.workgroups) >= len(usable_cores()):
            return each
    return None

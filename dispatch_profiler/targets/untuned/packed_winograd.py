"""Winograd's form with a packed weight, by rules that follow the winners of searches.

It multiplies 2.25 to 4 times less than the other forms, but transforms images before and after that, with larger rounding
errors. On 2 and 16 threads of Xeons with AVX-512, searches kept it for about half of the 3x3 convolutions with 64 to 512
channels; where its products have few rows, it loses to microkernels. So it is a candidate to measure, and no choice.
"""

from __future__ import annotations

import math

from dispatch_profiler.configurations import CpuTiles, Formed, rejection_reason
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: Tiles of the products: for numbers of rows that are multiples of 7, and for others.
_SEVENS, _EIGHTS = CpuTiles((49, 64), (7, 32, 4)), CpuTiles((64, 128), (8, 32, 4))
#: The transforms of the fewest multiplications first: the form's name, and the pixels of a tile along each axis.
_TRANSFORMS = (("winograd", 4), ("winograd_2", 2))
#: Rows of the products, one for each tile of the image, and channels of both sides, that pay for the transforms.
_ROWS, _CHANNELS = 32, 32


def packed_winograd(operation: Operation, target: Target) -> Formed | None:
    """The form that is worth measuring for a 3x3 convolution with a constant weight; None if no form is."""
    geometry, limits = operation.convolution, target.limits
    if geometry is None or limits.backend != "llvm-cpu" or geometry.mode != "forward":
        return None
    if min(geometry.channels, geometry.filters) < _CHANNELS:
        return None
    for form, pixels in _TRANSFORMS:
        rows = geometry.batch * math.prod(-(-extent // pixels) for extent in geometry.output_size)
        if rows < _ROWS:
            continue
        for tiles in (_SEVENS, _EIGHTS) if rows % _SEVENS.vector[0] == 0 else (_EIGHTS, _SEVENS):
            found = Formed(form, tiles, packed=True)
            if rejection_reason(found, operation, limits) is None:
                return found
    return None

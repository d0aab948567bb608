"""The Winograd microkernel of an untuned convolution with a constant weight, by a rule that follows measurements.

The rule estimates the cycles of each way to divide the tiles of the image, as `packed_microkernels` does. Its constants were
fitted to 19 convolutions on 2 threads and 18 on 16 threads of a Xeon with AVX-512, in some 25 ways each, except for the time
of reading filters from memory, which kernels that are measured one at a time do not show. Geometric means of the choice among
these ways, launches included; "direct" is the microkernel that `packed_microkernel` chooses:

                                            2 threads      16
    the choice's time over the fastest           1.08    1.07
    speed relative to direct                     2.03    1.21

On 16 threads, the estimate is too low for small convolutions; so the kernel is chosen where the estimate promises a third
more speed than that of the direct microkernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dispatch_profiler.configurations import WinogradMicrokernel
from dispatch_profiler.configurations.cpu.microkernel import registers_available, vector_lanes
from dispatch_profiler.configurations.cpu.plans.winograd import WinogradPlan, shape_reason
from dispatch_profiler.configurations.cpu.winograd import TRANSFORMS
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.packed_microkernels import has_known_vectors

#: Vectors of a register tile, workgroups of a core, and strips of a workgroup, at most.
_VECTORS, _OF_CORE, _STRIPS = 4, 2, 16
#: Cycles of a multiply-add, and of a load.
_MULTIPLY, _LOAD = 0.56, 0.75
#: Cycles of transforming a vector, for each product: of channels of the image, and of filters of the result.
_INPUT, _OUTPUT = 14.0, 1.0
#: Cycles of reading a byte of filters again for another strip, and of a byte between the steps that exceeds the second cache.
_FILTERS, _BEYOND = 0.057, 0.15
#: Cycles of reading a byte of filters for the first time: in a model, other layers have displaced them from the caches.
_COLD_FILTERS = 0.2
#: Bytes of the second cache that hold what lies between the steps.
_SECOND_CACHE = 700_000
#: Cycles of starting a workgroup, and the part of a round that cores wait for the slowest of them.
_WORKGROUP, _WAITING = 60_000, 0.23


def ranked_winograd(
    operation: Operation, target: Target, threads: int | None = None
) -> tuple[tuple[float, WinogradMicrokernel], ...]:
    """(cycles, microkernel) pairs, the likely fastest on `threads` first (default: those at hand).

    There is one for each number of pixels and vectors.

    Empty if no Winograd microkernel computes `operation`, or if the vectors of `target` have another or an unknown width.
    """
    if not has_known_vectors(target) or shape_reason(operation):
        return ()
    threads = threads or usable_threads()
    best: dict[tuple[int, int], tuple[float, WinogradMicrokernel]] = {}
    for each in _divided(operation, target, threads):
        plan, key = each.plan(operation), (each.pixels, each.registers[1])
        if plan.invalid_reason() is None:
            cycles = _cycles(plan, threads)
            if key not in best or cycles < best[key][0]:
                best[key] = cycles, each
    return tuple(sorted(best.values(), key=lambda pair: pair[0]))


def winograd_cycles(microkernel: WinogradMicrokernel, operation: Operation, threads: int) -> float:
    """Cycles that the rule expects on `threads`."""
    return _cycles(microkernel.plan(operation), threads)


def _divided(operation: Operation, target: Target, threads: int) -> Iterator[WinogradMicrokernel]:
    """Register tiles of each width, with the workgroups that keep `threads` busy, and their tiles in strips."""
    lanes = vector_lanes(target.limits)
    for pixels in TRANSFORMS:
        whole = WinogradMicrokernel(pixels, (1, lanes), 1, (1, lanes), lanes).plan(operation)
        for vectors in range(1, min(_VECTORS, -(-whole.filters // lanes)) + 1):
            block = vectors * lanes
            highest = (registers_available(lanes) - 1) // vectors - 1
            blocks = -(-whole.filters // block)
            for tiles, shares in _workgroups(whole.tiles, blocks, threads):
                for strips in range(1, min(_STRIPS, tiles) + 1):
                    height, strip = _strip(-(-tiles // strips), highest, tiles)
                    distribution = (tiles, blocks // shares * block)
                    yield WinogradMicrokernel(pixels, distribution, strip, (height, block), lanes)


def _workgroups(tiles: int, blocks: int, threads: int) -> list[tuple[int, int]]:
    """(tiles of a workgroup, shares of the filters) for as many workgroups as threads, or a few times as many."""
    return list(
        dict.fromkeys(
            (-(-tiles // (count // shares)), shares)
            for count in range(threads, _OF_CORE * threads + 1, threads)
            for shares in range(1, count + 1)
            if count % shares == 0 and blocks % shares == 0
        )
    )


def _strip(tiles: int, highest: int, most: int) -> tuple[int, int]:
    """The height of a register tile, and a strip of about so many tiles that it divides with little left over."""
    parts = -(-tiles // highest)
    height = -(-tiles // parts)
    return height, min(parts * height, most)


def _cycles(plan: WinogradPlan, threads: int) -> float:
    """Cycles until the last core is done."""
    tiles, filters = plan.distribution
    step = max(_MULTIPLY * plan.height * plan.vectors, _LOAD * (plan.height + plan.vectors))
    register_tiles = filters // plan.block * -(-plan.strip // plan.height)
    multiplying = plan.products * register_tiles * plan.terms * step
    panels = 4 * plan.products * plan.terms * filters
    channels = plan.plane.taps * -(-plan.channels // plan.lanes)
    results = min(filters, plan.padded_filters) // plan.lanes
    transforming = plan.strip * plan.products * (_INPUT * channels + _OUTPUT * results)
    stored = 4 * plan.products * (plan.input_stride + plan.product_stride)
    strip = multiplying + _FILTERS * panels + transforming + _BEYOND * max(stored - _SECOND_CACHE, 0)
    rounds = math.ceil(math.prod(plan.workgroups) / threads)
    computing = -(-tiles // plan.strip) * strip + (_COLD_FILTERS - _FILTERS) * panels
    return rounds * (_WORKGROUP + computing) / (1 - _WAITING / rounds)

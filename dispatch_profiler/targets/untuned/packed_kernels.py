"""The kernels of an untuned operation that pack its weight: microkernels that multiply directly, and by Winograd's form.

A constant weight is packed once. Another one is packed in every call, or workgroups copy what they multiply. Packing takes
some cycles for each byte that it writes. On two threads of a Zen 4 that other programs used too, for 8 images, milliseconds
of the forward or the gradient of the input, whichever was measured in a quieter moment:

                                    packed    packing
    56x56x64 3x3 64, Winograd          3.3        0.2
    28x28x128 3x3 128, Winograd        4.0        0.4
    14x14x256 3x3 256, Winograd        7.5        4.4
    7x7x512 3x3 512, Winograd          5.4       16
    7x7x512 3x3 512, direct           11          5.3
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from dispatch_profiler.configurations import (
    AmxMicrokernel,
    Configuration,
    Microkernel,
    PackedInCalls,
    WinogradMicrokernel,
)
from dispatch_profiler.configurations.cpu.microkernel import usual_unroll
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.amx_microkernels import amx_cycles
from dispatch_profiler.targets.untuned.packed_microkernels import likely_cycles, ranked_microkernels
from dispatch_profiler.targets.untuned.winograd_microkernels import ranked_winograd, winograd_cycles

#: How many times as fast as the direct microkernel a Winograd microkernel has to promise to be.
_ADVANTAGE = 1.3
#: How many times as many or as few workgroups are another division.
_OTHERWISE = 1.5
#: Cycles of a thread for each byte of a packed weight, and the threads from which on memory is the limit.
_PACKING, _THREADS = 4.0, 8
#: Cycles of a thread for each byte of an image that is copied to pixels with a margin, from some depthwise convolutions of a
#: Zen 4; and how many times as long another number of channels in an iteration takes, which the rules never choose.
_COPYING, _UNUSUAL = 0.4, 1.05
#: Kinds of microkernels whose speed rules know.
_KNOWN = (AmxMicrokernel, Microkernel, WinogradMicrokernel)
#: Part of the time that packing may take, and copying on few and on many threads; otherwise, forms are about as fast. On
#: many threads, they divide products of few rows badly.
_MOST_PACKING, _MOST_COPYING, _MOST_COPYING_OF_MANY = 0.4, 0.25, 0.5


def packed_kernels(operation: Operation, target: Target) -> tuple[Configuration, ...]:
    """The best microkernel of each kind for the threads at hand, the likely fastest first.

    Empty if none is valid, or if the vectors of `target` have another or an unknown width.
    """
    return best_kernels(*_best_of(operation, target))


def best_kernels(
    direct: tuple[float, Microkernel] | None, winograd: tuple[float, WinogradMicrokernel] | None
) -> tuple[Configuration, ...]:
    """Those that there are of two (cycles, microkernel) pairs, the likely faster microkernel first."""
    if direct is None or winograd is None:
        return tuple(each for _, each in filter(None, (direct, winograd)))
    is_faster = _ADVANTAGE * winograd[0] < direct[0]
    return tuple(each for _, each in ((winograd, direct) if is_faster else (direct, winograd)))


def further_kernels(
    operation: Operation, direct: Sequence[Microkernel], winograd: Sequence[WinogradMicrokernel]
) -> tuple[Configuration, ...]:
    """What is worth measuring beside the first ones of ranked microkernels of both kinds, the likeliest first.

    The second Winograd microkernel, the first direct ones that differ from the best in the register tile, and in the
    division of the work, and then the others in their order.
    """
    if not direct:
        return tuple(winograd[1:2])
    count = _workgroups(direct[0], operation)
    tiles = (each for each in direct if each.registers != direct[0].registers)
    divisions = (
        each for each in direct if not count / _OTHERWISE < _workgroups(each, operation) < _OTHERWISE * count
    )
    return tuple(dict.fromkeys((*winograd[1:2], *islice(tiles, 1), *islice(divisions, 1), *direct[1:])))


def likely_kernels(operation: Operation, target: Target) -> tuple[Configuration, ...]:
    """Microkernels of vector instructions that pack the weight, in the order in which they are worth measuring on the threads at hand.

    Empty if none is valid, or if the vectors of `target` have another or an unknown width.
    """
    direct, winograd = ranked_microkernels(operation, target), ranked_winograd(operation, target)
    best = _best(operation, direct, winograd)
    ranked = [each for _, each in winograd]
    further = further_kernels(operation, direct, ranked)
    return tuple(dict.fromkeys((*best_kernels(*best), *further, *ranked)))


def expected_cycles(configuration: Configuration, operation: Operation, threads: int) -> float | None:
    """Cycles that the rules expect of a microkernel that packs the weight on `threads`; None for other configurations.

    Those of different kinds can be compared. None also if the microkernel is not valid.
    """
    if not configuration.packs_weight or not isinstance(configuration, _KNOWN):
        return None
    if configuration.plan(operation).invalid_reason() is not None:
        return None
    if isinstance(configuration, AmxMicrokernel):
        return amx_cycles(configuration, operation, threads)
    if isinstance(configuration, WinogradMicrokernel):
        return _ADVANTAGE * winograd_cycles(configuration, operation, threads)
    plan = configuration.plan(operation)
    is_usual = configuration.unroll == usual_unroll(plan, plan.registers)
    cycles = likely_cycles(configuration, operation, threads) * (1.0 if is_usual else _UNUSUAL)
    return cycles + _margin_cycles(configuration, operation, threads)


def _margin_cycles(kernel: Microkernel, operation: Operation, threads: int) -> float:
    """Cycles of copying the image to pixels with a margin."""
    return _COPYING * operation.operands[0].bytes / min(threads, _THREADS) if kernel.margin else 0.0


def _workgroups(microkernel: Microkernel, operation: Operation) -> int:
    return math.prod(microkernel.plan(operation).workgroups)


def unpacked_kernels(operation: Operation, target: Target) -> tuple[Configuration, ...]:
    """The best microkernel of each kind that takes the weight as it is stored, the likely fastest first.

    Microkernels whose workgroups copy their filters, and those before which each call packs the weight. Without those in
    which copying or packing takes too large a part of the time, and for other types than f32, which were not measured.
    """
    if operation.element_type.name != "f32":
        return ()
    timed = list[tuple[float, Configuration]]()
    for found in _best_of(operation, target):
        if found is not None:
            cycles, kernel = found
            advantage = _ADVANTAGE if isinstance(kernel, WinogradMicrokernel) else 1.0
            packing = _packing_cycles(kernel, operation)
            if packing <= _MOST_PACKING * (cycles + packing):
                timed.append((advantage * cycles + packing, PackedInCalls(kernel)))
    most = _MOST_COPYING if usable_threads() < _THREADS else _MOST_COPYING_OF_MANY
    for kernel in ranked_microkernels(operation, target, packed=False)[:1]:
        cycles = likely_cycles(kernel, operation)
        if likely_cycles(replace(kernel, packed=True), operation) >= (1 - most) * cycles:
            timed.append((cycles, kernel))
    return tuple(kernel for _, kernel in sorted(timed, key=lambda pair: pair[0]))


Best = tuple[tuple[float, Microkernel] | None, tuple[float, WinogradMicrokernel] | None]


def _best_of(operation: Operation, target: Target) -> Best:
    """(cycles, microkernel) of the best direct microkernel, and of the best Winograd microkernel."""
    return _best(operation, ranked_microkernels(operation, target), ranked_winograd(operation, target))


def _best(
    operation: Operation,
    direct: Sequence[Microkernel],
    winograd: Sequence[tuple[float, WinogradMicrokernel]],
) -> Best:
    first = next(iter(direct), None)
    return (None if first is None else (likely_cycles(first, operation), first)), next(iter(winograd), None)


def _packing_cycles(kernel: Microkernel | WinogradMicrokernel, operation: Operation) -> float:
    elements = kernel.plan(operation).buffers[1]
    return 4 * elements * _PACKING / min(usable_threads(), _THREADS)

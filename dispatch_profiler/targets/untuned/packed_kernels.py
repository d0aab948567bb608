"""The microkernels of an untuned operation: those that multiply directly, by Winograd's form, and along terms.

A constant weight is packed once. Another one is packed in every call, or workgroups copy their filters; dot microkernels,
and microkernels that read filters in place, do neither. Packing takes some cycles for each byte that it writes. On two
threads of a Zen 4 that other programs used too, for 8 images, milliseconds of the forward or the gradient of the input,
whichever was measured in a quieter moment:

                                    packed    packing
    56x56x64 3x3 64, Winograd          3.3        0.2
    28x28x128 3x3 128, Winograd        4.0        0.4
    14x14x256 3x3 256, Winograd        7.5        4.4
    7x7x512 3x3 512, Winograd          5.4       16
    7x7x512 3x3 512, direct           11          5.3
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from dispatch_profiler.configurations import (
    AmxMicrokernel,
    Configuration,
    DotMicrokernel,
    Microkernel,
    PackedInCalls,
    WinogradMicrokernel,
)
from dispatch_profiler.configurations.cpu.microkernel import usual_unroll
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.amx_microkernels import amx_cycles
from dispatch_profiler.targets.untuned.dot_microkernels import dot_cycles, ranked_dot_microkernels
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
#: How many times as many cycles as the best kernel another kind may be expected to take and is still worth measuring.
_CLOSE = 1.3
#: Dot microkernels of an operation that are worth measuring.
_DOTS = 2
#: FLOP of a product with lhs in layout `n` from which on microkernels are faster than forms.
_SHORT_GRADIENT = 2**22
#: Part of the time that packing may take, and copying on few and on many threads; otherwise, forms are about as fast. On
#: many threads, they divide products of few rows badly.
_MOST_PACKING, _MOST_COPYING, _MOST_COPYING_OF_MANY = 0.4, 0.25, 0.5


def packed_kernels(operation: Operation, target: Target) -> tuple[Configuration, ...]:
    """The best microkernel of each kind for a constant weight and the threads at hand, the likely fastest first.

    One that multiplies along terms reads the weight as it is stored; the others pack it. Empty if none is valid, or if the
    vectors of `target` have another or an unknown width.
    """
    direct, winograd = _best_of(operation, target)
    return _with_dot(
        best_kernels(direct, winograd), direct, ranked_dot_microkernels(operation, target)[:1], operation
    )


def _with_dot(
    packing: Sequence[Configuration],
    direct: tuple[float, Microkernel] | None,
    dots: Sequence[DotMicrokernel],
    operation: Operation,
) -> tuple[Configuration, ...]:
    """Kernels that pack the weight, and `dots` before or after them, unless these are expected to be far slower.

    There are no Winograd microkernels for what dot microkernels compute.
    """
    if direct is None:
        return (*dots, *packing)
    slower = [each for each in dots if dot_cycles(each, operation) >= direct[0]]
    faster = [each for each in dots if each not in slower]
    close = [each for each in slower if dot_cycles(each, operation) < _CLOSE * direct[0]]
    return (*faster, *packing, *close)


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
    """Microkernels of vector instructions for a constant weight, in the order in which they are worth measuring on the threads at hand.

    Empty if none is valid, or if the vectors of `target` have another or an unknown width.
    """
    direct, winograd = ranked_microkernels(operation, target), ranked_winograd(operation, target)
    best = _best(operation, direct, winograd)
    ranked = [each for _, each in winograd]
    further = further_kernels(operation, direct, ranked)
    dots = ranked_dot_microkernels(operation, target)[:_DOTS]
    return tuple(
        dict.fromkeys((*_with_dot(best_kernels(*best), best[0], dots, operation), *further, *ranked))
    )


def expected_cycles(configuration: Configuration, operation: Operation, threads: int) -> float | None:
    """Cycles that the rules expect of a microkernel on `threads`; None for other configurations, and invalid microkernels.

    Those of different kinds can be compared.
    """
    if isinstance(configuration, PackedInCalls):
        cycles = expected_cycles(configuration.inner, operation, threads)
        return cycles and cycles + _packing_cycles(configuration.inner, operation, threads)
    known = _CYCLES.get(type(configuration))
    if known is None or configuration.plan(operation).invalid_reason() is not None:  # type: ignore[attr-defined]
        return None
    return known(configuration, operation, threads)


def _direct_cycles(kernel: Microkernel, operation: Operation, threads: int) -> float:
    plan = kernel.plan(operation)
    is_usual = kernel.unroll == usual_unroll(plan, plan.registers)
    cycles = likely_cycles(kernel, operation, threads) * (1.0 if is_usual else _UNUSUAL)
    return cycles + _margin_cycles(kernel, operation, threads)


def _comparable_winograd_cycles(kernel: WinogradMicrokernel, operation: Operation, threads: int) -> float:
    return _ADVANTAGE * winograd_cycles(kernel, operation, threads)


#: The kinds of microkernels whose speed rules know.
_CYCLES: Mapping[type[Configuration], Callable[..., float]] = {
    AmxMicrokernel: amx_cycles,
    DotMicrokernel: dot_cycles,
    Microkernel: _direct_cycles,
    WinogradMicrokernel: _comparable_winograd_cycles,
}


def _margin_cycles(kernel: Microkernel, operation: Operation, threads: int) -> float:
    """Cycles of copying the image to pixels with a margin."""
    return _COPYING * operation.operands[0].bytes / min(threads, _THREADS) if kernel.margin else 0.0


def _workgroups(microkernel: Microkernel, operation: Operation) -> int:
    return math.prod(microkernel.plan(operation).workgroups)


def unpacked_kernels(operation: Operation, target: Target) -> tuple[Configuration, ...]:
    """The best microkernel of each kind that takes the weight as stored, the likely fastest first.

    Microkernels that multiply along terms, those whose workgroups copy filters or read them in place, and those before which
    each call packs the weight. Without those in which copying or packing takes too large a part of the time. Of other types
    than f32, there are only kernels that multiply along terms, for weights of i8 and for few rows.
    """
    if operation.element_type.name != "f32":
        return ranked_dot_microkernels(operation, target)[:1]
    if _is_short_gradient(operation):
        return ()
    timed = list[tuple[float, Configuration]]()
    for found in _best_of(operation, target):
        if found is not None:
            cycles, kernel = found
            advantage = _ADVANTAGE if isinstance(kernel, WinogradMicrokernel) else 1.0
            packing = _packing_cycles(kernel, operation, usable_threads())
            if packing <= _MOST_PACKING * (cycles + packing):
                timed.append((advantage * cycles + packing, PackedInCalls(kernel)))
    most = _MOST_COPYING if usable_threads() < _THREADS else _MOST_COPYING_OF_MANY
    for kernel in ranked_microkernels(operation, target, packed=False)[:1]:
        cycles = likely_cycles(kernel, operation)
        is_copied = kernel.plan(operation).copies
        if not is_copied or likely_cycles(replace(kernel, packed=True), operation) >= (1 - most) * cycles:
            timed.append((cycles, kernel))
    timed += [(dot_cycles(each, operation), each) for each in ranked_dot_microkernels(operation, target)[:1]]
    return tuple(kernel for _, kernel in sorted(timed, key=lambda pair: pair[0]))


def _is_short_gradient(operation: Operation) -> bool:
    """Whether lhs is stored transposed in a product so short that forms are faster: by 2 to 8 us on two threads of a Zen 4."""
    product = operation.product
    return product is not None and product.lhs_layout == "n" and operation.flops < _SHORT_GRADIENT


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


def _packing_cycles(kernel: Configuration, operation: Operation, threads: int) -> float:
    """Cycles in which a call packs the weight for `kernel`."""
    packed = kernel.packing(operation)[-1].result
    return packed.bytes * _PACKING / min(threads, _THREADS)

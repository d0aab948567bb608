"""The kernels of an untuned operation with a constant weight: microkernels that multiply directly, and by Winograd's form."""

from __future__ import annotations

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.packed_microkernels import likely_cycles, ranked_microkernels
from dispatch_profiler.targets.untuned.winograd_microkernels import ranked_winograd

#: How many times as fast as the direct microkernel a Winograd microkernel has to promise to be.
_ADVANTAGE = 1.3


def packed_kernels(operation: Operation, target: Target) -> tuple[Configuration, ...]:
    """The best microkernel of each kind for the threads at hand, the likely fastest first.

    Empty if none is valid, or if the vectors of `target` have another or an unknown width.
    """
    direct = next(iter(ranked_microkernels(operation, target)), None)
    cycles, winograd = next(iter(ranked_winograd(operation, target)), (0.0, None))
    if direct is None or winograd is None:
        return tuple(each for each in (direct, winograd) if each is not None)
    is_faster = _ADVANTAGE * cycles < likely_cycles(direct, operation)
    return (winograd, direct) if is_faster else (direct, winograd)

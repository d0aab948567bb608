"""The cost of library calls: an eager call where graphs are timed, and a call with almost no work."""

from __future__ import annotations

import statistics

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import Distribution, Operation
from dispatch_profiler.profiler.measurement.kernels import Operands
from dispatch_profiler.profiler.measurement.measure import OVERHEAD_SECONDS, calls_that_last, quickest
from dispatch_profiler.profiler.providers.protocol import Library, NotSupported
from dispatch_profiler.profiler.verification.inputs import draw

_EAGER_SAMPLES = 5


def eager_ms(library: Library, operands: Operands) -> float:
    """Milliseconds of one eager execution if the library is timed in graphs; else 0."""
    if not library.repeats:
        return 0.0
    call = library.load(b"").bind("", operands)
    call.time(1)
    calls = calls_that_last(OVERHEAD_SECONDS, call.time(1))
    return 1e3 * statistics.median(call.time(calls) for _ in range(_EAGER_SAMPLES)) / calls


def library_call_ms(library: Library, operation: Operation) -> float:
    """Milliseconds of a call on a problem of extent 1: the overhead of a call.

    0 if calls are repeated, or if the operation has no such problem.
    """
    if library.repeats:
        return 0.0
    try:
        contraction = operation.contraction
        smallest = operation.smallest() if contraction is None else contraction.smallest_alike
        operands = library.put(smallest, draw(smallest, Distribution.REALS, 0))
        return 1e3 * quickest(library.load(b"").bind("", operands).time, OVERHEAD_SECONDS)
    except (NotSupported, OperationError):
        return 0.0

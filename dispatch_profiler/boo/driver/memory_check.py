"""Checks that the tensors of an operation fit into memory, since commands may have any shapes."""

from __future__ import annotations

from dispatch_profiler.errors import WorkerOutOfMemory
from dispatch_profiler.isolation import available_memory
from dispatch_profiler.operations import Operation

#: Arguments are drawn, and references computed, in float64.
_WIDE = 8


def check_memory(operation: Operation, *, wide_copies: int = 1) -> None:
    """Raise WorkerOutOfMemory if the tensors of `operation` do not fit into the available memory.

    Besides the tensors, counts `wide_copies` copies of them in float64.
    """
    tensors = (*operation.operands, *operation.results)
    elements = sum(tensor.elements for tensor in tensors)
    needed, available = operation.bytes + wide_copies * _WIDE * elements, available_memory()
    if needed > available:
        largest = max(tensors, key=lambda tensor: tensor.elements)
        raise WorkerOutOfMemory(
            f"the tensors need {needed / 2**30:.3g} GiB of memory, but only {available / 2**30:.3g} GiB is available",
            hint=f"use smaller sizes: the largest tensor is {largest.name}, of {' x '.join(map(str, largest.shape))}",
        )

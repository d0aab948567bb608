"""Whether the tensors of an operation fit into memory: a command may have any shapes."""

from __future__ import annotations

from dispatch_profiler.errors import WorkerOutOfMemory
from dispatch_profiler.isolation import available_memory
from dispatch_profiler.operations import Operation

#: Arguments are drawn, and references computed, in float64.
_WIDE = 8


def check_memory(operation: Operation, *, wide_copies: int = 1) -> None:
    """Raise WorkerOutOfMemory if the tensors of `operation` do not fit into the available memory.

    `wide_copies` is the number of copies of all of them in float64 beside them.
    """
    elements = sum(tensor.elements for tensor in (*operation.operands, *operation.results))
    needed, available = operation.bytes + wide_copies * _WIDE * elements, available_memory()
    if needed > available:
        raise WorkerOutOfMemory(
            f"it needs {needed / 2**30:.3g} GiB of memory, but {available / 2**30:.3g} GiB are available",
            hint="use a smaller batch (-n) or smaller images",
        )

"""The Triton kernel of a layer norm on NVIDIA GPUs if none was tuned: what most of 44 entries for an H200 have."""

from __future__ import annotations

from dispatch_profiler.configurations import TritonRows
from dispatch_profiler.configurations.triton.limits import power_of_two
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: Elements of a block, and of a warp: with so many rows that every multiprocessor has several, and with fewer.
_BLOCK, _OF_WARP, _OF_WARP_OF_FEW = 2048, 1024, 256
#: Elements that the registers of a warp hold.
_MOST_OF_WARP = 2048
#: Rows of a block at most, warps at most, and from how many rows on there are many.
_MOST_ROWS, _MOST_WARPS, _MANY = 8, 16, 256
#: The block of the gradients of weight and bias: rows that are added up at a time, and columns of a workgroup.
_COLUMNS = (256, 16)


def ranked_triton_rows(operation: Operation, target: Target) -> tuple[TritonRows, ...]:
    """The kernels of a layer norm, the likely fastest first; empty for other operations and targets."""
    norm = operation.normalization
    if norm is None or target.limits.backend != "cuda":
        return ()
    if norm.mode == "weight_backward":
        ranked = [TritonRows(block=_COLUMNS), TritonRows(block=(64, 16))]
    else:
        columns = power_of_two(norm.size)
        ranked = [
            _of_rows(rows, columns, _OF_WARP if norm.rows >= _MANY else _OF_WARP_OF_FEW)
            for rows in (max(1, min(_MOST_ROWS, _BLOCK // columns)) if norm.rows >= _MANY else 1, 1)
        ]
    return tuple(
        dict.fromkeys(each for each in ranked if each.invalid_reason(operation, target.limits) is None)
    )


def _of_rows(rows: int, columns: int, of_warp: int) -> TritonRows:
    elements = rows * columns
    warps = max(1, min(_MOST_WARPS, elements // of_warp), elements // _MOST_OF_WARP)
    return TritonRows(block=(rows, columns), warps=warps, stages=1)

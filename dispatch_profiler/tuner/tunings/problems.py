"""The problems of a workload, with short names in the style of hipBLASLt's tuning files: `BBS_TN_0`.

A name has three parts:

| part | of a matrix product | of another operation |
|---|---|---|
| `BBS` | the types of A and B, of C and D, and of the sums | the kind, its mode unless that is forward, then likewise: `CONV2D_SSS` |
| `TN` | `transA` and `transB` of the column-major call, as in a hipBLASLt log | - |
| `0` | its number among the problems of the workload with the same parts | |
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.element_types import ElementType
from dispatch_profiler.workloads import Workload

#: The letters of hipBLASLt's types.
_LETTERS = {"f64": "D", "f32": "S", "f16": "H", "bf16": "B", "f8E4M3FN": "F8", "i8": "I8", "i32": "I"}


@dataclass(frozen=True)
class TuningProblem:
    """An operation of a workload, with its name, how often it runs, and where the count was read."""

    name: str
    operation: Operation
    count: int = 1
    origin: str = ""


def problems_of(workload: Workload) -> tuple[TuningProblem, ...]:
    """A problem for each entry, in order. Names depend on nothing but the order of the entries."""
    numbers: Counter[str] = Counter()
    problems = []
    for entry in workload.entries:
        start = prefix(entry.operation)
        problems.append(
            TuningProblem(f"{start}_{numbers[start]}", entry.operation, entry.count, entry.origin)
        )
        numbers[start] += 1
    return tuple(problems)


def prefix(operation: Operation) -> str:
    """The name of a problem without its number: `BBS_TN`, `CONV2D_SSS`, `CONV2D_WEIGHT_BACKWARD_SSS`."""
    types = (operation.element_type, operation.results[0].type, operation.accumulator)
    letters = "".join(map(_letters, types))
    product = operation.product
    if product is None:
        convolution = operation.convolution
        is_forward = convolution is None or convolution.mode == "forward"
        mode = "" if convolution is None or is_forward else f"_{convolution.mode}"
        return f"{operation.kind}{mode}_{letters}".upper()
    # The column-major A is the row-major rhs, which is stored transposed unless A is.
    trans_a = "T" if product.rhs_layout == "n" else "N"
    trans_b = "T" if product.lhs_layout == "n" else "N"
    return f"{letters}_{trans_a}{trans_b}"


def _letters(element: ElementType) -> str:
    return _LETTERS.get(element.name, element.name.upper())

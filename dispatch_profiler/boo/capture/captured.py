"""What `capture` returns: the operations of a model as a workload, and what is left to torch."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.workloads import Workload


@dataclass(frozen=True)
class LeftToTorch:
    """An operator of a model that is not an operation of this package, or that the schema leaves to torch.

    `root` is the operator's name in fusion schemas, and `count` how often it ran.
    """

    root: str
    reason: str
    count: int


@dataclass(frozen=True)
class Captured:
    """The operations of a model with their counts, and the operators that torch computes."""

    workload: Workload
    left_to_torch: tuple[LeftToTorch, ...] = ()

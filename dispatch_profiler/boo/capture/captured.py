"""What `capture` returns: the operations of a model as a workload, and what is left to torch."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.workloads import Workload


@dataclass(frozen=True)
class LeftToTorch:
    """Operators of a model that no operation expresses, or that the schema leaves to torch.

    `root` names the operator as fusion schemas do; `count` is how often it ran.
    """

    root: str
    reason: str
    count: int


@dataclass(frozen=True)
class Captured:
    """What `capture` found: operations with counts, and what torch computes."""

    workload: Workload
    left_to_torch: tuple[LeftToTorch, ...] = ()

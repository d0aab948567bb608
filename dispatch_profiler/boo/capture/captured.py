"""`capture` and its result, `Captured`; torch is imported by the first call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS, FusionSchema
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


def capture(
    model: Callable[..., Any],
    inputs: Any,
    *,
    training: bool = False,
    fusion_schema: FusionSchema = DEFAULT_SUPPORTED_BOO_FUSIONS,
    origin: str = "",
) -> Captured:
    """The operations that `torch.compile(model, backend="iree_boo_inductor")` launches for these inputs.

    `inputs` is a tensor, a sequence of positional arguments, or a mapping of keyword arguments. The model runs once, in
    the mode that it is in; with `training`, the gradients of its parameters are computed too, whose operations count
    under `BOO_USE_BACKWARD_KERNELS=1`. Parameters, gradients, buffers and random numbers are as before afterwards.
    `origin` is the entries' origin, by default the name of the model. Raises MissingDependency without torch, and what
    the model raises.
    """
    from dispatch_profiler.boo.driver.torch_functions import load_torch

    load_torch()
    from dispatch_profiler.boo.capture.recording import record

    return record(model, inputs, fusion_schema, training=training, origin=origin)

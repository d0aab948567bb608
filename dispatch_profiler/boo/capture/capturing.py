"""`capture`: the operations of a model as a workload, and the operators that torch computes. The first call imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS, FusionSchema
from dispatch_profiler.workloads import Workload, WorkloadEntry


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
    its current mode. With `training`, the gradients of its parameters are computed, too; their operations count if
    `BOO_USE_BACKWARD_KERNELS=1`. Parameters, gradients, buffers and the state of random generators are restored.
    `origin` is the origin of the workload's entries (default: the name of the model); `modules` of an entry are the paths
    of the modules that compute it.

    Raises MissingDependency without torch, and the errors of the model.
    """
    from dispatch_profiler.boo.driver.torch_functions import load_torch

    load_torch()
    from dispatch_profiler.boo.capture.recording import record

    found = record(model, inputs, fusion_schema, training=training)
    name = origin or getattr(model, "__name__", type(model).__name__)
    return Captured(
        Workload(
            tuple(
                WorkloadEntry(each, count, name, tuple(found.modules.get(each, ())))
                for each, count in found.operations.items()
            )
        ),
        tuple(LeftToTorch(root, reason, count) for (root, reason), count in found.left.items()),
    )

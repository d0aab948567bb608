"""`capture` of a model. Its first call imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatch_profiler.boo.capture.captured import Captured
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS, FusionSchema


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
    `origin` is the origin of the workload's entries (default: the name of the model).

    Raises MissingDependency without torch, and the errors of the model.
    """
    from dispatch_profiler.boo.driver.torch_functions import load_torch

    load_torch()
    from dispatch_profiler.boo.capture.recording import record

    return record(model, inputs, fusion_schema, training=training, origin=origin)

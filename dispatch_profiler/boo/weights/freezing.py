"""`refreeze`: takes new snapshots of frozen weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS
from dispatch_profiler.errors import UsageError


def refreeze(model: torch.nn.Module | Iterable[Tensor] | None = None) -> None:
    """Take new snapshots of frozen weights: of a model, of some tensors, or of all frozen weights of this process.

    The next call that uses a weight takes the snapshot. In that call, inductor also compiles graphs with frozen weights
    again. Raises UsageError if `model` is neither a module nor tensors.
    """
    if model is None:
        SNAPSHOTS.refreeze()
        return
    given = (*model.parameters(), *model.buffers()) if isinstance(model, torch.nn.Module) else model
    weights = [given] if isinstance(given, torch.Tensor) or not isinstance(given, Iterable) else list(given)
    if not all(isinstance(each, torch.Tensor) for each in weights):
        raise UsageError(
            f"refreeze takes a torch.nn.Module, tensors or nothing, but got {type(model).__name__}"
        )
    SNAPSHOTS.refreeze(weights)
